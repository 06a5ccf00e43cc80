"""The real files, where TRANSLUTION_DATA names a folder with some of cifar10, cifar100, fashion-mnist, text, gpt2."""

import os
from pathlib import Path

import pytest
import torch
from translution_runs.data import SOURCES, load
from translution_runs.data.text import load_text
from translution_runs.data.tokenisers import BytePairs

ROOT = os.environ.get("TRANSLUTION_DATA", "")


def needs(*names):
    missing = [name for name in names if not (ROOT and (Path(ROOT) / name).is_dir())]
    return pytest.mark.skipif(bool(missing), reason=f"TRANSLUTION_DATA names no folder with {' and '.join(names)}")


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in
                                  ("fashion-mnist", "cifar10", "cifar100")])
def test_classes_are_balanced(name):
    source = SOURCES[name]
    for split, count in source.counts.items():
        assert torch.bincount(load(name, split, ROOT).labels).tolist() == [count // source.classes] * source.classes


@needs("text")
def test_tiny_shakespeare():
    train, rest = (load_text("tinyshakespeare", split, ROOT) for split in ("train", "validation"))
    assert (len(train), len(rest), train.vocabulary) == (1_003_854, 111_540, 65)


@needs("text", "gpt2")
def test_byte_pairs_are_gpt2s():
    """Counts: those that nanoGPT publishes for its Shakespeare; tokens: GPT-2's own, as transformers makes them."""
    folder = Path(ROOT) / "gpt2"
    found = [load_text("tinyshakespeare", split, ROOT, "byte-pairs", folder) for split in ("train", "validation")]
    assert [len(one) for one in found] == [301_966, 36_059]
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPT2Tokenizer(vocab=str(folder / "encoder.json"), merges=str(folder / "vocab.bpe"))
    text = "It's 10 o'clock — \n\n  où est 語 😀?\tI'll go."
    assert BytePairs(folder).encode(text).tolist() == theirs(text)["input_ids"]
