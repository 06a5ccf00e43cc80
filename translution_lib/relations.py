"""Relations: which pairs of tokens share their parameters.

Every operator of the book treats an ordered pair (query i, key j) through the parameters of its *relation*. A table of
relation ids says which pairs share. Self-attention has one relation, a convolution one per tap, Translution one per
offset. Source: chapter "Relations"; the Translution paper, sections 3.3, 3.4, 4.1.3 and appendices C and H.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, product
from numbers import Integral
from typing import Any
from weakref import WeakValueDictionary

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch._guards import detect_fake_mode

MASKED = -1
TABLES: WeakValueDictionary = WeakValueDictionary()
"""Every table in use by its number, which a compiled graph can hold in its place."""
_numbers = count()
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
CLS_LABELS = ("cls", "cls←image", "image←cls")


class Copies(dict):
    """What tables have become, made once for each device and type; it is neither copied nor saved with them."""

    def __reduce__(self) -> tuple:
        """Return an empty one."""
        return Copies, ()

    def once(self, key: tuple, make: Callable[[], Any]) -> Any:
        """Return what is kept under a key, or make it; what an export traces is no table and does not stay."""
        found = self.get(key)       # looked up once: another thread may empty this between two looks
        if found is not None:
            return found
        if torch.compiler.is_exporting():
            return make()
        if torch.compiler.is_compiling():
            found = make()
        elif detect_fake_mode() is not None:        # tensors without numbers, of somebody who looks at shapes
            return make()
        else:
            with torch.inference_mode(False):       # gradients may meet it later
                found = make()
        self[key] = found
        return found

    def cut(self, rows: slice, columns: slice) -> dict:
        """Return this part of the copies of a table's ids and mask."""
        return {key: table[rows, columns] for key, table in list(self.items()) if key[0] in ("index", "mask")}


@dataclass(frozen=True, eq=False)
class Relations:
    """A table of relation ids for the ordered pairs of n tokens.

    The tables stay on the CPU, whatever becomes of the layers that read them: a cast, or a device without storage,
    spoils none. What a layer reads elsewhere is copied there when it is first read, once for all layers.

    Attributes:
        index: ids, shape (n, n); row = query i, column = key j; -1 where i may not attend to j. A table of some rows
            (:meth:`rows`) has those of the last queries alone.
        count: number of relations; ids are 0 … count − 1.
        labels: what each relation is: an offset δ as a tuple, a CLS role (a text), a pair (i, j), or "all".
        shape: sides of the grid that the tokens stand on, or None where tokens have no position.
        cls: whether token 0 is a CLS token without a position.
        causal: whether pairs with j > i are masked.
        positions: places p on the grid, integers, shape (tokens with a place, axes), in token order. By default the
            tokens are the whole grid in row-major order; None where there is no grid.
        mask: True where query i may attend to key j, shape (n, n).
        complete: whether no pair is masked.
        number: of the table, in the order in which tables were made.
        all_past: whether each query attends to all tokens up to its own place and to no later one.

    Raises:
        ValueError: an index, a shape or positions of a wrong type or size; ids without labels; a query without a key.
    """

    index: Int[Tensor, "i n"]
    count: int
    labels: tuple
    shape: tuple[int, ...] | None = None
    cls: bool = False
    causal: bool = False
    positions: Int[Tensor, "m d"] | None = None
    _cache: Copies = field(default_factory=Copies, repr=False)
    mask: Bool[Tensor, "i n"] = field(init=False, repr=False)
    complete: bool = field(init=False, repr=False)
    all_past: bool = field(init=False, repr=False)
    number: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a table whose ids, labels and places do not fit together; place the tokens of a whole grid."""
        _check_integers("index", self.index)
        if self.index.ndim != 2 or self.first or not self.n:
            raise ValueError(f"index must be a square table of ids, got shape {tuple(self.index.shape)}")
        if len(self.labels) != self.count:
            raise ValueError(f"labels must name each of the {self.count} relations, got {len(self.labels)} labels")
        low, high = int(self.index.min()), int(self.index.max())
        if low < MASKED or high >= self.count:
            raise ValueError(f"index must hold ids from -1 to {self.count - 1}, got {low} to {high}")
        if bool((self.index == MASKED).all(dim=1).any()):
            raise ValueError("index masks a whole row: every query must attend to at least one key")
        # Set at once: what a layer asks in every forward pass must not need a computation that no compiler can trace.
        mask = self.index != MASKED
        past = self.n > 1 and torch.equal(mask, torch.ones_like(mask).tril())
        for name, value in (("mask", mask), ("complete", bool(mask.all())), ("all_past", past)):
            object.__setattr__(self, name, value)
        self._place()
        self._enter()

    def _enter(self) -> None:
        """Take a number of its own, a copy too."""
        object.__setattr__(self, "number", next(_numbers))
        TABLES[self.number] = self

    def __setstate__(self, state: dict) -> None:
        """Enter a copy, or a table from another process."""
        self.__dict__.update(state)
        self._enter()

    def _place(self) -> None:
        """Check where the tokens stand, or put them on all cells of the grid."""
        tokens = self.n - int(self.cls)
        if self.shape is None:
            if self.positions is not None:
                raise ValueError("positions must be None where shape is None: they are places on a grid")
            return
        sides = _sides(self.shape)
        if self.positions is None:
            if math.prod(sides) != tokens:
                raise ValueError(f"positions must say where {tokens} tokens stand on a grid of {math.prod(sides)} "
                                 f"cells, got None for shape {sides}")
            object.__setattr__(self, "positions", grid(sides))
            return
        _check_integers("positions", self.positions)
        if self.positions.shape != (tokens, len(sides)):
            raise ValueError(f"positions must have the shape (tokens with a place, axes) = {(tokens, len(sides))}, "
                             f"got {tuple(self.positions.shape)}")
        if bool(((self.positions < 0) | (self.positions >= torch.tensor(sides, device="cpu"))).any()):
            raise ValueError(f"positions must lie on the grid {sides}, got {self.positions.tolist()}")

    def __repr__(self) -> str:
        """Return a short description, without the table."""
        return (f"Relations(n={self.n}, count={self.count}, shape={self.shape}, cls={self.cls}, "
                f"causal={self.causal})")

    @property
    def n(self) -> int:
        """Number of tokens, the CLS token included."""
        return self.index.shape[1]

    @property
    def first(self) -> int:
        """The first token that is a query, which is 0 but for a table of :meth:`rows`."""
        return self.index.shape[1] - self.index.shape[0]

    @cached_property
    def whole(self) -> bool:
        """Whether the tokens with a place are all cells of the grid, in row-major order."""
        return self.shape is not None and self.positions is not None and torch.equal(self.positions, grid(self.shape))

    @cached_property
    def sizes(self) -> Int[Tensor, "r"]:
        """Number of pairs in each relation, shape (count,).

        Label: eq-rel-sizes, eq-translution-pairs, eq-translution-seen.
        """
        return torch.bincount(self.index[self.mask], minlength=self.count)

    @property
    def sorted_pairs(self) -> tuple[Int[Tensor, "p"], Int[Tensor, "p"]]:
        """Queries and keys of all unmasked pairs, grouped by relation in the order of the ids; not kept."""
        flat = self.index.flatten()
        order = torch.argsort(flat, stable=True)[(flat == MASKED).sum():]
        return order // self.n, order % self.n

    def pairs_of(self, relation: int) -> tuple[Int[Tensor, "p"], Int[Tensor, "p"]]:
        """Return the queries i and the keys j of one relation."""
        if not 0 <= relation < self.count:
            raise ValueError(f"relation must be from 0 to {self.count - 1}, got {relation}")
        i, j = (self.index == relation).nonzero(as_tuple=True)
        return i, j

    def id_of(self, label: object) -> int:
        """Return the id of a label, for example of the offset ``(0, -1)``."""
        try:
            return self.labels.index(tuple(label) if isinstance(label, list) else label)
        except ValueError:
            raise ValueError(f"label {label!r} is not one of the {self.count} relations of this table") from None

    def for_length(self, n: int) -> "Relations":
        """Return the table for n tokens: itself, or a prefix where the table is causal.

        A causal prefix needs no new relation, so that a language model can read a text shorter than its context.

        Label: thm-translution-prefix.
        """
        if n == self.n:
            return self
        if not self.causal or n > self.n or n < 1:
            allowed = f"from 1 to {self.n}" if self.causal else str(self.n)
            raise ValueError(f"x has {n} tokens, expected {allowed}: the length of its relation table")
        kept = self._cache.get("prefix")
        if kept is None or kept.n != n:         # one alone is kept: a text that grows must not leave a table per token
            if kept is not None:
                kept._cache.clear()             # what it remembers refers to it, and would wait for the collector
            kept = self._prefix(n)
            kept._cache.update(self._cache.cut(slice(n), slice(n)))
            self._cache["prefix"] = kept
        return kept

    def rows(self, first: int, n: int) -> "Relations":
        """Return the rows of the queries first … n − 1 of the table for n tokens: ids of the shape (n − first, n).

        What writes a text asks for one row at a time, and no table of n × n is made for it.

        Raises:
            ValueError: a table that is not causal, or not so long.
        """
        if first == 0:
            return self.for_length(n)
        if not (self.causal and 0 < first < n <= self.n):
            raise ValueError(f"rows needs a causal table and 0 < first < n ≤ {self.n}, got first = {first}, n = {n} "
                             f"for {self!r}")
        kept = self._cache.get("rows")
        if kept is None or (kept.first, kept.n) != (first, n):
            kept = self._rows(first, n)
            kept._cache.update(self._cache.cut(slice(first, n), slice(n)))
            self._cache["rows"] = kept
        return kept

    def _rows(self, first: int, n: int) -> "Relations":
        """Make a table that is not square, which the constructor refuses: not every product can serve one."""
        index, part = self.index[first:n, :n], object.__new__(Relations)
        mask, places = index != MASKED, None if self.positions is None else self.positions[:n]
        part.__setstate__({"index": index, "count": self.count, "labels": self.labels, "shape": self.shape,
                           "cls": False, "causal": True, "positions": places, "_cache": Copies(), "mask": mask,
                           "complete": bool(mask.all()), "all_past": False})
        return part

    def _prefix(self, n: int) -> "Relations":
        if self.whole:
            return Relations(self.index[:n, :n], self.count, self.labels, (n,), causal=True)
        places = None if self.positions is None else self.positions[:n]
        return Relations(self.index[:n, :n], self.count, self.labels, self.shape, causal=True, positions=places)

    def select(self, tokens: Sequence[int] | Int[Tensor, "m"]) -> "Relations":
        """Return the table of some of the tokens, which keep their places and their relations.

        Args:
            tokens: which tokens, in their new order. CLS, token 0, can only stay first; without it the new table has
                none. Tokens of a causal table stay in their order.

        Raises:
            ValueError: no tokens, tokens that are not integers from 0 to n − 1, CLS behind another token, tokens of a
                causal table that do not ascend, a window that leaves a query without a key.
        """
        rows = torch.as_tensor(tokens, device="cpu")
        if rows.ndim != 1 or not len(rows) or rows.dtype not in INTEGERS or rows.min() < 0 or rows.max() >= self.n:
            raise ValueError(f"tokens must be integers from 0 to {self.n - 1}, at least one, got {tokens!r}")
        if self.causal and bool((rows.diff() < 1).any()):
            raise ValueError(f"tokens of a causal table must ascend, got {rows.tolist()}")
        cls = self.cls and bool(rows[0] == 0)
        if self.cls and bool((rows[int(cls):] == 0).any()):
            raise ValueError(f"tokens must have CLS, token 0, in the first place or not at all, got {rows.tolist()}")
        places = None if self.positions is None else self.positions[rows[int(cls):] - int(self.cls)]
        return Relations(self.index[rows][:, rows], self.count, self.labels, self.shape, cls, self.causal, places)

    def index_on(self, device: torch.device | str) -> Int[Tensor, "i n"]:
        """Return ``index`` on a device; the copy is kept."""
        return self._remember(("index", str(device)), lambda: self.index.to(device))

    def mask_on(self, device: torch.device | str) -> Bool[Tensor, "i n"]:
        """Return ``mask`` on a device; the copy is kept."""
        return self._remember(("mask", str(device)), lambda: self.mask.to(device))

    def mask_needed(self, device: torch.device | str) -> Bool[Tensor, "i n"] | None:
        """Return the mask on a device, or None where every pair may attend."""
        return None if self.complete else self.mask_on(device)

    def on(self, name: tuple, make: Callable[[], Tensor], like: Tensor) -> Tensor:
        """Return a table that follows from these relations, with the device and type of a tensor; the copy is kept."""
        return self._remember((*name, str(like.device), like.dtype), lambda: make().to(like))

    def _remember(self, key: tuple, make: Callable[[], Any]) -> Any:
        return self._cache.once(key, make)


def offsets(shape: int | Sequence[int], *, cls: bool = False, causal: bool = False, window: int | None = None,
            clip: int | None = None) -> Relations:
    """One relation per offset δ = p_i − p_j on a grid: the table of Translution, the paper's eq. (1).

    Offsets are numbered in row-major order of δ, each axis ascending from −(size − 1).

    Args:
        shape: side lengths of the grid, any number of dimensions; an integer means one dimension.
        cls: put a CLS token first. Three ids follow the offsets: CLS to itself, CLS reading an image token (i = CLS),
            an image token reading CLS (j = CLS), as in the paper's appendix H.
        causal: one dimension only: ids are δ = 0 … size − 1 and pairs with j > i are masked (appendix C).
        window: mask pairs with max|δ| > window. The CLS token is never masked.
        clip: clamp every component of δ to [−clip, clip], so that far offsets share one relation per direction.

    Raises:
        ValueError: sides that are not positive integers; causal with CLS or with several dimensions; a window or clip
            that is not an integer ≥ 0.

    Label: eq-notation-id, eq-rel-id, thm-rel-count, thm-rel-invariance, thm-translution-window, thm-sharing-window.
    """
    sides = _sides(shape)
    _check_options(sides, cls, causal, window, clip)
    return _offsets_at(grid(sides), sides, cls, causal, window, clip)


def every_offset(relations: Relations) -> Relations:
    """Return the table of the same tokens, with the same mask, in which every offset has a relation of its own.

    Raises:
        ValueError: a table without a grid.
    """
    if relations.positions is None or relations.shape is None:
        raise ValueError(f"relations must have a grid, got {relations!r}")
    full = _offsets_at(relations.positions, relations.shape, relations.cls, relations.causal)
    return replace(full, index=full.index.masked_fill(~relations.mask, MASKED), _cache=Copies())


def _offsets_at(places: Tensor, sides: tuple[int, ...], cls: bool, causal: bool, window: int | None = None,
                clip: int | None = None) -> Relations:
    """Return the table of tokens at some places of a grid."""
    reach = [min(size - 1, *(b for b in (window, clip) if b is not None), size - 1) for size in sides]
    axes = [range(0 if causal else -r, r + 1) for r in reach]
    labels: tuple = tuple(product(*axes))
    index = _offset_ids(places, reach, causal, window, clip)
    if cls:
        index, labels = _with_cls(index, len(labels)), labels + CLS_LABELS
    return Relations(index, len(labels), labels, sides, cls, causal, places)


def pairs(n: int) -> Relations:
    """One relation per ordered pair of n tokens: id = i·n + j (Table 5's "absolute" ablation)."""
    n = _positive("n", n)
    return Relations(torch.arange(n * n, device="cpu").view(n, n), n * n, tuple(product(range(n), repeat=2)))


def shared(n: int, *, causal: bool = False) -> Relations:
    """One relation for all pairs of n tokens: self-attention. With ``causal`` pairs with j > i are masked."""
    n = _positive("n", n)
    index = torch.zeros(n, n, dtype=torch.long, device="cpu")
    if causal:
        index.masked_fill_(torch.ones(n, n, dtype=torch.bool, device="cpu").triu(1), MASKED)
    return Relations(index, 1, ("all",), None, False, causal)


def place_cls(relations: Relations) -> Relations:
    """Give CLS a relation of its own with every other token, one each way, as if it stood at a place off the grid.

    The ids of the offsets stay and "cls" follows them; then come CLS reading the tokens 1 … m, and these reading CLS.

    Raises:
        ValueError: a table without a CLS token, or one whose CLS has a place already.

    Label: eq-preprint-count, thm-preprint-dense.
    """
    if not relations.cls or relations.labels[-len(CLS_LABELS):] != CLS_LABELS:
        raise ValueError(f"relations must have a CLS token without a place, got {relations}")
    places = [] if relations.positions is None else [tuple(p) for p in relations.positions.tolist()]
    zero = relations.count - len(CLS_LABELS)
    index, own = relations.index.clone(), torch.arange(1, relations.n, device="cpu")
    index[0, 1:], index[1:, 0] = zero + own, zero + len(places) + own
    labels = (*relations.labels[:zero], "cls", *(f"cls←{p}" for p in places), *(f"{p}←cls" for p in places))
    return Relations(index, len(labels), labels, relations.shape, True, False, relations.positions)


def grid(sides: tuple[int, ...]) -> Int[Tensor, "n d"]:
    """Return the positions of a grid in row-major order, shape (n, d)."""
    axes = [torch.arange(size, device="cpu") for size in sides]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).view(-1, len(sides))


def _offset_ids(p: Tensor, reach, causal: bool, window: int | None, clip: int | None) -> Tensor:
    """Return the table of offset ids of tokens at places p, masked pairs as −1."""
    delta = p[:, None] - p[None]
    masked = (delta < 0).any(-1) if causal else torch.zeros(delta.shape[:2], dtype=torch.bool, device="cpu")
    if window is not None:
        masked |= delta.abs().amax(-1) > window
    if clip is not None:
        delta = delta.clamp(-clip, clip)
    ids = torch.zeros(delta.shape[:2], dtype=torch.long, device="cpu")
    for axis, r in enumerate(reach):
        ids = ids * (r + 1 if causal else 2 * r + 1) + delta[..., axis] + (0 if causal else r)
    return ids.masked_fill(masked, MASKED)


def _with_cls(index: Tensor, count: int) -> Tensor:
    """Put a CLS token first; its three roles take the ids count, count + 1, count + 2."""
    n = index.shape[0] + 1
    table = torch.empty(n, n, dtype=torch.long, device="cpu")
    table[1:, 1:] = index
    table[0, 0], table[0, 1:], table[1:, 0] = count, count + 1, count + 2
    return table


def _check_integers(name: str, table: object) -> None:
    if not isinstance(table, Tensor) or table.dtype not in INTEGERS:
        raise ValueError(f"{name} must be a tensor of integers, got {getattr(table, 'dtype', type(table).__name__)}")


def _check_options(sides, cls, causal, window, clip) -> None:
    for name, value in (("window", window), ("clip", clip)):
        if value is not None and not (_is_int(value) and 0 <= value < 2**31):
            raise ValueError(f"{name} must be an integer from 0 to 2**31 − 1 or None, got {value!r}")
    if causal and cls:
        raise ValueError("causal must be False with cls=True: a CLS token that reads the whole text sees the future")
    if causal and len(sides) > 1:
        raise ValueError(f"causal needs one dimension, got shape {sides}")


def _is_int(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _positive(name: str, value: int) -> int:
    if not (_is_int(value) and value >= 1):
        raise ValueError(f"{name} must be an integer ≥ 1, got {value!r}")
    return int(value)


def _sides(shape) -> tuple[int, ...]:
    sides = (shape,) if not isinstance(shape, Sequence) else tuple(shape)
    if not sides:
        raise ValueError("shape must have at least one dimension, got ()")
    sides = tuple(_positive("shape", size) for size in sides)
    if math.prod(sides) > 65_536:
        raise ValueError(f"shape must hold at most 65,536 tokens, got {math.prod(sides)}")
    return sides
