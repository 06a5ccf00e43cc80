"""Texts, tokens and windows: what is encoded comes back, splits do not overlap, damage is refused."""

import gzip
import hashlib
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet as pq
from translution_runs.data import text as module
from translution_runs.data import tokenisers
from translution_runs.data.text import TEXTS, in_validation, load_text
from translution_runs.data.tokenisers import BytePairs, Characters
from translution_runs.data.tokens import TokenSet, pack, read_pack

POEM = "to be, or not to be: that is the question.\n" * 20
MERGES = [("Ġ", "t"), ("b", "e"), ("Ġt", "o"), ("t", "h"), ("Ġ", "be"), ("i", "s")]


def byte_alphabet() -> list[str]:
    """A visible character for each byte, as GPT-2's files have them (Radford et al., 2019)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b if b in plain else 256 + b - sum(p < b for p in plain)) for b in range(256)]


def sha(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    """A small vocabulary in the form of GPT-2's, and its checksums."""
    root = tmp_path_factory.mktemp("vocabulary")
    tokens = [*byte_alphabet(), *map("".join, MERGES), tokenisers.END]
    (root / "encoder.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (root / "vocab.bpe").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in MERGES))
    return root, dict(zip(tokenisers.GPT2, (sha((root / name).read_bytes()) for name in tokenisers.NAMES[0]),
                          strict=True))


@pytest.fixture(scope="module")
def tokeniser(vocabulary):
    return BytePairs(*vocabulary)


@pytest.fixture
def known(vocabulary, monkeypatch):
    monkeypatch.setattr(tokenisers, "GPT2", vocabulary[1])
    return vocabulary[0]


def by_hand(word: str) -> list[str]:
    """Byte pairs of one word by their definition: the earliest merge that applies, again and again."""
    alphabet = byte_alphabet()
    parts = [alphabet[byte] for byte in word.encode()]
    while pairs := [pair for pair in MERGES if pair in zip(parts, parts[1:], strict=False)]:
        pair, merged = min(pairs, key=MERGES.index), []
        while parts:
            step = 2 if tuple(parts[:2]) == pair else 1
            merged.append("".join(parts[:step]))
            parts = parts[step:]
        parts = merged
    return parts


@given(st.lists(st.sampled_from(["to", " to", "be", " be", "this", " the", " tobe", "é", " 語", "\n"]), max_size=12))
def test_byte_pairs_are_those_of_the_definition(vocabulary, tokeniser, words):
    names = json.loads((vocabulary[0] / "encoder.json").read_text())
    for word in words:  # each is one word of GPT-2's pattern, or one letter's worth of it
        found = tokeniser.encode(word)
        assert found.tolist() == [names[part] for part in by_hand(word)]
    assert tokeniser.decode(tokeniser.encode("".join(words))) == "".join(words)


@given(st.text(max_size=60))
def test_byte_pairs_give_the_text_back(tokeniser, text):
    found = tokeniser.encode(text)
    assert found.dtype == np.uint16 and tokeniser.decode(found) == text
    assert not len(found) or int(found.max()) < tokeniser.size == 256 + len(MERGES) + 1


def test_the_end_of_a_document_is_no_text(tokeniser):
    assert tokeniser.end == 262 and tokeniser.end not in tokeniser.encode(f"a{tokenisers.END}b")
    assert tokeniser.decode([tokeniser.end]) == tokenisers.END


def test_hugging_faces_names_of_the_two_files(vocabulary, tmp_path):
    for here, there in zip(*tokenisers.NAMES, strict=True):
        (tmp_path / there).write_bytes((vocabulary[0] / here).read_bytes())
    found, expected = (BytePairs(root, vocabulary[1]).encode("to be") for root in (tmp_path, vocabulary[0]))
    assert np.array_equal(found, expected)


def test_a_vocabulary_that_is_not_gpt2s_is_refused(vocabulary, tmp_path):
    with pytest.raises(ValueError, match="encoder.json: truncated or corrupted, its sha256 is"):
        BytePairs(vocabulary[0])
    with pytest.raises(FileNotFoundError, match=f"put GPT-2's encoder.json and vocab.bpe into the folder {tmp_path}"):
        BytePairs(tmp_path)
    (tmp_path / "encoder.json").write_bytes((vocabulary[0] / "vocab.bpe").read_bytes())
    with pytest.raises(FileNotFoundError, match="vocab.bpe is missing"):
        BytePairs(tmp_path)
    (tmp_path / "vocab.bpe").write_bytes(b"")
    with pytest.raises(ValueError, match="encoder.json: mislabelled, this is the content of merges"):
        BytePairs(tmp_path, vocabulary[1])


@given(st.text(max_size=40))
def test_characters_give_the_text_back(text):
    tokeniser = Characters([text, "ab"])
    assert tokeniser.decode(tokeniser.encode(text)) == text and tokeniser.size == len(set(text) | {"a", "b"})
    assert list(tokeniser.alphabet) == sorted(tokeniser.alphabet)


def test_an_unknown_character_is_named():
    with pytest.raises(ValueError, match="text: the character 'é' is not one of the 2 known"):
        Characters(["ab"]).encode("abé")


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Both texts in a few lines, with checksums as far as they are known of the real ones."""
    parts = {"train": POEM, "validation": "or not\n", "test": "to be?\n"}
    names = {"train": "train.txt", "validation": "wikitext-2-valid.txt", "test": "test.txt"}
    for part, content in parts.items():
        (tmp_path / names[part]).write_bytes(content.encode())
    (tmp_path / "input.txt").write_bytes(POEM.encode())
    monkeypatch.setitem(TEXTS, "wikitext-2", replace(TEXTS["wikitext-2"], sha256={
        part: sha(parts[part].encode()) for part in ("validation", "test")}))
    monkeypatch.setitem(TEXTS, "tinyshakespeare", replace(TEXTS["tinyshakespeare"], sha256={"": sha(POEM.encode())}))
    return tmp_path


def test_nine_tenths_of_a_text_are_for_training(texts):
    train, rest = (load_text("tinyshakespeare", split, texts) for split in ("train", "validation"))
    alphabet = Characters([POEM])
    assert alphabet.decode(np.concatenate([train.tokens, rest.tokens])) == POEM
    assert len(train) == len(POEM) * 9 // 10 and train.vocabulary == alphabet.size
    assert train.sha256 == {"input.txt": sha(POEM.encode()), **alphabet.sha256}


def test_splits_of_their_own_share_an_alphabet(texts):
    sets = [load_text("wikitext-2", split, texts) for split in ("train", "validation", "test")]
    assert {one.vocabulary for one in sets} == {len(set(POEM + "or not\nto be?\n"))}
    assert Characters([POEM, "?"]).decode(sets[2].tokens) == "to be?\n"


def test_byte_pairs_of_a_split_need_no_other_split(texts, known):
    (texts / "train.txt").unlink()
    found = load_text("wikitext-2", "test", texts, "byte-pairs", known)
    assert BytePairs(known).decode(found.tokens) == "to be?\n" and "test.txt" in found.sha256
    with pytest.raises(FileNotFoundError, match="wikitext-2-train.txt is missing: put it into the folder"):
        load_text("wikitext-2", "train", texts)


def test_any_file_of_text(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_bytes("äöü\r\n".encode() * 10)
    assert len(load_text(str(path), "train")) == 45 and len(load_text(str(path), "validation")) == 5
    path.write_bytes("äöu\r\n".encode() * 10)
    with pytest.raises(ValueError, match="mine.txt: changed since it was first read"):
        load_text(str(path), "train")


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"x" + data[1:], lambda data: b""])
def test_damaged_texts_are_refused(texts, damage):
    for name in ("input.txt", "test.txt"):
        (texts / name).write_bytes(damage((texts / name).read_bytes()))
    for name, split in (("tinyshakespeare", "train"), ("wikitext-2", "test")):
        with pytest.raises(ValueError, match="txt: truncated or corrupted, its sha256 is"):
            load_text(name, split, texts)


def test_mislabelled_texts_are_refused(texts):
    (texts / "train.txt").write_bytes((texts / "test.txt").read_bytes())
    with pytest.raises(ValueError, match="train.txt: mislabelled, this is the content of another split"):
        load_text("wikitext-2", "train", texts)
    (texts / "test.txt").write_bytes((texts / "wikitext-2-valid.txt").read_bytes())
    (texts / "train.txt").unlink()
    with pytest.raises(ValueError, match="test.txt: mislabelled, this is the content of validation"):
        load_text("wikitext-2", "test", texts)


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "mine.txt").write_bytes(gzip.compress(b"text"))
    with pytest.raises(ValueError, match="mine.txt: not a text in UTF-8"):
        load_text(str(tmp_path / "mine.txt"))


@pytest.fixture
def documents(tmp_path, monkeypatch):
    """OpenWebText of 40 documents, one in four of them to validate on."""
    monkeypatch.setattr(module, "EVERY", 4)
    root = tmp_path / "openwebtext"
    root.mkdir()
    texts = [f"to be {number}" for number in range(40)]
    pq.write_table(pa.table({"text": texts[:30]}), root / "train-00000-of-00001.parquet")
    for number, one in enumerate(texts[30:]):
        (root / f"x{number:02}.txt").write_text(one)
    return tmp_path, texts


def test_each_document_is_in_one_split(documents, known):
    root, texts = documents
    tokeniser, found = BytePairs(known), {}
    for split in ("train", "validation"):
        one = load_text("openwebtext", split, root, "byte-pairs", known)
        parts = "".join(tokeniser.decode(one.tokens)).split(tokenisers.END)
        assert parts.pop() == ""  # every document has an end
        found[split] = parts
    assert sorted(found["train"] + found["validation"]) == sorted(texts)
    assert found["validation"] == [one for one in texts if int(sha(one.encode())[:16], 16) % 4 == 0] != []


def test_tokens_are_made_once_and_checked_when_read(documents, known, monkeypatch):
    root, _ = documents
    first = load_text("openwebtext", "train", root, "byte-pairs", known)
    monkeypatch.setattr(module, "pack", None)  # not called again
    again = load_text("openwebtext", "train", root, "byte-pairs", known)
    assert np.array_equal(first.tokens, again.tokens) and first.sha256 == again.sha256
    assert isinstance(again.tokens, np.memmap)
    (root / "openwebtext" / "x00.txt").write_text("another text")
    with pytest.raises(ValueError, match="tokens: made from other files; remove it to make it again"):
        load_text("openwebtext", "train", root, "byte-pairs", known)


@pytest.mark.parametrize("damage", ["cut", "byte", "note", "lost"])
def test_damaged_tokens_are_refused(tokeniser, tmp_path, damage):
    path, beside = tmp_path / "x.tokens", tmp_path / "x.tokens.json"
    pack(["to be", "or not"], tokeniser, path, {"about": 1})
    tokens, note = read_pack(path, 1 << 16)
    assert note["about"] == 1 and note["documents"] == 2 and note["tokens"] == len(tokens)
    del tokens
    data = path.read_bytes()
    path.write_bytes({"cut": data[:-2], "byte": bytes([data[0] ^ 1]) + data[1:]}.get(damage, data))
    if damage == "note":
        beside.write_text(beside.read_text()[:10])
    if damage == "lost":
        beside.unlink()
    expected = {"cut": "bytes, expected", "byte": "truncated or corrupted", "note": "damaged", "lost": "is missing"}
    with pytest.raises((ValueError, FileNotFoundError), match=expected[damage]):
        read_pack(path, 1 << 16)


def test_a_killed_pack_leaves_no_tokens(tokeniser, tmp_path):
    def documents():
        yield "to be"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(documents(), tokeniser, tmp_path / "x.tokens", {})
    assert not (tmp_path / "x.tokens").exists()


def test_one_document_in_two_thousand_is_for_validation():
    chosen = sum(in_validation(f"document {number}") for number in range(10_000))
    assert 1 <= chosen <= 14  # 5 expected


def tokens(count=20):
    return TokenSet(np.arange(count, dtype=np.uint16), count, "x", "train", {})


@given(st.integers(1, 18), st.data())
def test_windows_are_slices(length, data):
    starts = data.draw(st.lists(st.integers(0, 19 - length), max_size=4))
    inputs, targets = tokens().windows(torch.tensor(starts, dtype=torch.int64), length)
    assert inputs.tolist() == [list(range(at, at + length)) for at in starts]
    assert torch.equal(targets, inputs + 1) and inputs.shape == (len(starts), length)


def test_drawn_windows_lie_in_the_set_and_repeat_with_the_seed():
    a, b = (tokens().draw(500, 15, torch.Generator().manual_seed(2)) for _ in range(2))
    assert torch.equal(a, b) and sorted(set(a.tolist())) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="length: got 20, expected less than 20"):
        tokens().draw(1, 20)


@pytest.mark.parametrize(("start", "length"), [([5], 15), ([-1], 3), ([0], 0)])
def test_windows_outside_the_set_are_refused(start, length):
    with pytest.raises(ValueError, match="start: got"):
        tokens().windows(torch.tensor(start), length)


@pytest.mark.parametrize(("arguments", "message"), [
    (("tinyshakespeare", "train", "x", "words"), "kind: got 'words', expected one of"),
    (("tinyshakespeare", "test", "."), "split: got 'test', expected one of"),
    (("wikitext-2", "train", ".", "characters", "", "huggingface"), "source: got 'huggingface', expected 'folder'"),
    (("openwebtext", "test", "."), "split: got 'test'"),
    (("openwebtext", "train", "."), "expected 'byte-pairs'"),
    (("tinyshakespeare", "train"), "root: got ''"),
])
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_text(*arguments)


def test_missing_texts_are_named(tmp_path, known):
    with pytest.raises(FileNotFoundError, match="expected one of tinyshakespeare, wikitext-2, openwebtext, or a file"):
        load_text("nothing")
    with pytest.raises(FileNotFoundError, match="tinyshakespeare.txt is missing"):
        load_text("tinyshakespeare", "train", tmp_path)
    with pytest.raises(FileNotFoundError, match="no documents: put OpenWebText's parquet files"):
        load_text("openwebtext", "train", tmp_path, "byte-pairs", known)
