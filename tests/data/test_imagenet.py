"""ImageNet's folders and shards: labels, cuts, and an error for whatever is not right."""

import io
import math
import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet as pq
from translution_runs.data import imagenet as module
from translution_runs.data.generated import generated
from translution_runs.data.imagenet import imagenet
from translution_runs.data.lazy_images import central_box, random_box, random_view

COUNTS = {"train": 6, "validation": 3}
CLASSES = ("n01", "n02", "n03")


def picture(seed, height=20, width=30):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def encode(array):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def folders(tmp_path):
    """Two training pictures of each class, one to validate on."""
    for number, name in enumerate(CLASSES):
        for split, each in (("train", 2), ("val", 1)):
            (tmp_path / split / name).mkdir(parents=True)
            for k in range(each):
                (tmp_path / split / name / f"{name}_{k}.PNG").write_bytes(encode(picture(10 * number + k)))
    return tmp_path


def read(root, split="train", counts=COUNTS):
    return imagenet(root, split, len(CLASSES), counts)


def test_classes_are_folders_in_the_order_of_their_names(folders):
    train, validation = read(folders), read(folders, "validation")
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2] and validation.labels.tolist() == [0, 1, 2]
    assert (len(train), train.classes, train.name, train.split) == (6, 3, "imagenet", "train")
    data, name = train.read(3)
    assert data == encode(picture(11)) and name.endswith("n02_1.PNG")


def test_shards_are_read_as_folders_are(folders, tmp_path_factory):
    root = tmp_path_factory.mktemp("shards")
    for number in range(2):
        rows = [(encode(picture(10 * (k // 2) + k % 2)), k // 2) for k in range(3 * number, 3 * number + 3)]
        table = pa.table({"image": pa.array([{"bytes": data, "path": "x"} for data, _ in rows]),
                          "label": [label for _, label in rows]})
        pq.write_table(table, root / f"train-{number:05}-of-00002.parquet", row_group_size=2)
    ours, theirs = read(root), read(folders)
    index = torch.tensor([5, 0, 3, 2])
    assert torch.equal(ours.labels, theirs.labels)
    assert torch.equal(ours.scaled(8).pixels(index), theirs.scaled(8).pixels(index))


def test_pixels_are_the_central_square_scaled(folders):
    found = read(folders).scaled(8).pixels(torch.tensor([2, 0]))
    for image, seed in zip(found, (10, 0), strict=True):
        square = Image.fromarray(picture(seed)).resize((8, 8), Image.Resampling.BICUBIC, box=(6.25, 1.25, 23.75, 18.75))
        expected = torch.from_numpy(np.array(square)).permute(2, 0, 1).float() / 255
        assert torch.equal(image, expected)
    assert read(folders).scaled(8).pixels(torch.tensor([], dtype=torch.int64)).shape == (0, 3, 8, 8)


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 2**31))
def test_a_random_part_lies_in_the_picture_and_has_a_fair_size(height, width, seed):
    left, top, right, bottom = random_box(height, width, torch.Generator().manual_seed(seed))
    assert 0 <= left < right <= width + 1e-9 and 0 <= top < bottom <= height + 1e-9
    central = central_box(height, width)
    if (left, top, right, bottom) != central:  # long pictures fall back to the square after ten tries
        assert 0.08 - 1e-9 <= (right - left) * (bottom - top) / (height * width) <= 1 + 1e-9
        assert 3 / 4 - 1e-9 <= (right - left) / (bottom - top) <= 4 / 3 + 1e-9
    side = 0.875 * min(height, width)
    assert central == pytest.approx(((width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2))


def test_random_parts_repeat_with_the_seed_and_cover_all_sizes(folders):
    images, index = read(folders).scaled(8), torch.tensor([0, 0, 1])
    a, b = (images.bytes(index, [4, 5, 4]) for _ in range(2))
    assert torch.equal(a, b) and not torch.equal(a[0], a[1])
    assert torch.equal(images.bytes(index[2:], [4])[0], a[2])  # whatever is read before
    areas = []
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        left, top, right, bottom = random_box(100, 100, generator)
        areas.append((right - left) * (bottom - top) / 1e4)
    assert min(areas) < 0.12 and max(areas) > 0.9 and 0.4 < math.fsum(areas) / 300 < 0.6


def refuses(message, root, split="train", error=ValueError, counts=COUNTS):
    with pytest.raises(error, match=message):
        read(root, split, counts)


def test_a_missing_split_is_said(tmp_path):
    refuses("imagenet's train split is missing: put its class folders into", tmp_path, error=FileNotFoundError)
    refuses("split: got 'test', expected one of", tmp_path, "test")


def test_missing_classes_and_pictures_are_said(folders):
    (folders / "train" / "n03" / "n03_0.PNG").unlink()
    refuses("5 train pictures, expected 6", folders)
    (folders / "train" / "n03" / "n03_1.PNG").unlink()
    refuses("n03: no pictures", folders)
    (folders / "train" / "n03").rmdir()
    refuses("2 class folders, expected 3", folders)


def test_files_that_change_are_noticed(folders):
    read(folders)
    path = folders / "train" / "n01" / "n01_0.PNG"
    path.write_bytes(path.read_bytes()[:-1])
    refuses("imagenet train: names and sizes: changed since it was first read", folders)


def test_a_damaged_picture_is_named_when_it_is_read(folders):
    path = folders / "train" / "n01" / "n01_0.PNG"
    path.write_bytes(path.read_bytes()[:90])
    images = read(folders)
    images.pixels(torch.tensor([1]))
    with pytest.raises(ValueError, match="n01_0.PNG: the picture is truncated or corrupted"):
        images.pixels(torch.tensor([0]))


def test_the_real_counts_are_the_default():
    assert module.CLASSES == 1000 and module.COUNTS == {"train": 1_281_167, "validation": 50_000}


def test_other_numbers_of_pictures_are_taken_where_none_are_asked_for(folders):
    assert [len(read(folders, split, counts=None)) for split in ("train", "validation")] == [6, 3]


def test_half_of_the_views_are_the_mirrored_part(folders):
    images, index = read(folders).scaled(8), torch.tensor([4])
    mirrored = [random_view(seed)[1] for seed in range(400)]
    assert 160 < sum(mirrored) < 240
    for seed in (mirrored.index(True), mirrored.index(False)):
        part = random_view(seed)[0](20, 30)
        expected = Image.fromarray(picture(20)).resize((8, 8), Image.Resampling.BICUBIC, box=part)
        found = images.bytes(index, [seed])[0].permute(1, 2, 0).numpy()
        assert np.array_equal(found[:, ::-1] if mirrored[seed] else found, np.array(expected))


def test_random_parts_are_distributed_as_kornias():
    from kornia.augmentation import RandomResizedCrop
    from scipy.stats import ks_2samp

    torch.manual_seed(0)
    theirs = RandomResizedCrop((8, 8), scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
    corners = theirs.forward_parameters(torch.Size([4000, 3, 400, 500]))["src"]
    sides = corners[:, 2] - corners[:, 0]
    generator = torch.Generator().manual_seed(1)
    ours = [random_box(400, 500, generator) for _ in range(4000)]
    area, shape = sides.prod(1), (sides[:, 0] / sides[:, 1]).log()
    for found, expected in (([(b[2] - b[0]) * (b[3] - b[1]) for b in ours], area),
                            ([math.log((b[2] - b[0]) / (b[3] - b[1])) for b in ours], shape),
                            ([b[0] for b in ours], corners[:, 0, 0]), ([b[1] for b in ours], corners[:, 0, 1])):
        assert ks_2samp(found, expected.numpy()).pvalue > 1e-3


def test_a_part_of_the_set_is_taken_evenly(folders):
    images = read(folders)
    some = images.first(3)
    assert some.labels.tolist() == [0, 1, 2] and [some.read(k)[1][-8:] for k in range(3)] == [
        f"{name}_0.PNG"[-8:] for name in CLASSES]
    assert images.first(0) is images and images.first(6) is images
    with pytest.raises(ValueError, match="count: got 7, expected 0 .all. to 6"):
        images.first(7)


def test_one_seed_for_each_picture(folders):
    with pytest.raises(ValueError, match="seeds: got 1 for 2 pictures"):
        read(folders).bytes(torch.tensor([0, 1]), [3])


def test_what_reads_goes_to_other_processes_and_is_small(folders):
    images = read(folders)
    there = pickle.loads(pickle.dumps(images.first(4)))
    assert there.read(1) == images.first(4).read(1) and len(images.read) == 6
    big = module.Files(folders, [f"n{k // 1300:08}/n{k // 1300:08}_{k:05}.JPEG" for k in range(13_000)])
    assert len(big.text) + big.ends.nbytes < 40 * 13_000 and str(big.path(12_999)).endswith("n00000009_12999.JPEG")


def test_generated_pictures_are_jpeg_files_decided_by_their_number():
    images = generated("train", 1_281_167, 1000)
    assert (len(images), images.labels[0], images.labels[-1], images.classes) == (1_281_167, 0, 999, 1000)
    counts = images.labels.bincount()
    assert (counts.min(), counts.max()) == (1281, 1282)
    data, _ = images.read(7)
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.format == "JPEG" and all(40 <= side <= 100 for side in picture.size)
    assert data == images.read(7)[0] != images.read(8)[0] and data != generated("validation", 50_000, 1000).read(7)[0]
    assert images.sha256 != generated("train", 1_281_166, 1000).sha256


@pytest.mark.parametrize(("split", "count", "message"), [
    ("test", 10, "split: got 'test', expected one of"), ("train", 4, "got 4 pictures in 5 classes")])
def test_what_cannot_be_generated_is_refused(split, count, message):
    with pytest.raises(ValueError, match=message):
        generated(split, count, 5)
