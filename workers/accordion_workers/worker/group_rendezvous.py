"""Rendezvous of a worker group: a torch TCPStore that outsiders cannot use.

TCPStore has no authentication. It therefore listens on the node's own address only, and each member
proves that it knows the secret sent with its assignment. The port is then closed: the kernel drops
all further packets to it, by a filter or, where only root may attach one, because they lack a
signature. Only then are the group's keys written, with the secret as their prefix.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import logging
import os
import secrets
import socket
import struct
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

CONNECT_TIMEOUT = timedelta(seconds=15)
"""Timeout for connecting to the store of a group that is being formed."""
Address = tuple[str, int, str]
"""Host, port and secret of a group's store."""
_SO_ATTACH_FILTER = 26
"""From asm-generic/socket.h: attach a BPF program that filters the packets to a socket."""
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""BPF program of one instruction, BPF_RET 0: drop every packet."""
_TCP_MD5SIG_EXT, _HAS_PREFIX, _KEY_BYTES = 32, 1, 80
"""From linux/tcp.h: signatures (RFC 2385) of all packets from a range of addresses."""
_ESTABLISHED = "01"
"""TCP_ESTABLISHED in /proc/net/tcp."""

log = logging.getLogger(__name__)


class GroupStore:
    """Store opened by this process, rank 0 of a group, on a free port of one local address."""

    def __init__(self, host: str) -> None:
        self._secret = secrets.token_hex(16)
        self._listener = _open_listener(host)
        port = self._listener.getsockname()[1]
        # The store owns the descriptor that it is given.
        self._store = TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=CONNECT_TIMEOUT,
            master_listen_fd=os.dup(self._listener.fileno()),
        )
        self.address: Address = (host, port, self._secret)

    def wait_for_members(
        self, world_size: int, timeout: timedelta, *, closed: bool = True
    ) -> Store:
        """Wait for all members, close the port if `closed`, and return the group's store.

        Raises:
            DistStoreError: a member is missing after the timeout, or an outsider is connected.
        """
        others = range(1, world_size)
        if others:
            self._store.wait([_member_key(rank) for rank in others], timeout)
        for rank in others:
            _check_proof(self._store, self._secret, _member_key(rank))
        if closed:
            _close_port(self._listener)
        self._listener.close()
        connected = _num_connections(self.address[1])
        if connected is not None and connected > world_size:
            raise dist.DistStoreError(
                f"{connected} connections to the store of a group of {world_size}: an unknown"
                " process is connected; the group is formed again"
            )
        self._store.set(_CLOSED_KEY, _sign_key(self._secret, _CLOSED_KEY))
        return PrefixStore(self._secret, self._store)


_CLOSED_KEY = "closed"


def join_store(address: Address, rank: int, timeout: timedelta) -> Store:
    """Connect to the store that rank 0 opened; return the group's store once all members are
    connected.

    Raises:
        DistStoreError: no answer in time, a member is missing, or an outsider is connected.
    """
    host, port, secret = address
    store = TCPStore(host, port, is_master=False, timeout=CONNECT_TIMEOUT)
    store.set(_member_key(rank), _sign_key(secret, _member_key(rank)))
    store.wait([_CLOSED_KEY], timeout)
    _check_proof(store, secret, _CLOSED_KEY)
    return PrefixStore(secret, store)


def _member_key(rank: int) -> str:
    return f"member/{rank}"


def _sign_key(secret: str, key: str) -> str:
    return hmac.new(secret.encode(), key.encode(), hashlib.sha256).hexdigest()


def _check_proof(store: Store, secret: str, key: str) -> None:
    if not hmac.compare_digest(store.get(key), _sign_key(secret, key).encode()):
        raise dist.DistStoreError(
            f"the writer of {key!r} in the group's store does not know its secret"
        )


def _open_listener(host: str) -> socket.socket:
    """Listen on one address, or on all if no interface has the address that the cluster uses."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, 0), family=family)
    except OSError as error:
        log.warning(
            "cannot bind to %s (%s); the group's store listens on all addresses",
            host,
            error.strerror,
        )
        return socket.create_server(("", 0), family=family)


def _close_port(listener: socket.socket) -> None:
    """Refuse new connections; torch cannot stop listening. Existing connections continue."""
    if sys.platform != "linux":
        return
    reasons = []
    for close in (drop_packets, require_signatures):
        try:
            close(listener)
        except OSError as error:
            reasons.append(str(error.strerror))
        else:
            return
    log.warning(
        "the kernel does not close the port of the group's store (%s); processes that reach this"
        " node could connect to it and disturb the group",
        ", ".join(reasons),
    )


def drop_packets(listener: socket.socket) -> None:
    """Drop all packets by a filter.

    Raises:
        OSError: the kernel lets only root attach one.
    """
    program = ctypes.create_string_buffer(_DROP_ALL)
    filter_ = struct.pack("HP", 1, ctypes.addressof(program))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)


def require_signatures(listener: socket.socket) -> None:
    """Drop all packets that are not signed by a key, from any address; nobody has the key.

    Raises:
        OSError: the kernel was built without such signatures.
    """
    any_address = struct.pack("H126x", listener.family)
    key = secrets.token_bytes(_KEY_BYTES)
    option = any_address + struct.pack("BBHi", _HAS_PREFIX, 0, _KEY_BYTES, 0) + key
    listener.setsockopt(socket.IPPROTO_TCP, _TCP_MD5SIG_EXT, option)


def _num_connections(port: int) -> int | None:
    """Count the connections to a local port; None if the system does not report them."""
    tables = [path for name in ("tcp", "tcp6") if (path := Path(f"/proc/self/net/{name}")).exists()]
    return sum(_are_established(tables, port)) if tables else None


def _are_established(tables: list[Path], port: int) -> Iterator[bool]:
    for table in tables:
        for line in table.read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            yield state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port
