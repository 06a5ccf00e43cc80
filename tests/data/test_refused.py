"""Input that somebody damaged or made up: refused with file and place, never recorded as right, and no harm done."""

import gzip
import io
import os
import struct
import threading
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet as pq
from translution_runs.data import ImageSource, checksums, parquet, pictures, text, tokens
from translution_runs.data.idx_source import FASHION_MNIST, IDXSource, read_source
from translution_runs.data.imagenet import imagenet
from translution_runs.data.tokenisers import Characters

SOURCE = ImageSource("small", 8, 3, 10, {"train": 3, "test": 3})


def png(size=8, seed=0) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def claiming(height: int, width: int) -> bytes:
    """A PNG whose header claims to be so large, and that holds nothing."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def written(path: Path, images: pa.Array, labels: pa.Array) -> Path:
    pq.write_table(pa.table({"image": images, "label": labels}), path)
    return path


def column(encoded=None) -> pa.Array:
    rows = [{"bytes": one, "path": None} for one in (encoded or [png(seed=k) for k in range(3)])]
    return pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))


def read(folder: Path, source=SOURCE):
    return parquet.read(source, parquet.find(folder, "train"), "train")


@pytest.mark.parametrize(("labels", "kind"), [
    (pa.array([0.5, 1.5, 2.0]), "double"), (pa.array([True, False, True]), "bool"),
    (pa.array(["a", "b", "c"]), "string"), (pa.array([1, 2, 3], pa.float32()), "float"),
])
def test_labels_of_another_type_are_refused_and_a_repaired_file_is_accepted(tmp_path, labels, kind):
    path = written(tmp_path / "train-0.parquet", column(), labels)
    with pytest.raises(ValueError, match=rf"{path.name}: the column 'label' has the type {kind}, expected whole"):
        read(tmp_path)
    assert not (tmp_path / checksums.LOCK).exists()
    written(path, column(), pa.array([0, 1, 2], pa.int8()))
    assert read(tmp_path).labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize("images", [
    pa.array([b"1", b"2", b"3"]), pa.array([1, 2, 3]), pa.array(["a", "b", "c"]),
    pa.array([{"path": "x"}] * 3, pa.struct([("path", pa.string())])),
    pa.array([{"bytes": "x"}] * 3, pa.struct([("bytes", pa.string())])),
])
def test_pictures_of_another_type_are_refused(tmp_path, images):
    path = written(tmp_path / "train-0.parquet", images, pa.array([0, 1, 2]))
    with pytest.raises(ValueError, match=rf"{path.name}: the column 'image' has the type .*, expected structs"):
        read(tmp_path)


def test_documents_that_are_no_texts_are_refused(tmp_path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "train-0.parquet")
    with pytest.raises(ValueError, match=r"train-0.parquet: the column 'text' has the type int64, expected strings"):
        list(text.from_files(tmp_path))


def test_a_damaged_file_of_a_known_set_is_refused(tmp_path):
    """Known files are JPEG here: a byte of a picture may change without a word from the decoder."""
    encoded = []
    for k in range(3):
        stream = io.BytesIO()
        Image.open(io.BytesIO(png(seed=k))).save(stream, "JPEG")
        encoded.append(stream.getvalue())
    path = written(tmp_path / "train-0.parquet", column(encoded), pa.array([0, 1, 2]))
    known = replace(SOURCE, sha256={path.name: checksums.digest(path)})
    assert read(tmp_path, known).name == "small, re-encoded as JPEG"
    written(path, column(encoded[::-1]), pa.array([0, 1, 2]))
    with pytest.raises(ValueError, match=r"train-0.parquet: truncated or corrupted, its sha256 is"):
        read(tmp_path, known)
    written(path, column(), pa.array([0, 1, 2]))  # the same pictures as their makers have them
    assert read(tmp_path, known).name == "small"


@pytest.mark.parametrize("size", [(12_000, 12_000), (30_000, 30_000), (8, 9)])
def test_a_picture_of_another_size_is_refused_before_it_is_decoded(tmp_path, size):
    written(tmp_path / "train-0.parquet", column([png(), claiming(*size), png()]), pa.array([0, 1, 2]))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"train-0.parquet, picture 1: (8 by 9|more than 90|.* at most 90)"):
        read(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_no_format_is_opened_that_starts_another_program(tmp_path, monkeypatch):
    started = tmp_path / "started"
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {started}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    for forms in (eps, b"GIF89a", b"BM" + bytes(60), b"II*\0" + bytes(60)):
        with pytest.raises(ValueError, match="here: .* no picture in JPEG or PNG"):
            pictures.decode(forms, 3, "here")
    assert not started.exists()


def small_idx() -> tuple[dict[str, bytes], IDXSource]:
    images = struct.pack(">IIII", 0x803, 3, 28, 28) + bytes(3 * 784)
    labels = struct.pack(">II", 0x801, 3) + bytes([0, 1, 2])
    files = dict(zip(FASHION_MNIST.files["test"], (images, labels), strict=True))
    return files, IDXSource("small", {"test": FASHION_MNIST.files["test"]}, {}, most=4_000)


def test_compressed_files_are_read_no_further_than_the_largest_file_of_the_set(tmp_path):
    files, source = small_idx()
    for name, data in files.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    bomb = tmp_path / f"{source.files['test'][1]}.gz"
    bomb.write_bytes(gzip.compress(bytes(200_000_000), 1))
    tracemalloc.start()
    with pytest.raises(ValueError, match=rf"{bomb.name}: holds more than 4,000 bytes"):
        read_source(source, tmp_path, "test")
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_what_was_refused_is_not_recorded_and_a_repaired_file_is_accepted(tmp_path):
    files, source = small_idx()
    images, labels = source.files["test"]
    (tmp_path / images).write_bytes(files[images])
    (tmp_path / labels).write_bytes(files[labels][:-1] + bytes([77]))
    with pytest.raises(ValueError, match="the label 77, expected 0 to 9"):
        read_source(source, tmp_path, "test")
    (tmp_path / labels).write_bytes(files[labels])
    assert read_source(source, tmp_path, "test").labels.tolist() == [0, 1, 2]

    poem = tmp_path / "poem.txt"
    poem.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"poem.txt: not a text in UTF-8"):
        text.load_text(str(poem))
    poem.write_bytes(b"to be or not to be")
    assert len(text.load_text(str(poem))) == 16
    poem.write_bytes(b"to be, or not to be")
    with pytest.raises(ValueError, match=r"poem.txt: changed since it was first read"):
        text.load_text(str(poem))


@pytest.mark.parametrize("name", ["a\nb.txt", "a\rb.txt", "a\u2028b.txt", "\udcff.txt"])
def test_names_that_no_line_holds_are_refused_and_the_folder_stays_readable(tmp_path, name):
    (tmp_path / "good.txt").write_bytes(b"good")
    text.load_text(str(tmp_path / "good.txt"))
    path = Path(os.fsdecode(os.fsencode(tmp_path / name)))
    path.write_bytes(b"text")
    with pytest.raises(ValueError, match="a name with a line break, or one that is not UTF-8; rename it"):
        text.load_text(str(path))
    assert text.load_text(str(tmp_path / "good.txt")).sha256["good.txt"]


@pytest.fixture
def classes(tmp_path):
    for split in ("train", "val"):
        for k in range(2):
            (tmp_path / split / f"n{k}").mkdir(parents=True)
            (tmp_path / split / f"n{k}" / "0.png").write_bytes(png(20, k))
    return tmp_path


def pictures_of(root):
    return imagenet(root, "train", 2, {"train": 2, "validation": 2})


def test_a_pipe_among_the_pictures_is_refused_and_hangs_nobody(classes):
    (classes / "train" / "n0" / "0.png").unlink()
    os.mkfifo(classes / "train" / "n0" / "0.png")
    found = []
    reader = threading.Thread(target=lambda: found.append(pytest.raises(ValueError, pictures_of, classes)), daemon=True)
    reader.start()
    reader.join(30)
    assert "0.png: not a file, expected a picture" in str(found[0].value)


@pytest.mark.parametrize("name", ["x\ny.png", "\udcff.png"])
def test_names_of_pictures(classes, name):
    Path(os.fsdecode(os.fsencode(classes / "train" / "n1" / name))).write_bytes(png(20))
    with pytest.raises(ValueError, match="a name with a line break, or one that is not UTF-8"):
        pictures_of(classes)


def test_an_empty_or_damaged_picture_is_accepted_once_it_is_repaired(classes):
    path = classes / "train" / "n1" / "0.png"
    whole = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"0.png: an empty file, expected a picture"):
        pictures_of(classes)
    path.write_bytes(whole[:-200])
    cut = pictures_of(classes)
    with pytest.raises(ValueError, match=r"0.png: the picture is truncated or corrupted"):
        cut.pixels(cut.labels)
    path.write_bytes(whole)
    again = pictures_of(classes)
    assert again.pixels(again.labels).shape == (2, 3, 224, 224)
    path.write_bytes(png(21))
    with pytest.raises(ValueError, match="changed since it was first read"):
        pictures_of(classes)


def test_more_characters_than_numbers(tmp_path):
    path = tmp_path / "all.txt"
    many = "".join(chr(k) for k in range(1, 70_000) if not 0xD800 <= k < 0xE000)
    path.write_text(many, encoding="utf-8", newline="")
    with pytest.raises(ValueError, match=r"all.txt: 67,951 different characters, expected at most 65,536"):
        text.load_text(str(path))


def test_a_failed_packing_leaves_nothing_behind(tmp_path):
    def documents():
        yield "ab"
        raise ValueError("damaged")
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            tokens.pack(documents(), Characters(["ab"]), tmp_path / "text.tokens", {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("note", "message"), [
    ('{"tokens": 1e400, "sha256": "x"}', "damaged"), ('{"tokens": ' + "[" * 100_000, "damaged"), ("[]", "damaged")])
def test_a_forged_note_beside_tokens(tmp_path, note, message):
    path = tmp_path / "text.tokens"
    path.write_bytes(b"\0\0")
    path.with_name("text.tokens.json").write_text(note)
    with pytest.raises(ValueError, match=rf"text.tokens.json: {message}"):
        tokens.read_pack(path, 10)


def test_tokens_beyond_the_vocabulary_are_refused(tmp_path):
    path = tmp_path / "text.tokens"
    tokens.pack(["abc"], Characters(["abc"]), path, {})
    assert tokens.read_pack(path, 3)[0].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"text.tokens: the token 2, expected 0 to 1"):
        tokens.read_pack(path, 2)


def test_a_text_that_two_processes_pack_at_once_is_whole(tmp_path, monkeypatch):
    """The second begins and ends while the first is at work."""
    path, letters = tmp_path / "text.tokens", Characters(["abc"])

    def documents():
        yield "ab"
        monkeypatch.setattr(os, "getpid", lambda: 2)
        tokens.pack(["ab", "c"], letters, path, {})
        yield "c"

    monkeypatch.setattr(os, "getpid", lambda: 1)
    tokens.pack(documents(), letters, path, {})
    assert sorted(one.name for one in tmp_path.iterdir()) == ["text.tokens", "text.tokens.json"]
    assert tokens.read_pack(path, 3)[0].tolist() == [0, 1, 2]
