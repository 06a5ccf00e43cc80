"""Images in parquet files: the pixels that went in, and an error for whatever is not right."""

import hashlib
import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet as pq
from translution_runs.data import ImageSource, checksums, parquet, pictures

SOURCE = ImageSource("small", 8, 3, 10, {"train": 6, "test": 3}, image="img")


def pixels(count, seed=0, channels=3, size=8):
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, channels), np.uint8)


def encode(array, form="PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array).save(stream, form)
    return stream.getvalue()


def write(path, encoded, labels, image="img", label="label"):
    column = pa.array([{"bytes": data, "path": None} for data in encoded],
                      pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    pq.write_table(pa.table({image: column, label: pa.array(labels, pa.int64())}), path)
    return path


def sample(root, split="train", counts=(4, 2), form="PNG"):
    """Shards of a split, and the images in them."""
    images, paths, start = pixels(sum(counts), len(split)), [], 0
    for number, count in enumerate(counts):
        name = root / f"{split}-{number:05}-of-{len(counts):05}.parquet"
        part = images[start:start + count]
        paths.append(write(name, [encode(one, form) for one in part], [(start + k) % 10 for k in range(count)]))
        start += count
    return images, paths


def test_pixels_labels_and_order_are_those_written(tmp_path):
    images, paths = sample(tmp_path)
    found = parquet.read(SOURCE, parquet.find(tmp_path, "train"), "train")
    assert np.array_equal(found.images.permute(0, 2, 3, 1).numpy(), images)
    assert found.labels.tolist() == [0, 1, 2, 3, 4, 5] and (found.name, found.split) == ("small", "train")
    assert found.sha256 == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_grey_images_have_one_channel(tmp_path):
    grey = pixels(3, channels=1)
    write(tmp_path / "test-0.parquet", [encode(one) for one in grey], [0, 1, 2])
    found = parquet.read(replace(SOURCE, channels=1), parquet.find(tmp_path, "test"), "test")
    assert np.array_equal(found.images[:, 0].numpy(), grey[..., 0])


def test_files_may_lie_one_folder_deeper(tmp_path):
    (tmp_path / "plain_text").mkdir()
    sample(tmp_path / "plain_text")
    assert len(parquet.find(tmp_path, "train")) == 2 and parquet.find(tmp_path, "test") == []


def test_jpeg_is_said(tmp_path):
    images, paths = sample(tmp_path, "test", (3,), "JPEG")
    found = parquet.read(SOURCE, paths, "test")
    assert found.name == "small, re-encoded as JPEG"
    expected = np.stack([np.array(Image.open(io.BytesIO(encode(one, "JPEG")))) for one in images])
    assert np.array_equal(found.images.permute(0, 2, 3, 1).numpy(), expected) and not np.array_equal(expected, images)


def refuses(message, source, paths, split="train", error=ValueError):
    with pytest.raises(error, match=message):
        parquet.read(source, paths, split)


def test_a_missing_shard_is_named(tmp_path):
    _, paths = sample(tmp_path, counts=(2, 2, 2))
    paths[1].unlink()
    with pytest.raises(FileNotFoundError, match="train-00001-of-00003.parquet is missing: put it into the folder"):
        parquet.find(tmp_path, "train")


@given(st.floats(0, 0.999))
def test_a_truncated_file_is_refused(tmp_path_factory, part):
    root = tmp_path_factory.mktemp("cut")
    _, paths = sample(root)
    data = paths[1].read_bytes()
    paths[1].write_bytes(data[: int(part * len(data))])
    refuses(f"{paths[1].name}: truncated or corrupted, not a whole parquet file", SOURCE, paths)


@given(st.floats(0, 0.999), st.integers(1, 255))
def test_one_changed_byte_is_noticed_once_the_file_was_read(tmp_path_factory, where, change):
    root = tmp_path_factory.mktemp("changed")
    _, paths = sample(root)
    parquet.read(SOURCE, paths, "train")
    data = bytearray(paths[0].read_bytes())
    data[int(where * len(data))] ^= change
    paths[0].write_bytes(bytes(data))
    refuses(f"{paths[0].name}: (truncated or corrupted|changed since|mislabelled)", SOURCE, paths)


def test_what_is_read_first_is_recorded(tmp_path):
    _, paths = sample(tmp_path)
    parquet.read(SOURCE, paths, "train")
    assert checksums.read_lock(tmp_path) == {path.name: checksums.digest(path) for path in paths}
    write(paths[0], [encode(one) for one in pixels(4, 9)], [0] * 4)
    refuses("train-00000-of-00002.parquet: changed since it was first read", SOURCE, paths)


def test_known_files_are_compared_and_not_recorded(tmp_path):
    _, (train,) = sample(tmp_path, "train", (6,))
    _, (test,) = sample(tmp_path, "test", (3,))
    known = replace(SOURCE, sha256={path.name: checksums.digest(path) for path in (train, test)})
    parquet.read(known, [train], "train")
    assert checksums.read_lock(tmp_path) == {}
    train.write_bytes(test.read_bytes())
    refuses("train-00000-of-00001.parquet: mislabelled, this is the content of test-00000-of-00001", known, [train])


def test_the_test_images_under_the_name_of_the_training_images(tmp_path):
    _, paths = sample(tmp_path, "train", (3,))
    refuses("3 images, expected the 6 of small's train split", SOURCE, paths)


@pytest.mark.parametrize(("label", "message"), [(10, "the label 10, expected 0 to 9"), (-1, "the label -1"),
                                                (None, "the label None")])
def test_unknown_classes_are_refused(tmp_path, label, message):
    path = write(tmp_path / "test-0.parquet", [encode(one) for one in pixels(3)], [0, 1, label])
    refuses(message, SOURCE, [path], "test")


def test_other_columns_are_refused(tmp_path):
    path = write(tmp_path / "test-0.parquet", [encode(one) for one in pixels(3)], [0, 1, 2], image="image")
    refuses("mislabelled, the columns are image, label; expected img, label", SOURCE, [path], "test")


@pytest.mark.parametrize(("damage", "message"), [
    (lambda data: data[:60], "test-0.parquet, picture 1: the picture is truncated or corrupted"),
    (lambda data: b"no picture", "test-0.parquet, picture 1: 10 bytes that are no picture"),
    (lambda data: data[:50] + b"\xff" * 20 + data[70:], "test-0.parquet, picture 1: the picture is truncated or corr"),
    (lambda data: encode(pixels(1, size=9)[0]), "test-0.parquet, picture 1: 9 by 9 pixels, expected 8 by 8"),
])
def test_a_damaged_picture_is_named(tmp_path, damage, message):
    encoded = [encode(one) for one in pixels(3)]
    encoded[1] = damage(encoded[1])
    refuses(message, SOURCE, [write(tmp_path / "test-0.parquet", encoded, [0, 1, 2])], "test")


def test_an_unknown_split(tmp_path):
    refuses("split: got 'valid', expected one of", SOURCE, [], "valid")


def test_decode_converts_to_the_channels_asked_for():
    one = pixels(1)[0]
    grey = pictures.decode(encode(one), 1, "x")
    assert np.array_equal(grey[0].numpy(), np.array(Image.fromarray(one).convert("L")))
    assert np.array_equal(pictures.decode(encode(one), 3, "x").numpy(), one.transpose(2, 0, 1))
