"""The closed formulas of the competing encodings: self-attention and what each adds to it.

m is the number of offsets of the table, CLS roles not counted. Source: seed 000, appendix E, Tables 4 and 8; chapters
"Vectors", "Scalars and gates" and "Rotations".
"""

from dataclasses import dataclass

from translution_lib.cost.kinds import SelfAttentionLayer


@dataclass(frozen=True)
class VectorLayer(SelfAttentionLayer):
    """Relative vectors: ``sides`` of "kv" have one of m ``vectors`` per offset, for all heads together or shared.

    Label: eq-vectors-cost, eq-vectors-parameters.
    """

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
            return n * (self.dim + (3 + ("k" in self.sides)) * e) + self.heads * self.pairs
        spread = (batch > 1 and self.per_head) * len(self.sides) * self.vectors * e
        queries = "k" in self.sides and (batch > 1 or "v" not in self.sides)
        return n * (self.dim + (3 + queries) * e) + self.heads * (self.pairs + self._rows * n) + spread

    def saved_once(self, form: str) -> int:
        """The literal equations gather a vector for every pair."""
        return len(self.sides) * self.pairs * self.inner if form in ("gather", "pairs") else 0

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
class CountedLayer(SelfAttentionLayer):
    """Attention whose parts have no formula here: its numbers and its products are counted, on the meta device.

    What it keeps is estimated as self-attention that keeps its attention weights.
    """

    numbers: int = 0
    products: int = 0
    keeps_weights = True

    @property
    def weights(self) -> int:
        """All parameters but those of the output map."""
        return self.numbers

    @property
    def mixing_products(self) -> int:
        """The matrix products of one sample, but that of the output map."""
        return self.products

    def saved_numbers(self, batch: int, form: str) -> int:
        """X, q, k, v and the attention weights."""
        return self.tokens * (self.dim + 3 * self.inner) + self.heads * self.pairs


@dataclass(frozen=True)
class ScalarBiasLayer(SelfAttentionLayer):
    """A bias per head and offset, made of ``rows`` learned numbers per head (none for ALiBi).

    Label: eq-scalars-parameters.
    """

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
        """Self-attention's, and the sums with the position weights."""
        return super().mixing_products + self.pairs * self.inner

    def saved_numbers(self, batch: int, form: str) -> int:
        """X, q, k, v, both outputs; v in another order and the position weights are copied for a batch."""
        n, table = self.tokens, self.heads * self.pairs
        if form in ("gather", "pairs"):
            return n * (self.dim + 3 * self.inner) + 2 * table
        return n * (self.dim + (5 + (batch > 1)) * self.inner + self.heads) + (batch > 1) * table

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
