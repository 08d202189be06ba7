"""Zip files as nobody should send them: each function makes one, byte by byte where `zipfile` would
not.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping

CODE = b"print('hello')\n"
_CENTRAL_FLAGS, _CENTRAL_PACKED, _CENTRAL_SIZE, _CENTRAL_OFFSET, _CENTRAL_NAME = 8, 20, 24, 42, 46
_LOCAL_FLAGS, _LOCAL_METHOD, _LOCAL_SIZE = 6, 8, 22
_LINK, _PIPE, _FOLDER = 0o120777, 0o010644, 0o040755


def archive(
    *files: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED, mode: int = 0o100644
) -> bytes:
    """An ordinary archive; a name that ends with a slash is a folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as zipped:
        for name, data in files:
            info = zipfile.ZipInfo(name)
            info.external_attr = (
                _FOLDER if name.endswith("/") and mode == 0o100644 else mode
            ) << 16
            zipped.writestr(info, data, method)
    return buffer.getvalue()


def named(name: str) -> bytes:
    """An archive with one file of this name."""
    return archive((name, CODE))


def patched(
    data: bytes, central: Mapping[int, bytes], local: Mapping[int, bytes] | None = None
) -> bytes:
    """The archive with other bytes in the list of files and in the header of its first entry."""
    changed = bytearray(data)
    for start, fields in ((data.index(b"PK\x01\x02"), central), (0, local or {})):
        for offset, value in fields.items():
            changed[start + offset : start + offset + len(value)] = value
    return bytes(changed)


def raw_name(name: bytes) -> bytes:
    """An archive whose one name is these bytes."""
    return named("x" * len(name)).replace(b"x" * len(name), name)


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def raw(packed: bytes, *, size: int, crc: int) -> bytes:
    """One deflated file whose bytes, size and checksum need not belong together."""
    name = b"m.py"
    local = struct.pack(
        "<4s5H3L2H", b"PK\x03\x04", 20, 0, 8, 0, 0, crc, len(packed), size, len(name), 0
    )
    body = local + name + packed
    central = struct.pack(
        "<4s6H3L5H2L",
        b"PK\x01\x02",
        20,
        20,
        0,
        8,
        0,
        0,
        crc,
        len(packed),
        size,
        len(name),
        0,
        0,
        0,
        0,
        0,
        0,
    )
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(central) + len(name), len(body), 0)
    return body + central + name + end


def absolute_name() -> bytes:
    return named("/etc/cron.d/job.py")


def name_that_climbs() -> bytes:
    return named("a/../../m.py")


def name_with_a_dot() -> bytes:
    return named("./m.py")


def name_with_empty_parts() -> bytes:
    return named("a//m.py")


def empty_name() -> bytes:
    return raw_name(b"/")


def backslash() -> bytes:
    return raw_name(b"a\\..\\m.py")


def drive() -> bytes:
    return named("C:m.py")


def nul_in_a_name() -> bytes:
    return raw_name(b"m.py\0.txt")


def newline_in_a_name() -> bytes:
    return named("m\n.py")


def turned_around_name() -> bytes:
    return named("m\u202eyp.py")


def name_that_is_no_utf_8() -> bytes:
    return raw_name(b"caf\xe9.py")


def long_name() -> bytes:
    return named("m" * 500 + ".py")


def deep_folders() -> bytes:
    return named("a/" * 40 + "m.py")


def link() -> bytes:
    return archive(("m.py", b"/etc/passwd"), mode=_LINK)


def pipe() -> bytes:
    return archive(("m.py", b""), mode=_PIPE)


def folder_that_holds_bytes() -> bytes:
    return archive(("m.py/", CODE))


def folder_without_a_slash() -> bytes:
    return archive(("m.py", b""), mode=_FOLDER)


def two_of_one_name() -> bytes:
    return archive(("m.py", CODE), ("n.py", b"")).replace(b"n.py", b"m.py")


def names_that_differ_in_case() -> bytes:
    return archive(("m.py", CODE), ("M.py", CODE))


def folders_that_differ_in_case() -> bytes:
    return archive(("lib/a.py", CODE), ("Lib/b.py", CODE))


def names_that_differ_in_accents() -> bytes:
    return archive(("caf\u00e9.py", CODE), ("cafe\u0301.py", CODE))


def file_and_folder() -> bytes:
    return archive(("m.py", CODE), ("m.py/n.py", CODE))


def too_many_entries() -> bytes:
    return archive(*((f"m{number}.py", b"") for number in range(10_001)), method=zipfile.ZIP_STORED)


def more_entries_than_it_says() -> bytes:
    data = archive(("m.py", CODE), ("n.py", CODE))
    return data[:-14] + struct.pack("<HH", 1, 1) + data[-10:]


def large_file() -> bytes:
    return raw(deflated(bytes(1 << 20)), size=(128 << 20) + 1, crc=0)


def large_together() -> bytes:
    data = archive(*((f"m{number}.py", b"") for number in range(3)), method=zipfile.ZIP_DEFLATED)
    big = struct.pack("<LL", 100 << 20, 100 << 20)
    places = [place for place in range(len(data)) if data.startswith(b"PK\x01\x02", place)]
    changed = bytearray(data)
    for place in places:
        changed[place + _CENTRAL_PACKED : place + _CENTRAL_PACKED + 8] = big
    return bytes(changed)


def bomb() -> bytes:
    return archive(("m.py", bytes(8 << 20)))


def bomb_that_says_it_is_small() -> bytes:
    return raw(deflated(bytes(8 << 20)), size=100, crc=zlib.crc32(bytes(100)))


def file_smaller_than_it_says() -> bytes:
    return raw(deflated(CODE), size=len(CODE) + 1, crc=zlib.crc32(CODE))


def wrong_checksum() -> bytes:
    return raw(deflated(CODE), size=len(CODE), crc=1)


def bytes_that_do_not_unpack() -> bytes:
    return raw(b"\xff" * 20, size=20, crc=0)


def bytes_that_break_off() -> bytes:
    return raw(deflated(CODE)[:-2], size=len(CODE), crc=zlib.crc32(CODE))


def bytes_after_the_end() -> bytes:
    return raw(deflated(CODE) + b"more", size=len(CODE), crc=zlib.crc32(CODE))


def stored_with_another_size() -> bytes:
    data = archive(("m.py", CODE), method=zipfile.ZIP_STORED)
    return patched(data, {_CENTRAL_SIZE: struct.pack("<L", 3)}, {_LOCAL_SIZE: struct.pack("<L", 3)})


def encrypted() -> bytes:
    return patched(named("m.py"), {_CENTRAL_FLAGS: b"\x01\x00"}, {_LOCAL_FLAGS: b"\x01\x00"})


def encrypted_in_its_own_header_only() -> bytes:
    return patched(named("m.py"), {}, {_LOCAL_FLAGS: b"\x01\x00"})


def other_method() -> bytes:
    return archive(("m.py", CODE), method=zipfile.ZIP_LZMA)


def two_names_for_one_file() -> bytes:
    data = named("m.py")
    return data.replace(b"m.py", b"n.py", 1)


def two_sizes_for_one_file() -> bytes:
    return patched(named("m.py"), {}, {_LOCAL_SIZE: struct.pack("<L", 7)})


def two_methods_for_one_file() -> bytes:
    return patched(named("m.py"), {}, {_LOCAL_METHOD: b"\x00\x00"})


def one_file_listed_twice() -> bytes:
    inner = archive(("n.py", CODE))
    packed = inner[: inner.index(b"PK\x01\x02")]
    # the first file holds the second, header and all, and the second entry points into it.
    outer = archive(("m.py", packed), ("n.py", CODE), method=zipfile.ZIP_STORED)
    inside = outer.index(packed)
    places = [place for place in range(len(outer)) if outer.startswith(b"PK\x01\x02", place)]
    changed = bytearray(outer)
    changed[places[1] : places[1] + _CENTRAL_OFFSET] = inner[inner.index(b"PK\x01\x02") :][
        :_CENTRAL_OFFSET
    ]
    changed[places[1] + _CENTRAL_OFFSET : places[1] + _CENTRAL_NAME] = struct.pack("<L", inside)
    return bytes(changed)


def header_that_is_none() -> bytes:
    return patched(named("m.py"), {_CENTRAL_OFFSET: struct.pack("<L", 3)})


def zip64_sizes() -> bytes:
    return patched(named("m.py"), {_CENTRAL_SIZE: b"\xff" * 4})


def zip64_end() -> bytes:
    data = named("m.py")
    return data[:-22] + b"PK\x06\x07" + bytes(16) + data[-22:]


def part_of_several() -> bytes:
    data = named("m.py")
    return data[:-18] + b"\x01\x00" + data[-16:]


def program_in_front() -> bytes:
    return b"#!/bin/sh\n" + named("m.py")


def bytes_behind() -> bytes:
    return named("m.py") + b"more"


def damaged_list() -> bytes:
    data = named("m.py")
    return patched(data, {0: b"PKxx"})


def list_that_breaks_off() -> bytes:
    data = named("m.py")
    return patched(data, {28: struct.pack("<H", 5000)})


def half() -> bytes:
    return named("m.py")[:40]


def no_zip() -> bytes:
    return b"\x1f\x8b" + bytes(100)


def nothing() -> bytes:
    return b""


Hostile = Callable[[], bytes]
HOSTILE: dict[Hostile, str] = {
    absolute_name: "'/etc/cron.d/job.py' is absolute",
    name_that_climbs: "leads out of the archive",
    name_with_a_dot: "or in circles",
    name_with_empty_parts: "or in circles",
    empty_name: "is absolute",
    backslash: "holds a backslash",
    drive: "'C:m.py' holds a colon",
    nul_in_a_name: "control characters",
    newline_in_a_name: "control characters",
    turned_around_name: "control characters",
    name_that_is_no_utf_8: "is not in UTF-8",
    long_name: "a name has 503 bytes, the limit is 400",
    deep_folders: "lies 41 folders deep, the limit is 16",
    link: "'m.py' is a symbolic link",
    pipe: "is a device, pipe or socket",
    folder_that_holds_bytes: "as a folder and as a file at once",
    folder_without_a_slash: "as a folder and as a file at once",
    two_of_one_name: "'m.py' is in the archive twice",
    names_that_differ_in_case: "'M.py' and 'm.py' differ in case or accents only",
    folders_that_differ_in_case: "'Lib' and 'lib' differ in case or accents only",
    names_that_differ_in_accents: "differ in case or accents only",
    file_and_folder: "'m.py' is a file and a folder at once",
    too_many_entries: "10001 entries, the limit is 10000",
    more_entries_than_it_says: "says that it holds 1 entries and lists 2",
    large_file: "unpacks to 134217729 bytes, the limit is 134217728",
    large_together: "the archive unpacks to 314572800 bytes, the limit is 268435456",
    bomb: "unpacks to 8388608 bytes from",
    bomb_that_says_it_is_small: "unpacks to more than the 100 bytes that the archive says",
    file_smaller_than_it_says: "does not match its size or checksum",
    wrong_checksum: "does not match its size or checksum",
    bytes_that_do_not_unpack: "cannot be unpacked",
    bytes_that_break_off: "breaks off",
    bytes_after_the_end: "holds bytes after its end",
    stored_with_another_size: "is stored with 15 bytes and said to have 3",
    encrypted: "is encrypted",
    encrypted_in_its_own_header_only: "described in two ways",
    other_method: "compressed by method 14",
    two_names_for_one_file: "described in two ways",
    two_sizes_for_one_file: "described in two ways",
    two_methods_for_one_file: "described in two ways",
    one_file_listed_twice: "shares bytes with another entry",
    header_that_is_none: "is not where the archive's list says",
    zip64_sizes: "zip64",
    zip64_end: "zip64",
    part_of_several: "one part of several",
    program_in_front: "other bytes before, between or after",
    bytes_behind: "other bytes before, between or after",
    damaged_list: "list of files is damaged",
    list_that_breaks_off: "list of files is damaged",
    half: "no zip file, or its end is missing",
    no_zip: "no zip file, or its end is missing",
    nothing: "no zip file, or its end is missing",
}
"""Each archive with what its refusal says."""
