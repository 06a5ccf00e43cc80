"""Texts for language models: Tiny Shakespeare, WikiText-2, OpenWebText, and any file of text.

Splits are the same on every machine. Where a data set has none, the last tenth of a text is the validation split; of
documents, those whose sha256 is a multiple of 2,000 (one in 2,000), so that no document is in both splits and new ones
move none.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from translution_runs.data import checksums, grammar, huggingface, parquet
from translution_runs.data.sources import folder, refuse_split
from translution_runs.data.tokenisers import BytePairs, Characters, Tokeniser
from translution_runs.data.tokens import TokenSet, pack, read_pack

KINDS = ("characters", "byte-pairs")
EVERY = 2_000  # documents to one of the validation split


@dataclass(frozen=True)
class TextSource:
    """A text in files: for each split the names a file may have, and known checksums by split ("" is the whole)."""

    name: str
    files: dict[str, tuple[str, ...]]
    sha256: dict[str, str]


TEXTS = {source.name: source for source in (
    TextSource("tinyshakespeare", {"": ("tinyshakespeare.txt", "input.txt")},
               {"": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"}),
    TextSource("wikitext-2", {
        "train": ("wikitext-2-train.txt", "train.txt"), "validation": ("wikitext-2-valid.txt", "valid.txt"),
        "test": ("wikitext-2-test.txt", "test.txt"),
    }, {"validation": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"}),
)}


def load_text(
    name: str, split: str = "train", root: str | Path = "", kind: str = "characters", vocabulary: str | Path = "",
    source: str = "folder",
) -> TokenSet:
    """A split of a text as tokens, checked.

    Args:
        name: "tinyshakespeare" (splits "train", "validation"), "wikitext-2" (and "test"), "openwebtext" ("train",
            "validation"), "grammar" (likewise; it needs no file), or the path of a text file in UTF-8 (likewise).
        split: of the text.
        root: the folder with the files, or one with a folder `name` or `text` in it; for OpenWebText parquet files
            with a column `text`, or `.txt` files, one a document. Its tokens are kept there too.
        kind: "characters", numbered over all of the text's files that are there, or "byte-pairs".
        vocabulary: the folder with GPT-2's two files, for "byte-pairs".
        source: "folder", or for OpenWebText "huggingface".

    Raises:
        ValueError: an unknown argument, or files that are truncated, corrupted, mislabelled or changed.
        FileNotFoundError: a file is missing; the message says what to put where.
        ImportError: a package is not installed; the message names it.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}, expected one of {KINDS}")
    if name == "openwebtext":
        return documents_to_tokens(split, root, kind, vocabulary, source)
    if source != "folder":
        raise ValueError(f"source: got {source!r}, expected 'folder' for {name}")
    parts, sha256 = read_parts(name, root, split, every=kind == "characters")
    tokeniser: Tokeniser = Characters(parts.values(), name) if kind == "characters" else BytePairs(vocabulary)
    tokens = tokeniser.encode(parts[split])
    return TokenSet(tokens, tokeniser.size, name, split, sha256 | tokeniser.sha256)


def tokeniser_of(name: str, split: str, root: str | Path = "", kind: str = "characters",
                 vocabulary: str | Path = "") -> Tokeniser:
    """What `load_text` made a split's tokens with; arguments and errors are the same."""
    if kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}, expected one of {KINDS}")
    if kind == "byte-pairs":
        return BytePairs(vocabulary)
    return Characters(read_parts(name, root, split, every=True)[0].values(), name)


def read_parts(
    name: str, root: str | Path, split: str, every: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """The text of the split, with `every` of each that is there, and checksums of the files."""
    if name == "grammar":
        return {part: grammar.text(part) for part in grammar.SENTENCES if every or part == split}, checked(split)
    if name not in TEXTS:
        return split_file(Path(name), split)
    source = TEXTS[name]
    where = folder(root, name) if (Path(root) / name).is_dir() else folder(root, "text")
    refuse_split(split, source.files if "" not in source.files else {"train": 0, "validation": 0})
    paths = {part: found for part, names in source.files.items()
             if (found := next((where / file for file in names if (where / file).is_file()), None))}
    needed = "" if "" in source.files else split
    if needed not in paths:
        raise FileNotFoundError(f"{source.files[needed][0]} is missing: put it into the folder {where}")
    paths = paths if every else {needed: paths[needed]}
    sha256 = {path.name: verify(source, part, path) for part, path in paths.items()}
    texts = {part: decode(path) for part, path in paths.items()}
    for part, path in paths.items():  # last: what was refused is not recorded
        if part not in source.sha256:
            checksums.keep(path.parent, path.name, sha256[path.name])
    return (halves(texts[""]) if "" in texts else texts), sha256


def checked(split: str) -> dict[str, str]:
    """The checksum of a split of the text that needs no file."""
    refuse_split(split, grammar.SENTENCES)
    return grammar.checksum(split)


def verify(source: TextSource, part: str, path: Path) -> str:
    """A file's sha256, compared with the known one, or with what was recorded when the file was met first."""
    found = checksums.digest(path)
    if part in source.sha256:
        checksums.refuse_other(found, part, source.sha256, path)
    elif found in source.sha256.values():
        raise ValueError(f"{path}: mislabelled, this is the content of another split of {source.name}")
    else:
        checksums.refuse_changed(path.parent, path.name, found)
    return found


def split_file(path: Path, split: str) -> tuple[dict[str, str], dict[str, str]]:
    """Both splits of any text file."""
    if not path.is_file():
        raise FileNotFoundError(f"name: got {str(path)!r}, expected one of {', '.join(TEXTS)}, openwebtext, or a file")
    refuse_split(split, {"train": 0, "validation": 0})
    found = checksums.digest(path)
    checksums.refuse_changed(path.parent, path.name, found)
    text = decode(path)
    checksums.keep(path.parent, path.name, found)  # last: what was refused is not recorded
    return halves(text), {path.name: found}


def decode(path: Path) -> str:
    """The text of a file in UTF-8, line ends as they are."""
    try:
        checksums.refuse_pipe(path)
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8 ({error}); truncated or corrupted?") from None


def halves(text: str) -> dict[str, str]:
    """The first nine tenths of the characters, and the last."""
    cut = len(text) * 9 // 10
    return {"train": text[:cut], "validation": text[cut:]}


def in_validation(document: str) -> bool:
    """Whether a document belongs to the validation split: by its content alone."""
    return int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big") % EVERY == 0


def documents_to_tokens(split: str, root: str | Path, kind: str, vocabulary: str | Path, source: str) -> TokenSet:
    """OpenWebText: packed into a file beside the data the first time, read from there afterwards."""
    refuse_split(split, {"train": 0, "validation": 0})
    if kind != "byte-pairs" or source not in ("folder", "huggingface"):
        raise ValueError(f"kind, source: got {kind!r}, {source!r}, expected 'byte-pairs' and 'folder' or 'huggingface'")
    tokeniser, where = BytePairs(vocabulary), folder(root, "openwebtext")
    path = where / f"openwebtext-{split}.{source}.tokens"
    sizes = {file.name: file.stat().st_size for file in document_files(where)} if source == "folder" else {}
    about = {"tokeniser": tokeniser.sha256, "files": sizes}
    if not path.exists():
        documents = from_files(where) if source == "folder" else from_huggingface(where)
        pack((text for text in documents if in_validation(text) == (split == "validation")), tokeniser, path, about)
    tokens, note = read_pack(path, tokeniser.size)
    for what, value in about.items():
        if note.get(what) != value:
            raise ValueError(f"{path}: made from other {what}; remove it to make it again")
    return TokenSet(tokens, tokeniser.size, "openwebtext", split, {path.name: note["sha256"]} | tokeniser.sha256)


def document_files(where: Path) -> list[Path]:
    """The files of documents in a folder and the folders in it, in order."""
    return sorted(path for path in where.rglob("*") if path.suffix in (".parquet", ".txt"))


def from_files(where: Path) -> Iterator[str]:
    """The documents in a folder: a text file is one, a parquet file has one in each row."""
    paths = document_files(where)
    if not paths:
        raise FileNotFoundError(f"no documents: put OpenWebText's parquet files, or text files, into {where}")
    for path in paths:
        yield from [decode(path)] if path.suffix == ".txt" else rows(path)


def rows(path: Path) -> Iterable[str]:
    """The column `text` of a parquet file."""
    part = parquet.table(path, ["text"])
    parquet.refuse_types(part, path, {"text": parquet.TEXTS})
    texts: list[str] = part.column("text").to_pylist()
    if None in texts:
        raise ValueError(f"{path}: {sum(text is None for text in texts)} of {len(texts)} rows have no text")
    return texts


def from_huggingface(cache: Path) -> Iterator[str]:
    """The documents of the data set on Hugging Face, kept in `cache` by the library."""
    for row in huggingface.fetch("Skylion007/openwebtext", "train", cache):
        yield row["text"]
