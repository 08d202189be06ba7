"""Zip files that users upload, read by strict rules; stdlib only.

Supported is what ordinary programs write: one file, entries stored or deflated, sizes in 32 bits
(PKWARE's APPNOTE 6.3.10, 4.3.6-4.3.16). Everything else is refused where `zipfile` would guess or
repair, because two readers of an odd archive may see different files. The same reader checks
uploads and unpacks them in the workers.
"""

from __future__ import annotations

import stat
import struct
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import BinaryIO

from accordion_workers.common.errors import CodeError

_END = struct.Struct("<4s4H2LH")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_END_SIGN, _CENTRAL_SIGN, _LOCAL_SIGN, _ZIP64_SIGN = (
    b"PK\x05\x06",
    b"PK\x01\x02",
    b"PK\x03\x04",
    b"PK\x06\x07",
)
_ZIP64_LOCATOR_BYTES = 20
_MOST_COMMENT_BYTES = 0xFFFF
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF
"""Stand for "see the zip64 fields"."""
_ENCRYPTED, _SIZES_FOLLOW, _PATCH = 0x2041, 0x08, 0x20
_STORED, _DEFLATED = 0, 8
_CHUNK_BYTES = 1 << 16
_REFUSED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of characters that change how a name looks, or end lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """Size limits of an archive: code is small, and data belongs in the image or on the shared
    storage.
    """

    entries: int = 10_000
    total_bytes: int = 256 << 20
    """Unpacked size of all files together, in bytes."""
    file_bytes: int = 128 << 20
    """Unpacked size of each file, in bytes."""
    ratio: int = 200
    """Unpacked to packed size of files above `ratio_from_bytes`; deflate reaches 1,032 on zeros."""
    ratio_from_bytes: int = 1 << 20
    depth: int = 16
    """Nesting of folders."""
    name_bytes: int = 400
    """Length of a whole path, in bytes."""
    list_bytes: int = 4 << 20
    """Size of the archive's list of files, which is read as a whole, in bytes."""


LIMITS = ArchiveLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file or folder of an archive."""

    name: str
    """Relative path with slashes; a folder's has none at its end."""
    is_folder: bool
    size_bytes: int
    """Unpacked size that the archive declares; checked while reading."""
    packed_bytes: int
    crc: int
    deflated: bool
    offset: int
    """Offset of its header in the archive."""
    data: int = 0
    """Offset of its bytes."""


def check_archive(file: BinaryIO, limits: ArchiveLimits = LIMITS) -> tuple[Entry, ...]:
    """Unpack and check every byte of an archive, and return its entries; nothing is written.

    Raises:
        CodeError: it is not a zip file, or holds what code does not need.
    """
    entries = list_entries(file, limits)
    for entry in entries:
        for _ in _read_unpacked(file, entry):
            pass
    return entries


def unpack_archive(
    file: BinaryIO, folder: Path, limits: ArchiveLimits = LIMITS
) -> tuple[Entry, ...]:
    """Write all files into an empty folder that no other process uses.

    Raises:
        CodeError: see `check_archive`; files before the faulty one are written.
    """
    entries = list_entries(file, limits)
    for entry in entries:
        path = folder / entry.name
        (path if entry.is_folder else path.parent).mkdir(parents=True, exist_ok=True)
        if not entry.is_folder:
            with path.open("xb") as target:
                target.writelines(_read_unpacked(file, entry))
    return entries


def list_entries(file: BinaryIO, limits: ArchiveLimits = LIMITS) -> tuple[Entry, ...]:
    """Return an archive's entries in its order, from its list of files; their bytes are not read.

    Raises:
        CodeError: see `check_archive`.
    """
    begin, end, count = _find_list(file, limits)
    file.seek(begin)
    listed = list(_parse_list(file.read(end - begin), limits))
    if len(listed) != count:
        raise CodeError(
            f"the archive says that it holds {count} entries and lists {len(listed)};"
            " create it again"
        )
    _check_names([entry for entry, _ in listed])
    total = sum(entry.size_bytes for entry, _ in listed)
    if total > limits.total_bytes:
        raise CodeError(
            f"the archive unpacks to {total} bytes, the limit is {limits.total_bytes}; leave data"
            " out of it"
        )
    located = [_locate_data(file, entry, raw_name) for entry, raw_name in listed]
    _check_apart(located, begin)
    return tuple(located)


def top_level_modules(names: Iterable[str]) -> dict[str, str]:
    """Return the top-level modules among these paths: the name to import → the first file that
    provides it.
    """
    found: dict[str, str] = {}
    for name in names:
        top = name.split("/")[0].split(".")[0]
        if name.endswith(tuple(all_suffixes())) and not top.startswith("__"):
            found.setdefault(top, name)
    return found


def _find_list(file: BinaryIO, limits: ArchiveLimits) -> tuple[int, int, int]:
    """Return where the list of files begins and ends, and how many entries it declares."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _END.size - _MOST_COMMENT_BYTES - _ZIP64_LOCATOR_BYTES))
    tail = file.read()
    offset = tail.rfind(_END_SIGN)
    if offset < 0 or offset + _END.size > len(tail):
        raise CodeError(
            "this is no zip file, or its end is missing; upload the whole file that 'zip' made"
        )
    _, disk, first_disk, here, count, list_bytes, begin, comment_bytes = _END.unpack_from(
        tail, offset
    )
    end = size - len(tail) + offset
    locator = tail[max(0, offset - _ZIP64_LOCATOR_BYTES) :].startswith(_ZIP64_SIGN)
    if locator or _FULL_16 in (here, count) or _FULL_32 in (list_bytes, begin):
        raise CodeError(
            "the archive uses zip64, which only archives above 4 GB need; create it with plain"
            " 'zip'"
        )
    if disk or first_disk or here != count:
        raise CodeError("the archive is one part of several; upload one that is whole")
    if count > limits.entries or list_bytes > limits.list_bytes:
        raise CodeError(
            f"the archive holds {count} entries, the limit is {limits.entries}; leave out files"
            " that are not code"
        )
    if begin + list_bytes != end or end + _END.size + comment_bytes != size:
        raise CodeError(
            "the archive has other bytes before, between or after its parts; create it again with"
            " 'zip'"
        )
    return begin, end, count


def _parse_list(data: bytes, limits: ArchiveLimits) -> Iterator[tuple[Entry, bytes]]:
    """Yield the entries of the list of files, each with its name as stored."""
    offset = 0
    while offset < len(data):
        if offset + _CENTRAL.size > len(data) or not data.startswith(_CENTRAL_SIGN, offset):
            raise CodeError("the archive's list of files is damaged; create it again")
        fields = _CENTRAL.unpack_from(data, offset)
        name_bytes, extra_bytes, comment_bytes = fields[10:13]
        offset += _CENTRAL.size
        raw_name = data[offset : offset + name_bytes]
        offset += name_bytes + extra_bytes + comment_bytes
        if offset > len(data):
            raise CodeError("the archive's list of files is damaged; create it again")
        yield _make_entry(fields, _decode_name(raw_name, limits), limits), raw_name


def _make_entry(fields: tuple[int, ...], name: str, limits: ArchiveLimits) -> Entry:
    flags, method, crc, packed_bytes, size_bytes = fields[3], fields[4], *fields[7:10]
    attributes, offset = fields[15], fields[16]
    if flags & _ENCRYPTED:
        raise CodeError(f"{name!r} is encrypted; create the archive without a password")
    if method not in (_STORED, _DEFLATED) or flags & _PATCH:
        raise CodeError(
            f"{name!r} is compressed by method {method}; only stored and deflated files are read"
        )
    if _FULL_32 in (packed_bytes, size_bytes, offset):
        raise CodeError(
            f"{name!r} uses zip64, which only files above 4 GB need; create the archive with plain"
            " 'zip'"
        )
    entry = Entry(
        name=name.removesuffix("/"),
        is_folder=name.endswith("/"),
        size_bytes=size_bytes,
        packed_bytes=packed_bytes,
        crc=crc,
        deflated=method == _DEFLATED,
        offset=offset,
    )
    _check_kind(entry, attributes >> 16)
    _check_size(entry, limits)
    return entry


def _decode_name(raw: bytes, limits: ArchiveLimits) -> str:
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise CodeError(
            f"the name {raw!r} is not in UTF-8; rename the file, or create the archive with 'zip'"
        ) from None
    _check_letters(name)
    parts = name.removesuffix("/").split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        raise CodeError(
            f"the name {name!r} leads out of the archive or in circles; give plain paths inside it"
        )
    if len(parts) > limits.depth:
        raise CodeError(
            f"{name!r} lies {len(parts)} folders deep, the limit is {limits.depth}; make it flatter"
        )
    if len(raw) > limits.name_bytes:
        raise CodeError(
            f"a name has {len(raw)} bytes, the limit is {limits.name_bytes}: {name[:40]!r}...;"
            " shorten it"
        )
    return name


def _check_letters(name: str) -> None:
    if any(unicodedata.category(letter) in _REFUSED_CATEGORIES for letter in name):
        raise CodeError(f"the name {name!r} holds control characters; rename the file")
    if "\\" in name:
        raise CodeError(
            f"the name {name!r} holds a backslash; create the archive with slashes between folders"
        )
    if ":" in name:
        raise CodeError(
            f"the name {name!r} holds a colon, which names a drive; give paths inside the archive"
        )
    if name.startswith("/"):
        raise CodeError(f"the name {name!r} is absolute; give paths inside the archive")


def _check_kind(entry: Entry, mode: int) -> None:
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFLNK:
        raise CodeError(f"{entry.name!r} is a symbolic link; put the file itself in its place")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise CodeError(f"{entry.name!r} is a device, pipe or socket; leave it out")
    if (entry.is_folder and entry.size_bytes) or kind == (
        stat.S_IFREG if entry.is_folder else stat.S_IFDIR
    ):
        raise CodeError(
            f"{entry.name!r} is listed as a folder and as a file at once; create the archive again"
        )


def _check_size(entry: Entry, limits: ArchiveLimits) -> None:
    size, packed = entry.size_bytes, entry.packed_bytes
    if size > limits.file_bytes:
        raise CodeError(
            f"{entry.name!r} unpacks to {size} bytes, the limit is {limits.file_bytes}; leave"
            " data out"
        )
    if size > limits.ratio_from_bytes and size > limits.ratio * packed:
        raise CodeError(
            f"{entry.name!r} unpacks to {size} bytes from {packed}, more than {limits.ratio} times"
            " of it; leave it out"
        )
    if not entry.deflated and size != packed:
        raise CodeError(
            f"{entry.name!r} is stored with {packed} bytes and said to have {size}; make the"
            " archive again"
        )


def _check_names(entries: Iterable[Entry]) -> None:
    """Check that no two entries get the same path on any file system."""
    seen: set[str] = set()
    places: dict[str, tuple[str, bool]] = {}
    for entry in entries:
        if entry.name in seen:
            raise CodeError(f"{entry.name!r} is in the archive twice; leave one of them out")
        seen.add(entry.name)
        parts = entry.name.split("/")
        for depth in range(1, len(parts) + 1):
            path, is_folder = "/".join(parts[:depth]), depth < len(parts) or entry.is_folder
            other, was_folder = places.setdefault(_fold_name(path), (path, is_folder))
            if other != path:
                raise CodeError(
                    f"{path!r} and {other!r} differ in case or accents only; rename one of them"
                )
            if was_folder != is_folder:
                raise CodeError(f"{path!r} is a file and a folder at once; rename one of them")


def _fold_name(path: str) -> str:
    """Return a form that is equal for two paths that some file system treats as one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _locate_data(file: BinaryIO, entry: Entry, raw_name: bytes) -> Entry:
    """Return the entry with its bytes' offset, after comparing its own header with the list."""
    file.seek(entry.offset)
    header = file.read(_LOCAL.size)
    if len(header) < _LOCAL.size or not header.startswith(_LOCAL_SIGN):
        raise CodeError(
            f"{entry.name!r} is not where the archive's list says; create the archive again"
        )
    _, _, flags, method, _, _, crc, packed_bytes, size_bytes, name_bytes, extra_bytes = (
        _LOCAL.unpack(header)
    )
    listed = (crc, packed_bytes, size_bytes) == (entry.crc, entry.packed_bytes, entry.size_bytes)
    same_method = method == (_DEFLATED if entry.deflated else _STORED) and not flags & _ENCRYPTED
    if (
        file.read(name_bytes) != raw_name
        or not same_method
        or not (listed or flags & _SIZES_FOLLOW)
    ):
        raise CodeError(
            f"{entry.name!r} is described in two ways by the archive; create the archive again"
        )
    return replace(entry, data=entry.offset + _LOCAL.size + name_bytes + extra_bytes)


def _check_apart(entries: Iterable[Entry], end: int) -> None:
    """Check that no byte belongs to two files: a few bytes could be listed ten thousand times."""
    before = 0
    for entry in sorted(entries, key=lambda entry: entry.offset):
        if entry.offset < before or entry.data + entry.packed_bytes > end:
            raise CodeError(
                f"{entry.name!r} shares bytes with another entry of the archive; create the archive"
                " again"
            )
        before = entry.data + entry.packed_bytes


def _read_unpacked(file: BinaryIO, entry: Entry) -> Iterator[bytes]:
    """Yield the file's bytes, checked against the declared size and checksum."""
    packed = _read_packed(file, entry)
    size = crc = 0
    for piece in _decompress_member(packed, entry.name) if entry.deflated else packed:
        size, crc = size + len(piece), zlib.crc32(piece, crc)
        if size > entry.size_bytes:
            raise CodeError(
                f"{entry.name!r} unpacks to more than the {entry.size_bytes} bytes that the archive"
                " says"
            )
        yield piece
    if size != entry.size_bytes or crc != entry.crc:
        raise CodeError(
            f"{entry.name!r} does not match its size or checksum in the archive; create it again"
        )


def _read_packed(file: BinaryIO, entry: Entry) -> Iterator[bytes]:
    file.seek(entry.data)
    left = entry.packed_bytes
    while left:
        piece = file.read(min(left, _CHUNK_BYTES))
        if not piece:
            raise CodeError(f"{entry.name!r} breaks off; upload the archive again")
        left -= len(piece)
        yield piece


def _decompress_member(packed: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield at most a chunk at a time, however small the input."""
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for piece in packed:
            rest = piece
            while rest:
                yield inflate.decompress(rest, _CHUNK_BYTES)
                rest = inflate.unconsumed_tail
            if inflate.unused_data:
                raise CodeError(f"{name!r} holds bytes after its end; create the archive again")
        while not inflate.eof:
            last = inflate.decompress(b"", _CHUNK_BYTES)
            if not last and not inflate.eof:
                raise CodeError(f"{name!r} breaks off; create the archive again")
            yield last
    except zlib.error:
        raise CodeError(f"{name!r} cannot be unpacked; create the archive again") from None


__all__ = [
    "LIMITS",
    "ArchiveLimits",
    "CodeError",
    "Entry",
    "check_archive",
    "list_entries",
    "top_level_modules",
    "unpack_archive",
]
