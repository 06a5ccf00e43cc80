"""Text to numbers and back: one number a character, or GPT-2's byte pairs (Radford et al., 2019).

Chapter "Language models".
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt16

from translution_runs.data import checksums

# GPT-2's two files, under the names of OpenAI and of Hugging Face.
NAMES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
GPT2 = {
    "vocabulary": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "merges": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
END = "<|endoftext|>"
MOST = 1 << 16  # different tokens, which are kept in two bytes


class Characters:
    """One token a character, numbered in the order of their code points.

    Attributes:
        alphabet: the characters.
        size: their number.
        end: what stands between documents: nothing.
        sha256: the alphabet's.
    """

    name: str = "characters"
    end: int | None = None

    def __init__(self, texts: Iterable[str], where: str = "text") -> None:
        self.alphabet = "".join(sorted(set().union(*texts)))
        self.size = len(self.alphabet)
        if self.size > MOST:
            raise ValueError(f"{where}: {self.size:,} different characters, expected at most {MOST:,}, the numbers "
                             "of 16 bits")
        self.sha256 = {"alphabet": hashlib.sha256(self.alphabet.encode()).hexdigest()}
        self._numbers = {character: number for number, character in enumerate(self.alphabet)}

    def encode(self, text: str) -> UInt16[np.ndarray, " n"]:
        """The text's tokens.

        Raises:
            ValueError: a character that is not in the alphabet.
        """
        try:
            return np.fromiter((self._numbers[character] for character in text), np.uint16, len(text))
        except KeyError as error:
            raise ValueError(f"text: the character {error.args[0]!r} is not one of the {self.size} known") from None

    def decode(self, tokens: Integer[np.ndarray, " n"] | list[int]) -> str:
        """The text of the tokens."""
        return "".join(self.alphabet[token] for token in tokens)


class BytePairs:
    """GPT-2's 50,257 tokens, read from its two files by the library `tokenizers`.

    Text is taken as it is: the characters `<|endoftext|>` in it are characters, and no space is put in front.

    Attributes:
        size: number of tokens.
        end: the token between documents.
        sha256: the files'.

    Args:
        folder: with `encoder.json` and `vocab.bpe`, or the same files called `vocab.json` and `merges.txt`.
        known: the files' checksums.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is truncated, corrupted or mislabelled.
        ImportError: tokenizers is not installed.
    """

    name: str = "byte-pairs"

    def __init__(self, folder: str | Path, known: dict[str, str] | None = None) -> None:
        known = GPT2 if known is None else known
        paths = find(Path(folder))
        self.sha256 = {name: checksums.digest(path) for name, path in zip(known, paths, strict=True)}
        for (name, found), path in zip(self.sha256.items(), paths, strict=True):
            checksums.refuse_other(found, name, known, path)
        self._tokeniser = build(*paths)
        self.size: int = self._tokeniser.get_vocab_size()
        self.end: int | None = self._tokeniser.token_to_id(END)

    def encode(self, text: str) -> UInt16[np.ndarray, " n"]:
        """The text's tokens."""
        return np.array(self._tokeniser.encode(text).ids, np.uint16)

    def decode(self, tokens: Integer[np.ndarray, " n"] | list[int]) -> str:
        """The text of the tokens; bytes that are no whole character become U+FFFD."""
        text: str = self._tokeniser.decode([int(token) for token in tokens], skip_special_tokens=False)
        return text


Tokeniser = Characters | BytePairs


def find(folder: Path) -> tuple[Path, Path]:
    """The file of the vocabulary and the one of the merges."""
    for names in NAMES:
        first, second = (folder / name for name in names)
        if first.is_file() or second.is_file():
            missing = [path.name for path in (first, second) if not path.is_file()]
            if missing:
                raise FileNotFoundError(f"{missing[0]} is missing: put it into the folder {folder}")
            return first, second
    raise FileNotFoundError(f"{NAMES[0][0]} is missing: put GPT-2's {' and '.join(NAMES[0])} into the folder {folder}")


def build(vocabulary: Path, merges: Path) -> Any:
    """The tokeniser of the library."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    except ImportError as error:
        raise ImportError("byte pairs are made by the library tokenizers: install tokenizers") from error
    tokeniser = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    tokeniser.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokeniser.decoder = decoders.ByteLevel()
    return tokeniser
