"""The closed formulas of the competing encodings: self-attention and what each adds to it.

m is the number of offsets of the table, CLS roles not counted. Source: seed 000, appendix E, Tables 4 and 8; chapters
"Vectors", "Scalars and gates", "Rotations" and "Continuous positions".
"""

from dataclasses import dataclass

from translution_lib.cost.kinds import SelfAttentionLayer, TranslutionLayer


@dataclass(frozen=True)
class VectorLayer(SelfAttentionLayer):
    """Relative vectors: ``sides`` of "kv" have one of m ``vectors`` per offset, for all heads together or shared."""

    sides: str = "kv"
    vectors: int = 0
    per_head: bool = True

    @property
    def weights(self) -> int:
        """Self-attention's, and m·C′ (m·d where the heads share them) per side."""
        return super().weights + len(self.sides) * self.vectors * self.inner // (1 if self.per_head else self.heads)

    @property
    def mixing_products(self) -> int:
        """Self-attention's, and n·m·C′ per side: every query by every vector, every sum of weights by every vector."""
        return super().mixing_products + len(self.sides) * self.tokens * self.vectors * self.inner

    def saved_numbers(self, batch: int, form: str) -> int:
        """X, q, k, v, the attention weights, and n·m scores or sums per head and side."""
        n, e = self.tokens, self.inner
        if form in ("gather", "pairs"):
            return n * (self.dim + e) + (2 * e + self.heads) * self.pairs
        spread = (batch > 1 and self.per_head) * len(self.sides) * self.vectors * e
        queries = "k" in self.sides and (batch > 1 or "v" not in self.sides)
        return n * (self.dim + (3 + queries) * e) + self.heads * (self.pairs + self._rows * n) + spread

    @property
    def _rows(self) -> int:
        """Numbers per query and head that go through the table: one more than m, for pairs without an offset."""
        return len(self.sides) * (self.vectors + 1)

    keeps_weights = True

    @property
    def largest_weight(self) -> int:
        """A matrix or a table of vectors."""
        return max(self.dim, self.vectors) * self.inner

    def work_numbers(self, itemsize: int) -> tuple[int, int]:
        """Self-attention's, beside gradients of all scores and of what goes through a table."""
        values, scores = super().work_numbers(itemsize)
        table = self.heads * (2 * self.pairs + (self.vectors + 1) * self.tokens)
        return values, scores + table


@dataclass(frozen=True)
class ScalarBiasLayer(SelfAttentionLayer):
    """A bias per head and offset, made of ``rows`` learned numbers per head (none for ALiBi)."""

    rows: int = 0

    @property
    def weights(self) -> int:
        """Self-attention's, and one number per head and row."""
        return super().weights + self.heads * self.rows

    def saved_numbers(self, batch: int, form: str) -> int:
        """X, q, k, v and the attention weights: torch's fused kernel gives no gradient of a mask."""
        return self.tokens * (self.dim + 3 * self.inner) + self.heads * self.pairs

    keeps_weights = True

    def work_numbers(self, itemsize: int) -> tuple[int, int]:
        """Self-attention's, beside gradients of weights and scores."""
        values, scores = super().work_numbers(itemsize)
        return values, scores + 2 * self.heads * self.pairs


@dataclass(frozen=True)
class GatedLayer(SelfAttentionLayer):
    """ConViT's gate: ``features`` numbers u per head make the position scores of ``vectors`` = m offsets."""

    features: int = 0
    vectors: int = 0

    @property
    def weights(self) -> int:
        """Self-attention's, and u and the gate of every head."""
        return super().weights + self.heads * (self.features + 1)

    @property
    def macs_once(self) -> int:
        """The position scores u·r[δ], the same for all samples."""
        return self.heads * self.features * self.vectors

    @property
    def mixing_products(self) -> int:
        """Self-attention's, the values a second time, and the sums with the position weights."""
        return super().mixing_products + self.tokens * self.dim * self.inner + self.pairs * self.inner

    def saved_numbers(self, batch: int, form: str) -> int:
        """X, q, k, v, a second v, both outputs; the position weights are copied for each sample of a batch."""
        n, table = self.tokens, self.heads * self.pairs
        if form in ("gather", "pairs"):
            return n * (self.dim + 3 * self.inner) + 2 * table
        return n * (self.dim + 6 * self.inner + self.heads) + (batch > 1) * table

    def saved_once(self, form: str) -> int:
        """The encoding r, the position weights, the gate twice."""
        return self.features * self.vectors + self.heads * (self.pairs + 2)

    def work_numbers(self, itemsize: int) -> tuple[int, int]:
        """Self-attention's, beside gradients of position weights and of the second v."""
        values, scores = super().work_numbers(itemsize)
        return values, scores + self.heads * self.pairs + 2 * self.tokens * self.inner


@dataclass(frozen=True)
class RotaryLayer(SelfAttentionLayer):
    """Rotations in ``axes`` dimensions.

    Attributes:
        learned: whether the angles are parameters.
        extra: channels that queries and keys of a head gain, two where a CLS token is not turned.
    """

    axes: int = 1
    learned: bool = False
    extra: int = 0

    @property
    def wide(self) -> int:
        """Channels of the queries of all heads, the extra ones included."""
        return self.inner + self.heads * self.extra

    @property
    def weights(self) -> int:
        """Self-attention's, and one angle per axis, pair of channels and head where they are learned."""
        return super().weights + self.angles

    @property
    def angles(self) -> int:
        """Number of learned angles."""
        return self.learned * self.axes * self.inner // 2

    def mixing(self, pairs: int) -> int:
        """Self-attention's, and two per channel to turn every query and every key once."""
        return super().mixing(pairs) + 4 * self.tokens * self.inner

    @property
    def mixing_as_printed(self) -> int:
        """Self-attention's: turning is elementwise, which the printed rule leaves out."""
        return super().mixing(self.pairs)

    @property
    def macs_once(self) -> int:
        """Positions by learned angles."""
        return self.tokens * self.angles

    @property
    def mixing_products(self) -> int:
        """Self-attention's on the wider heads; with an unturned CLS two products of all tokens with its vectors."""
        rest = 2 * self.tokens * self.inner if self.extra else 0
        return 3 * self.tokens * self.dim * self.inner + 2 * self.pairs * self.wide + rest

    def saved_numbers(self, batch: int, form: str) -> int:
        """X, the turned q and k, v and the output in the fused kernel's order, one log-sum per row, and ``unturned``.

        The literal form, one rotation per pair, is not counted: its numbers are those of the fast form.
        """
        n = self.tokens
        return n * (self.dim + 4 * self.wide + self.heads) + self.unturned(batch)

    def unturned(self, batch: int) -> int:
        """Numbers kept of q and k before they turn: all for learned angles, those that CLS needs otherwise."""
        n, e = self.tokens, self.inner
        both = 2 * n * e if self.learned or (self.extra and batch == 1) else 0
        return both + bool(self.extra) * (2 * n * e + (batch > 1) * 2 * e)

    def saved_once(self, form: str) -> int:
        """For learned angles: positions, phases, cosines and sines."""
        return self.learned * self.tokens * (2 * self.axes + 3 * self.inner) // 2

    def work_numbers(self, itemsize: int) -> tuple[int, int]:
        """Self-attention's on the wider heads, and gradients before the turn."""
        return 0, self.tokens * (4 * self.wide + 2 * self.inner + 2 * self.dim)


@dataclass(frozen=True)
class RotaryTranslutionLayer(RotaryLayer):
    """Rotary scores and one value matrix per relation."""

    @property
    def weights(self) -> int:
        """Shared queries and keys, angles where they are learned, a value matrix for each relation."""
        return super().weights + (self.relations - 1) * self.dim * self.inner

    def mixing(self, pairs: int) -> int:
        """Rotary's, the values once per pair instead of once per token."""
        return super().mixing(pairs) + (pairs - self.tokens) * self.dim * self.inner

    @property
    def mixing_products(self) -> int:
        """Rotary scores and the values of attended pairs."""
        scores = super().mixing_products - self.tokens * self.dim * self.inner - self.pairs * self.wide
        return scores + self.attended * self.dim * self.inner

    def saved_numbers(self, batch: int, form: str) -> int:
        """X, reordered for the values in a batch, the turned q and k, the attention weights, and ``unturned``."""
        n, literal = self.tokens, form in ("gather", "pairs")
        values = self.pairs * (self.inner + (form == "gather") * self.dim * (1 + self.inner)) if literal else 0
        tokens = (1 + (batch > 1)) * self.dim + 2 * self.wide
        return n * tokens + self.heads * self.pairs + self.unturned(batch) + values

    @property
    def projected(self) -> tuple[str, int]:
        """The values, C′ channels."""
        return "v", self.inner

    keeps_weights = True

    @property
    def reads(self) -> int:
        """Query and key."""
        return 2

    @property
    def largest_weight(self) -> int:
        """The value matrices."""
        return self.relations * self.dim * self.inner

    def work_numbers(self, itemsize: int) -> tuple[int, int]:
        """The largest group of values beside tables of all pairs, then rotary's without the values."""
        n, c, e, wide = self.tokens, self.dim, self.inner, max(1, 4 // itemsize)
        table, pairs = self.heads * self.pairs, self.heads * self.attended
        values = n * (e + wide * c) + max(2 * pairs + self.loop(c, e), 3 * pairs + 2 * table)
        return values, table + super().work_numbers(itemsize)[1] - n * self.wide


@dataclass(frozen=True)
class GeneralLayer(TranslutionLayer):
    """Translution with matrices made of ``functions`` tables; ``network`` has the hidden channels of an MLP, or 0.

    Attributes:
        functions: tables per letter, the three roles of CLS included.
        table: whether they are the relations' own ("table"), so that nothing has to be made.
        network: hidden channels of the learned functions, 0 where the functions are fixed.
        learned: functions that the network returns.
        vectors: number m of offsets.
        axes: dimensions of an offset.
    """

    functions: int = 0
    table: bool = False
    network: int = 0
    learned: int = 0
    vectors: int = 0
    axes: int = 1

    @property
    def weights(self) -> int:
        """3·K·C·C′, and those of the network."""
        network = self.network * (self.axes + 1) + self.learned * (self.network + 1)
        return 3 * self.functions * self.dim * self.inner + bool(self.network) * network

    @property
    def macs_once(self) -> int:
        """The functions of all offsets, and the matrices of all relations; one function is an elementwise factor."""
        network = self.vectors * self.network * (self.axes + self.learned)
        tables = (self.functions > 1) * 3 * self.relations * self.functions * self.dim * self.inner
        return 0 if self.table else network + tables

    def macs_true(self, attended_only: bool = False) -> int:
        """Translution's, and ``macs_once``."""
        return super().macs_true(attended_only) + self.macs_once

    def saved_once(self, form: str) -> int:
        """Functions, matrices, and what the network keeps."""
        if self.table:
            return 0
        network = bool(self.network) * self.vectors * (self.axes + 2 * self.network)
        return network + self.relations * (self.functions + 3 * self.dim * self.inner)

    def work(self, batch: int = 1, itemsize: int = 4) -> int:
        """Translution's, and the gradients of the made matrices of two letters."""
        made = 0 if self.table else 2 * self.relations * self.dim * self.inner
        return super().work(batch, itemsize) + itemsize * made

    @property
    def largest_weight(self) -> int:
        """The tables of one letter."""
        return self.functions * self.dim * self.inner


@dataclass(frozen=True)
class AbsoluteTranslutionLayer(TranslutionLayer):
    """Translution whose layer adds an embedding (n, C) to its input."""

    @property
    def weights(self) -> int:
        """Translution's, and n·C."""
        return super().weights + self.tokens * self.dim
