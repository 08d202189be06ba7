"""Pictures from every layout that CIFAR-10, or anybody's folder, comes in."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch

from accordion_workers.data.cifar import load_images
from accordion_workers.data.files import DataError
from accordion_workers.data.images import PADDING, ImageData, Images, Normalization, augmented
from accordion_workers.models.resnet import PARAMETERS, ResNet18
from accordion_workers.training.train_state import seeded_generators
from tests.unit.workers import datasets

ROWS = [(number % 10, datasets.picture(number % 10, number)) for number in range(20)]


def channels_first(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def refusal(path) -> str:
    with pytest.raises(DataError) as caught:
        load_images(path)
    return str(caught.value)


@pytest.mark.parametrize("pack", [datasets.folder, datasets.zipped, datasets.tarred])
def test_pictures_with_a_split_are_read_from_a_folder_a_zip_and_a_tar_archive(tmp_path, pack):
    found = load_images(pack(tmp_path / "data", datasets.pictures(4, held_out=2, top="cifar/")))
    assert (len(found.train), len(found.held_out), found.classes) == (12, 6, 3)
    assert found.train.targets.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert torch.equal(found.train.pixels[5], channels_first(datasets.picture(1, 1)))
    assert torch.equal(found.held_out.pixels[5], channels_first(datasets.picture(2, 5)))


def test_a_sixth_of_each_class_is_held_out_where_the_folders_do_not_say_which(tmp_path):
    path = datasets.folder(tmp_path, datasets.pictures(12))
    found, again = load_images(path), load_images(path)
    assert found.train.targets.bincount().tolist() == [10, 10, 10]
    assert found.held_out.targets.bincount().tolist() == [2, 2, 2]
    assert torch.equal(found.held_out.pixels, again.held_out.pixels)
    both = torch.cat([found.train.pixels, found.held_out.pixels]).flatten(1)
    assert len({row.numpy().tobytes() for row in both}) == 36


def test_a_limit_takes_the_same_part_of_every_class(tmp_path):
    path = datasets.folder(tmp_path, datasets.pictures(8, held_out=4))
    found = load_images(path, samples=6, eval_samples=3)
    assert found.train.targets.bincount().tolist() == [2, 2, 2]
    assert found.held_out.targets.bincount().tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "batch", [datasets.binary_batch, datasets.python2_batch, datasets.python3_batch]
)
@pytest.mark.parametrize("pack", [datasets.folder, datasets.tarred])
def test_the_official_archives_are_read(tmp_path, batch, pack):
    suffix = ".bin" if batch is datasets.binary_batch else ""
    names = [f"cifar-10/{name}{suffix}" for name in ("data_batch_2", "data_batch_1", "test_batch")]
    parts = dict(zip(names, (batch(ROWS[8:16]), batch(ROWS[:8]), batch(ROWS[16:])), strict=True))
    found = load_images(
        pack(tmp_path / "data", {**parts, "cifar-10/batches.meta.txt": b"airplane"})
    )
    assert found.train.targets.tolist() == [label for label, _ in ROWS[:16]]
    assert found.held_out.targets.tolist() == [label for label, _ in ROWS[16:]]
    assert torch.equal(found.train.pixels[9], channels_first(ROWS[9][1]))


def test_a_limit_holds_for_the_official_archives_too(tmp_path):
    files = {
        "data_batch_1.bin": datasets.binary_batch(ROWS),
        "test_batch.bin": datasets.binary_batch(ROWS),
    }
    found = load_images(datasets.folder(tmp_path, files), samples=10)
    assert (sorted(found.train.targets.tolist()), len(found.held_out)) == ([*range(10)], 20)


def test_the_example_of_a_pickle_is_what_numpy_reads_as_such():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # the old name of numpy's module
        saved = pickle.loads(datasets.python2_batch(ROWS), encoding="bytes")
    assert saved[b"labels"] == [label for label, _ in ROWS]
    assert np.array_equal(saved[b"data"][3], ROWS[3][1].transpose(2, 0, 1).reshape(-1))


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("hostile",)


class HostileArray:
    def __reduce__(self):
        return np.load, ("secret.npy",)


@pytest.mark.parametrize("value", [Hostile(), HostileArray(), {"labels": [0], "data": Hostile()}])
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_asks_for_anything_else_is_refused_and_nothing_runs(
    tmp_path, monkeypatch, value, protocol
):
    monkeypatch.chdir(tmp_path)
    datasets.folder(
        tmp_path / "data",
        {"data_batch_1": pickle.dumps(value, protocol=protocol), "test_batch": b""},
    )
    assert "which no pickle of CIFAR needs" in refusal(tmp_path / "data")
    assert not (tmp_path / "hostile").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        pickle.dumps([1, 2]),
        pickle.dumps({"labels": [0]}),
        pickle.dumps({"labels": [0], "data": np.zeros((1, 3072), dtype=np.float64)}, protocol=2),
        pickle.dumps({"labels": [0], "data": np.array([{}, "object"], dtype=object)}, protocol=2),
        datasets.python2_batch(ROWS)[:-200],
        datasets.python2_batch(ROWS).replace(b"u1", b"u2"),
    ],
)
def test_a_pickle_that_is_damaged_or_of_something_else_is_refused_by_name(tmp_path, content):
    datasets.folder(tmp_path, {"data_batch_1": content, "test_batch": datasets.python2_batch(ROWS)})
    assert refusal(tmp_path).startswith("data_batch_1 ")


def a_picture(side: int) -> bytes:
    return datasets.png(np.zeros((side, side, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"readme.txt": b"x"}, "holds 1 files, and no pictures among them"),
        (
            {"1.png": a_picture(32)},
            "picture '1.png' of .* lies in no folder; make a folder for each class",
        ),
        ({"cat/1.png": a_picture(32)}, "lie in one folder, 'cat'; make a folder for each class"),
        (
            {"cat/1.png": a_picture(32), "dog/1.png": a_picture(28)},
            "'dog/1.png' has 28 x 28 pixels; .* takes 32 x 32",
        ),
        ({"cat/1.png": a_picture(32), "dog/1.png": b"not a png"}, "'dog/1.png' cannot be read"),
        (
            {"cat/1.png": a_picture(32), "dog/1.png": a_picture(32)[:60]},
            "'dog/1.png' cannot be read",
        ),
        (
            {"data_batch_1.bin": b"x" * 3072, "test_batch.bin": b""},
            "data_batch_1.bin has 3072 bytes, no multiple of 3073",
        ),
        (
            {"data_batch_1.bin": b"\x0a" + bytes(3072)},
            "data_batch_1.bin has label 10; those of CIFAR-10 are 0 to 9",
        ),
        ({"data_batch_1.bin": bytes(3073)}, "has no test_batch file"),
    ],
)
def test_data_that_cannot_be_used_are_refused_with_the_way_out(tmp_path, files, sentence):
    datasets.folder(tmp_path, files)
    with pytest.raises(DataError, match=sentence):
        load_images(tmp_path)


def test_a_path_that_is_not_there_or_no_archive_is_refused_with_its_name(tmp_path):
    assert f"there is no data at '{tmp_path}/nowhere'" in refusal(tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"x")
    assert "is neither a folder nor a zip or tar archive" in refusal(tmp_path / "file")


@pytest.mark.parametrize("pack", [datasets.zipped, datasets.tarred])
def test_a_torn_archive_is_refused_wherever_it_ends(tmp_path, pack):
    whole = pack(tmp_path / "whole", datasets.pictures(4, held_out=2)).read_bytes()
    for part in range(1, 20):
        (tmp_path / "torn").write_bytes(whole[: len(whole) * part // 20])
        assert refusal(tmp_path / "torn").startswith(f"'{tmp_path}/torn'")


def test_a_byte_that_was_changed_on_the_way_is_noticed(tmp_path):
    path = datasets.zipped(tmp_path / "data.zip", datasets.pictures(4, held_out=2))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert "cannot be read to its end" in refusal(path)


def test_files_that_begin_with_a_dot_are_no_pictures(tmp_path):
    files = {**datasets.pictures(4, held_out=2), "__MACOSX/train/cat/._000.png": b"x"}
    assert len(load_images(datasets.folder(tmp_path, files)).train) == 12


def test_training_pictures_have_mean_zero_and_deviation_one_in_each_channel(tmp_path):
    images = load_images(datasets.folder(tmp_path, datasets.pictures(8))).train
    inputs, _ = ImageData(images=images, normalization=Normalization.of(images)).batch(
        torch.arange(len(images))
    )
    assert torch.allclose(
        inputs.mean((0, 2, 3)), torch.zeros(3), atol=1e-5
    )  # float32, 20,000 values
    assert torch.allclose(inputs.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5)


def test_pictures_of_one_colour_stay_finite():
    images = Images(torch.full((2, 3, 32, 32), 7, dtype=torch.uint8), torch.tensor([0, 1]))
    assert torch.equal(Normalization.of(images)(images.pixels), torch.zeros(2, 3, 32, 32))


def windows_of(pixels: torch.Tensor) -> set[bytes]:
    """All crops of a picture and of its mirror image that augmentation may give."""
    padded = torch.nn.functional.pad(pixels, (PADDING,) * 4)
    places = [(top, left) for top in range(2 * PADDING + 1) for left in range(2 * PADDING + 1)]
    crops = [padded[:, top : top + 32, left : left + 32] for top, left in places]
    return {
        crop.contiguous().numpy().tobytes() for whole in crops for crop in (whole, whole.flip(2))
    }


def test_augmentation_gives_every_crop_and_every_mirrored_one_and_nothing_else():
    pixels = channels_first(datasets.picture(0, 0))
    with seeded_generators(0, "cpu"):
        # 162 kinds: the chance that one of them is missing among 4,000 is 3e-9
        drawn = {picture.numpy().tobytes() for picture in augmented(pixels.expand(4000, 3, 32, 32))}
    assert drawn == windows_of(pixels)


def test_augmentation_repeats_with_the_seed_and_leaves_the_data_alone(tmp_path):
    images = load_images(datasets.folder(tmp_path, datasets.pictures(8))).train
    before = images.pixels.clone()
    data = ImageData(images=images, normalization=Normalization.of(images), augment=True)
    draws = []
    for seed in (1, 1, 2):
        with seeded_generators(seed, "cpu"):
            draws.append(data.batch(torch.arange(8))[0])
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(images.pixels, before)


def test_resnet18_has_the_published_number_of_parameters_and_takes_other_widths():
    assert sum(parameter.numel() for parameter in ResNet18(10).parameters()) == PARAMETERS
    assert ResNet18(7, channels=4)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("channels", [4, 8])
def test_gradients_do_not_depend_on_the_order_of_pixels_in_memory(channels):
    """oneDNN's strided 1 x 1 convolutions write beyond their memory with so few channels."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ResNet18(7, channels)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    gradients = []
    for order in (torch.contiguous_format, torch.channels_last):
        model.zero_grad()
        model(images.to(memory_format=order)).logsumexp(1).sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
