"""Carry N tap pairs (eth0 in namespace nl-hI, pI in nl-sw) and hold every frame that leaves a host
for D ms.

    netdelay.py N DELAY_MS

Stands in for netem where the kernel lacks it. The taps speak vnet_hdr with TSO and checksum
offload on, so a large send crosses as one frame of up to 64 KiB and the cost in this process stays
small. Delay only: tbf limits the rate.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 1, 2, 4
CLONE_NEWNET = 0x40000000
TICK = 0.0002  # frames leave in batches this far apart, so that one wake-up carries several
libc = ctypes.CDLL(None, use_errno=True)


def setns(path):
    fd = os.open(path, os.O_RDONLY)
    if libc.setns(fd, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), path)
    os.close(fd)


def tap(netns, name):
    setns("/run/netns/" + netns)
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(
        fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR)
    )
    fcntl.ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return fd


def main():  # noqa: C901
    n, delay = int(sys.argv[1]), float(sys.argv[2]) / 1e3
    out = {}
    for i in range(1, n + 1):
        h, s = tap(f"nl-h{i}", "eth0"), tap("nl-sw", f"p{i}")
        out[h], out[s] = (s, delay), (h, 0.0)  # the uplink is the one that waits
    fds = list(out)
    print("ready", flush=True)
    line = deque()  # one delay for every uplink, so a plain queue stays sorted
    now = time.monotonic

    def put(fd, frame):
        with contextlib.suppress(OSError):  # a full or downed port drops, as a switch does
            os.write(fd, frame)

    while True:
        # select() because its timeout counts microseconds where epoll's counts milliseconds
        ready, _, _ = select.select(fds, [], [], max(line[0][0] - now(), TICK) if line else None)
        t = now() + delay
        for fd in ready:
            dst, d = out[fd]
            for _ in range(64):
                try:
                    frame = os.read(fd, 70000)
                except OSError:
                    break
                if d:
                    line.append((t, dst, frame))
                else:
                    put(dst, frame)
        t = now() + TICK / 2
        while line and line[0][0] <= t:
            _, dst, frame = line.popleft()
            put(dst, frame)


main()
