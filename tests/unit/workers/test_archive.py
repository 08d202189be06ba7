"""Archives from people: what is read, and what is refused with which sentence."""

from __future__ import annotations

import io
import random
import shutil
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from accordion_workers.user_code.archive import (
    CodeError,
    check_archive,
    list_entries,
    top_level_modules,
    unpack_archive,
)
from tests.unit.workers.archives import (
    CODE,
    HOSTILE,
    Hostile,
    archive,
    bomb_that_says_it_is_small,
    named,
)


def opened(data: bytes) -> io.BytesIO:
    return io.BytesIO(data)


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.__name__)
def test_a_hostile_archive_is_refused_with_its_own_sentence(hostile: Hostile):
    with pytest.raises(CodeError) as caught:
        check_archive(opened(hostile()))
    assert HOSTILE[hostile] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.__name__)
def test_a_hostile_archive_writes_nothing_outside_the_folder_it_is_unpacked_in(
    tmp_path: Path, hostile: Hostile
):
    inside = tmp_path / "inside"
    inside.mkdir()
    with pytest.raises(CodeError):
        unpack_archive(opened(hostile()), inside)
    assert list(tmp_path.iterdir()) == [inside]
    assert not [path for path in inside.rglob("*") if path.is_symlink()]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_ordinary_archive_is_unpacked_as_zipfile_does(tmp_path: Path, method: int):
    noise = random.Random(0).randbytes(300_000)
    data = archive(
        ("a/", b""), ("a/b/m.py", CODE), ("weights.bin", noise), ("\u00fc.py", b""), method=method
    )
    entries = unpack_archive(opened(data), tmp_path)
    with zipfile.ZipFile(opened(data)) as zipped:
        assert [entry.name for entry in entries] == [
            name.removesuffix("/") for name in zipped.namelist()
        ]
        for entry in entries:
            if not entry.is_folder:
                assert (tmp_path / entry.name).read_bytes() == zipped.read(entry.name)


def test_what_shutil_packs_is_read(tmp_path: Path):
    (tmp_path / "code" / "lib").mkdir(parents=True)
    (tmp_path / "code" / "lib" / "m.py").write_bytes(CODE)
    made = shutil.make_archive(str(tmp_path / "made"), "zip", tmp_path / "code")
    with Path(made).open("rb") as file:
        assert [entry.name for entry in check_archive(file)] == ["lib", "lib/m.py"]


def test_an_archive_that_was_written_into_a_pipe_is_read():
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: object) -> int:
            raise io.UnsupportedOperation

        def tell(self) -> int:
            raise io.UnsupportedOperation

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("m.py", CODE)
    assert [entry.name for entry in check_archive(opened(pipe.getvalue()))] == ["m.py"]


def test_a_bomb_takes_no_more_memory_than_a_few_chunks():
    data = bomb_that_says_it_is_small()
    tracemalloc.start()
    with pytest.raises(CodeError):
        check_archive(opened(data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # a chunk is 64 KiB and the file 8 MiB.
    assert peak < 1 << 20


@pytest.mark.parametrize("seed", range(20))
def test_any_damage_is_refused_or_harmless(seed: int):
    chance = random.Random(seed)
    data = bytearray(archive(("a/m.py", CODE * 20), ("n.py", CODE)))
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            entries = check_archive(opened(bytes(damaged)))
        except CodeError:
            continue
        assert all(not entry.name.startswith("/") and ".." not in entry.name for entry in entries)


def test_an_archive_cut_anywhere_is_refused():
    data = archive(("a/m.py", CODE), ("n.py", CODE))
    for length in range(len(data)):
        with pytest.raises(CodeError):
            check_archive(opened(data[:length]))


def test_the_list_alone_says_what_there_is():
    assert [entry.size_bytes for entry in list_entries(opened(named("m.py")))] == [len(CODE)]


def test_modules_are_found_by_what_import_would_take():
    names = [
        "m.py",
        "lib/inner/n.py",
        "data/x.csv",
        "fast.abi3.so",
        "README.md",
        "__init__.py",
        "__main__.py",
    ]
    assert top_level_modules(names) == {
        "m": "m.py",
        "lib": "lib/inner/n.py",
        "fast": "fast.abi3.so",
    }
