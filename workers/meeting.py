"""Where the workers of a group meet: a key-value store of torch that no stranger can use.

torch's store asks nobody for a credential. So it listens on the node's own address only, each member proves that it
knows a secret that travels with the call that seats it, and then the door is closed: the kernel drops whatever else
comes to the listening port. Keys of the group are written only after that, below the secret.
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
"""How long a worker waits for the store of a group that is being formed."""
Address = tuple[str, int, str]
"""Host, port and secret of a meeting."""
_SO_ATTACH_FILTER = 26
"""From asm-generic/socket.h: the kernel asks a program of ours about every packet to a socket."""
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""Such a program, of one instruction: BPF_RET 0, keep no byte of the packet."""
_ESTABLISHED = "01"
"""State of a connection in /proc/net/tcp."""

log = logging.getLogger(__name__)


class Meeting:
    """A store that this process, rank 0 of a group, has opened on a free port of one address of this machine."""

    def __init__(self, host: str) -> None:
        self._secret = secrets.token_hex(16)
        self._listener = _listen(host)
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

    def admit(self, world_size: int, timeout: timedelta, *, closed: bool = True) -> Store:
        """Wait for all members, close the door unless it shall stay open, and give the store of the group.

        Raises:
            DistStoreError: not all came in time, or somebody else is connected too.
        """
        others = range(1, world_size)
        if others:
            self._store.wait([_member_key(rank) for rank in others], timeout)
        for rank in others:
            _check_proof(self._store, self._secret, _member_key(rank))
        if closed:
            _close_door(self._listener)
        self._listener.close()
        connected = _num_connections(self.address[1])
        if connected is not None and connected > world_size:
            raise dist.DistStoreError(
                f"{connected} connections to the store of a group of {world_size}: somebody else is in the network of "
                "the workers; the group is formed anew"
            )
        self._store.set(_CLOSED_KEY, _proof(self._secret, _CLOSED_KEY))
        return PrefixStore(self._secret, self._store)


_CLOSED_KEY = "closed"


def join(address: Address, rank: int, timeout: timedelta) -> Store:
    """Come to the meeting that rank 0 opened, and give the store of the group once all are there.

    Raises:
        DistStoreError: nobody answers there in time, not all came, or a stranger did.
    """
    host, port, secret = address
    store = TCPStore(host, port, is_master=False, timeout=CONNECT_TIMEOUT)
    store.set(_member_key(rank), _proof(secret, _member_key(rank)))
    store.wait([_CLOSED_KEY], timeout)
    _check_proof(store, secret, _CLOSED_KEY)
    return PrefixStore(secret, store)


def _member_key(rank: int) -> str:
    return f"member/{rank}"


def _proof(secret: str, key: str) -> str:
    return hmac.new(secret.encode(), key.encode(), hashlib.sha256).hexdigest()


def _check_proof(store: Store, secret: str, key: str) -> None:
    if not hmac.compare_digest(store.get(key), _proof(secret, key).encode()):
        raise dist.DistStoreError(f"who wrote {key!r} into the store of a group does not know its secret")


def _listen(host: str) -> socket.socket:
    """Listen on one address; on all of them only where the cluster knows this machine by one that it does not have."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, 0), family=family)
    except OSError as error:
        log.warning("no socket can be bound to %s (%s): the group meets on all addresses", host, error.strerror)
        return socket.create_server(("", 0), family=family)


def _close_door(listener: socket.socket) -> None:
    """Let nobody else connect: torch has no way to stop listening. Connections that exist go on."""
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(_DROP_ALL)
    filter_ = struct.pack("HP", 1, ctypes.addressof(program))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)


def _num_connections(port: int) -> int | None:
    """How many are connected to a port of this machine; None where the system does not say."""
    tables = [path for name in ("tcp", "tcp6") if (path := Path(f"/proc/self/net/{name}")).exists()]
    return sum(_rows(tables, port)) if tables else None


def _rows(tables: list[Path], port: int) -> Iterator[bool]:
    for table in tables:
        for line in table.read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            yield state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port
