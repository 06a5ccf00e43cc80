"""The closed formulas of each kind of layer. Source: seed 000, eq. (1) and (2); chapter "What it costs"."""

from dataclasses import dataclass

from translution_lib.cost.base import Layer


@dataclass(frozen=True)
class SelfAttentionLayer(Layer):
    """Self-attention; ``absolute`` is the learned embedding (n, C) that the layer itself may add.

    Label: eq-attention-cost, eq-cost-layer, eq-cost-true.
    """

    absolute: bool = False

    @property
    def weights(self) -> int:
        """3·C·C′, and n·C where the layer adds its own embedding."""
        return 3 * self.dim * self.inner + self.absolute * self.tokens * self.dim

    @property
    def mixing_as_printed(self) -> int:
        """3·n·C·C′ + 2·n²·C′."""
        return self.mixing(self.pairs)

    def mixing(self, pairs: int) -> int:
        """3·n·C·C′ + 2·pairs·C′."""
        return 3 * self.tokens * self.dim * self.inner + 2 * pairs * self.inner

    @property
    def mixing_products(self) -> int:
        """All n² scores: torch's fused attention is counted without the saving of a mask."""
        return self.mixing(self.pairs)

    def saved_numbers(self, batch: int, form: str) -> int:
        """X, q, k, v and one log-sum per row; the other forms keep the attention weights as well."""
        n, kept = self.tokens, self.tokens * (self.dim + 3 * self.inner)
        return kept + self.heads * (n if form in ("fast", "lean") else n * n)

    keeps_weights = False

    @property
    def reads(self) -> int:
        """Query, key and value."""
        return 3

    def work_numbers(self, itemsize: int) -> tuple[int, int]:
        """Gradients of the output, of q, k, v and of the input, once from each."""
        return 0, self.tokens * (4 * self.inner + 2 * self.dim)


@dataclass(frozen=True)
class ConvolutionLayer(Layer):
    """Convolution with a number of taps; padding counts as if it were multiplied, as torch's counter does.

    Label: eq-conv-cost.
    """

    taps: int = 9

    @property
    def weights(self) -> int:
        """One matrix per tap."""
        return self.taps * self.dim ** 2

    @property
    def mixing_as_printed(self) -> int:
        """n·taps·C²."""
        return self.tokens * self.weights

    def mixing(self, pairs: int) -> int:
        """n·taps·C², whatever the table masks."""
        return self.tokens * self.weights

    @property
    def mixing_products(self) -> int:
        """n·taps·C²."""
        return self.tokens * self.weights

    def saved_numbers(self, batch: int, form: str) -> int:
        """The input."""
        return self.tokens * self.dim

    keeps_weights = False

    @property
    def largest_weight(self) -> int:
        """The kernel."""
        return self.weights

    def work_numbers(self, itemsize: int) -> tuple[int, int]:
        """Gradients of the output and of the input, and both in the order that a convolution wants."""
        return 0, 4 * self.tokens * self.dim


@dataclass(frozen=True)
class TranslutionLayer(Layer):
    """Translution; ``relative`` holds the letters of "qkv" that have one matrix per relation.

    Label: eq-rel-parameters, eq-cost-layer, eq-cost-true.
    """

    relative: str = "qkv"

    def copies(self, per_relation: int) -> int:
        """Sum of ``per_relation`` over the relative letters and of 1 over the shared ones."""
        return len(self.relative) * per_relation + 3 - len(self.relative)

    @property
    def weights(self) -> int:
        """C·C′ for every relation of a relative letter, C·C′ for a shared letter."""
        return self.copies(self.relations) * self.dim * self.inner

    @property
    def mixing_as_printed(self) -> int:
        """Self-attention's count: the printed columns ignore that the matrices differ from pair to pair."""
        return (3 * self.tokens * self.dim + 2 * self.pairs) * self.inner

    def mixing(self, pairs: int) -> int:
        """C·C′ per pair for a relative letter, per token for a shared one; 2·C′ per pair for score and sum."""
        per_letter = len(self.relative) * pairs + (3 - len(self.relative)) * self.tokens
        return per_letter * self.dim * self.inner + 2 * pairs * self.inner

    @property
    def mixing_products(self) -> int:
        """Projections of attended pairs; scores and sums only where both, or the value, are shared."""
        letters = len(self.relative) * self.attended + (3 - len(self.relative)) * self.tokens
        dense = ("q" not in self.relative and "k" not in self.relative) + ("v" not in self.relative)
        return letters * self.dim * self.inner + dense * self.pairs * self.inner

    def saved_numbers(self, batch: int, form: str) -> int:
        """Attention weights, and what each letter keeps."""
        n, pairs, c, e = self.tokens, self.pairs, self.dim, self.inner
        if form in ("fast", "lean"):
            return self.heads * pairs + n * self._fast_rows(batch)
        extra = len(self.relative) * pairs * (e + (c + c * e if form == "gather" else 0))
        shared = 3 - len(self.relative)
        return self.heads * pairs + extra + shared * n * e + (shared > 0) * n * c

    def _fast_rows(self, batch: int) -> int:
        """Numbers kept per token by the fast form: scores and values reorder x, which a batch of one does not need."""
        shared, scores, values = 3 - len(self.relative), set("qk") & set(self.relative), "v" in self.relative
        x = 1 if batch == 1 else bool(scores) + values + (shared > 0)
        return x * self.dim + shared * self.inner

    @property
    def projected(self) -> tuple[str, int]:
        """The relative letters, C′ channels."""
        return self.relative, self.inner

    @property
    def largest_weight(self) -> int:
        """The matrices of one letter."""
        return (self.relations if self.relative else 1) * self.dim * self.inner

    @property
    def reads(self) -> int:
        """One per shared letter."""
        return 3 - len(self.relative)

    def work_numbers(self, itemsize: int) -> tuple[int, int]:
        """The largest group beside tables of all pairs, and the sums over relations, in four bytes at least."""
        n, c, e, wide = self.tokens, self.dim, self.inner, max(1, 4 // itemsize)
        table, pairs = self.heads * self.pairs, self.heads * self.attended
        values = n * (e + wide * c) + max(2 * pairs + self.loop(c, e), 3 * pairs + 2 * table)
        scores = n * (1 + 2 * wide) * c + max(table + pairs + self.loop(c, e), 2 * table + pairs)
        freed = table + n * e
        return values, scores - freed


@dataclass(frozen=True)
class LoRLayer(Layer):
    """LoR-Translution; ``low`` = h·C¹ and ``core`` = h·C² channels of all heads, ``shared``: with Wq, Wk, Wv.

    With ``diagonal`` cores there are two diagonals for each relation instead of three matrices.

    Label: eq-lor-parameters, eq-cost-layer, eq-cost-true, eq-sharing-cost.
    """

    low: int = 24
    core: int = 24
    shared: bool = True
    diagonal: bool = False

    @property
    def per_core(self) -> int:
        """Numbers of a relation, and multiply–adds with them for a pair: 3·R1·R2, or 2·R1 with diagonals."""
        return 2 * self.low if self.diagonal else 3 * self.low * self.core

    @property
    def per_token(self) -> int:
        """Multiply–adds per token of W1 (three of them) and W2: 3·C·R1 + R2·C′; also their parameters."""
        return 3 * self.dim * self.low + self.core * self.inner

    @property
    def weights(self) -> int:
        """3·C·C′ where shared, W1 and W2, and the cores of every relation."""
        return 3 * self.shared * self.dim * self.inner + self.per_token + self.relations * self.per_core

    @property
    def mixing_as_printed(self) -> int:
        """Self-attention (where shared) plus W1, W2 and three cores once per token."""
        return self._wide(self.pairs) + self.tokens * (self.per_token + self.per_core)

    def mixing(self, pairs: int) -> int:
        """Self-attention, W1 and W2 per token; the cores and 2·R2 for score and sum per pair."""
        return self._wide(pairs) + self.tokens * self.per_token + pairs * (self.per_core + 2 * self.core)

    @property
    def mixing_products(self) -> int:
        """The cores of attended pairs, if they are matrices; the scores of the shared part for all pairs."""
        cores = 0 if self.diagonal else self.attended * self.per_core
        return self._wide(self.pairs) + self.tokens * self.per_token + cores

    def _wide(self, pairs: int) -> int:
        return self.shared * (3 * self.tokens * self.dim + 2 * pairs) * self.inner

    def saved_numbers(self, batch: int, form: str) -> int:
        """Attention weights, x, the shared q, k, v, x·W1 of three letters, the input of W2, and weighed diagonals."""
        n, pairs, r1, r2 = self.tokens, self.pairs, self.low, self.core
        per_pair = {"fast": 0, "lean": 0, "pairs": r2, "gather": r2 + r1 + r1 * r2}[form]
        weighed = 2 * r1 * pairs if self.diagonal and not per_pair else 0
        tokens = self.dim + 3 * self.shared * self.inner + r2 + (3 * r1 if form in ("fast", "lean") else 0)
        return self.heads * pairs + n * tokens + 3 * pairs * per_pair + weighed

    def saved_once(self, form: str) -> int:
        """The diagonals of all pairs, for scores and for values."""
        return 2 * self.low * self.pairs if self.diagonal and form in ("fast", "lean") else 0

    @property
    def projected(self) -> tuple[str, int]:
        """All three letters, the channels of the cores; diagonals keep no projection."""
        return ("qkv" if self.core and not self.diagonal else ""), self.core

    @property
    def largest_weight(self) -> int:
        """The cores of one letter, or a shared matrix."""
        return max(self.relations * self.low * (1 if self.diagonal else self.core), self.dim * self.inner)

    @property
    def reads(self) -> int:
        """W1 of three letters, and the shared query, key and value."""
        return 3 + 3 * self.shared

    def work_numbers(self, itemsize: int) -> tuple[int, int]:
        """As Translution on the low dimension, beside the gradients of the output and of the input."""
        n, wide, group = self.tokens, max(1, 4 // itemsize), self.loop(self.low, self.core)
        table, pairs = self.heads * self.pairs, self.heads * self.attended
        if self.diagonal:                                       # products of all pairs, and their gradients
            return n * self.inner + 2 * self.pairs * self.core + 2 * table, 2 * self.pairs * self.core
        values = n * (self.inner + self.core + wide * self.low) + max(2 * pairs + group, 3 * pairs + 2 * table)
        scores = n * 2 * (self.dim + wide * self.low) + max(table + pairs + group, 2 * table + pairs)
        return values, scores - table
