"""The closed formulas of attention with random features: its weights are never formed, and nothing grows with n².

The draws ω are a buffer: saved with the layer, trained by nobody, and no parameter. There is no dropout of weights.
Features are computed in float32 or better, whatever the type of the layer. Source: seed 002, section 2.1; chapters
"Random features" and "Relative Performers".
"""

from dataclasses import dataclass

from translution_lib.cost.kinds import SelfAttentionLayer
from translution_lib.functional.linear_attention import chunk_length


@dataclass(frozen=True)
class PerformerLayer(SelfAttentionLayer):
    """Softmax attention estimated by random features.

    Attributes:
        draws: number m of draws ω, shared by the heads.
        waves: features per draw: 1 (positive) or 2 (trigonometric).
        causal: whether the sums run over the past alone.
    """

    draws: int = 1
    waves: int = 1
    causal: bool = False

    @property
    def features(self) -> int:
        """Features f of a query or a key."""
        return self.waves * self.draws

    @property
    def wide(self) -> int:
        """Channels of the queries of all heads, those of the position included."""
        return self.inner

    @property
    def summed(self) -> int:
        """Channels of the values of all heads, each with one more for the denominator."""
        return self.inner + self.heads

    def mixing(self, pairs: int) -> int:
        """3·n·C·C′, the products with ω, and every feature by every channel, once for keys and once for queries.

        The mask changes nothing: sums over the past cost what sums over all keys do.
        """
        return self.linear_maps + self.sums_over_keys

    @property
    def sums_over_keys(self) -> int:
        """Every feature by every channel, the denominator's included, for keys and for queries."""
        return 2 * self.tokens * self.features * self.summed

    @property
    def linear_maps(self) -> int:
        """Queries, keys, values, and the products of queries and keys with ω."""
        return 3 * self.tokens * self.dim * self.inner + 2 * self.tokens * self.wide * self.draws

    @property
    def mixing_products(self) -> int:
        """As the equation; in the causal form also the pairs of each chunk, padded to whole chunks for waves alone."""
        if not self.causal:
            return self.linear_maps + self.sums_over_keys
        if self.waves == 1:
            last = self.tokens % self.chunk
            within = (self.tokens - last) * self.chunk + last ** 2
            return self.linear_maps + self.sums_over_keys + within * (self.heads * self.features + self.summed)
        per_token = 2 * self.features * self.summed + self.chunk * (self.heads * self.features + self.summed)
        return self.linear_maps + self.padded * per_token

    @property
    def chunk(self) -> int:
        """Tokens of a chunk of the causal form."""
        return min(self.tokens, chunk_length(self.features, self.summed // self.heads))

    @property
    def padded(self) -> int:
        """Tokens of the causal form, its last chunk filled up."""
        return -(-self.tokens // self.chunk) * self.chunk

    def saved_numbers(self, batch: int, form: str) -> int:
        """X, twice where an embedding is added to it, and what is kept in float32 or better."""
        return (1 + self.absolute) * self.tokens * self.dim + self.precise(form)

    def saved_bytes(self, batch: int = 1, itemsize: int = 4, form: str = "fast") -> int:
        """Bytes kept for backward, see :class:`Layer`; features take four bytes at least."""
        total = super().saved_bytes(batch, itemsize, form)
        return total + batch * max(0, 4 - itemsize) * self.precise(form)

    def precise(self, form: str) -> int:
        """Numbers per sample that the features need: q, k, the maps, and the sums with their denominators."""
        n, h = self.tokens, self.heads
        if form in ("gather", "pairs"):
            return n * (2 * self.wide + self.inner) + self.maps + n * h * (2 * self.features + 2 * n + 3)
        return 2 * n * self.wide + self.sums()

    @property
    def maps(self) -> int:
        """Numbers that trigonometric maps of queries and keys keep besides their results: scale, phases, waves."""
        return 2 * self.tokens * self.heads * (1 + self.draws + self.features) if self.waves == 2 else 0

    def sums(self) -> int:
        """Numbers per sample of the fast form: the features, the values and what is summed over the keys.

        Positive features are made chunk by chunk, and again in backward: kept are states with their scales, one, or in
        the causal form one per chunk.
        """
        n, h, f, e = self.tokens, self.heads, self.features, self.summed
        rows, chunks = (self.padded, self.padded // self.chunk) if self.causal else (n, 1)
        if self.waves == 1:
            return chunks * f * (h + e) + 2 * n * e + 2 * n * h
        if not self.causal:
            return self.maps + 2 * n * h * f + 2 * n * e + f * e + 2 * n * h
        return self.maps + rows * (2 * h * f + h * self.chunk + 2 * e) + chunks * f * e + 2 * n * h

    keeps_weights = False

    def work_numbers(self, itemsize: int) -> tuple[int, int]:
        """Gradients of features, of what they are made of, and of queries, keys, values and the input."""
        n, h, wide = self.tokens, self.heads, max(1, 4 // itemsize)
        features = 2 * n * h * self.features
        if self.causal and self.waves == 1:                        # one chunk's features and pairs; q, k and v
            features = self.chunk * h * (5 * self.features + 2 * self.chunk) + n * (2 * self.wide + self.summed)
        return 0, wide * features + n * (4 * self.inner + 2 * self.dim)


@dataclass(frozen=True)
class FirstStrategyLayer(PerformerLayer):
    """Strategy 1: ``scales`` length scales, over all ``axes``, give queries and keys two channels each.

    With ``cls`` one token has no position.
    """

    axes: int = 1
    scales: int = 1
    cls: bool = False

    @property
    def weights(self) -> int:
        """Self-attention's, a frequency per length scale, and α and β per head and length scale."""
        return super().weights + (1 + 2 * self.heads) * self.scales

    @property
    def wide(self) -> int:
        """Channels of the queries of all heads, those of the position included."""
        return self.inner + 2 * self.heads * self.scales

    def mixing(self, pairs: int) -> int:
        """A Performer's on the wider queries and keys; the blocks (α, β) take four per length scale and head."""
        return super().mixing(pairs) + 4 * self.tokens * self.heads * self.scales

    def saved_once(self, form: str) -> int:
        """Positions and phases of the tokens that have one, and positional features."""
        return (self.tokens - self.cls) * (self.axes + self.scales) + 2 * self.tokens * self.scales


@dataclass(frozen=True)
class SecondStrategyLayer(PerformerLayer):
    """Strategy 2: half of the heads are a Performer's, half read distances.

    Attributes:
        vectors: vectors w of the distances, the zero vector of the pairs with CLS not counted.
        balls: maps E_r that the sums run over, None where they run over the offsets of a line.
        cls: whether there is a CLS token.
        placed: whether it has a place, and so no vector of its own.
    """

    vectors: int = 1
    balls: int | None = None
    cls: bool = False
    placed: bool = False

    @property
    def content(self) -> PerformerLayer:
        """The half of the heads that reads content, as a layer."""
        return PerformerLayer(self.tokens, self.relations, self.attended, self.dim, self.inner // 2, self.heads // 2,
                              False, self.group, False, self.draws, self.waves, self.causal)

    @property
    def columns(self) -> int:
        """Kernel values ρ per query: one per vector, and one for CLS."""
        return self.vectors + (self.cls and not self.placed)

    @property
    def weights(self) -> int:
        """Queries and values of all heads, keys of one half, and the vectors."""
        position = self.absolute * self.tokens * self.dim
        return 5 * self.dim * self.inner // 2 + self.vectors * self.inner // self.heads + position

    @property
    def linear_maps(self) -> int:
        """Queries, keys and values, and the products with ω: of all queries and of the keys of one half."""
        return (5 * self.dim + 3 * self.draws) * self.tokens * self.inner // 2

    @property
    def kernel(self) -> int:
        """Multiply–adds of ρ: the features of a query by those of every vector."""
        return self.tokens * self.heads // 2 * self.features * self.columns

    def mixing(self, pairs: int) -> int:
        """The content heads' sums, ρ, and one factor per vector for every channel of the other heads' sums.

        The few additions that take the sums of one distance to those of the next are not counted.
        """
        by_distance = self.tokens * self.columns * self.summed // 2
        return self.linear_maps + self.content.sums_over_keys + self.kernel + by_distance

    @property
    def macs_once(self) -> int:
        """The features of the vectors, of every head."""
        return self.heads // 2 * self.columns * self.draws * self.inner // self.heads

    @property
    def mixing_products(self) -> int:
        """The content heads', ρ, and the denominators of the other heads; their sums are elementwise.

        So is a denominator with one map.
        """
        content = self.content.mixing_products - self.content.linear_maps
        count = self.vectors if self.balls is None else self.balls
        denominators = self.heads // 2 * (self.tokens - self.cls) * count * (count > 1)
        return self.linear_maps + content + self.kernel + denominators

    def precise(self, form: str) -> int:
        """Numbers per sample that the features need: q, k, v, what the content heads keep, ρ and the sums."""
        n, half, e = self.tokens, self.heads // 2, self.inner
        if form in ("gather", "pairs"):
            return 5 * n * e // 2 + 3 * self.maps // 4 + n * half * (3 * self.features + self.columns + 4 * n + 6)
        maps = n * half * (1 + self.draws + 2 * self.features) if self.waves == 2 else 0
        kernel = n * half * self.columns + (n - self.cls) * half * (self.balls or 0)
        totals = ((self.balls is not None) + self.cls) * e // 2
        return 5 * n * e // 2 + self.content.sums() + maps + kernel + totals + n * e // 2 + 3 * n * half

    def saved_once(self, form: str) -> int:
        """The vectors with their features, and how many tokens there are at every distance."""
        half, rows, m, f = self.heads // 2, self.columns, self.draws, self.features
        maps = half * rows * (m if self.waves == 1 else 1 + m + 2 * f)
        if form in ("gather", "pairs"):
            return rows * self.inner // self.heads + maps
        maps += half * (m + rows * m) if self.waves == 1 else 0
        numbers = (self.tokens - self.cls) * (self.vectors if self.balls is None else self.balls)
        return rows * self.inner // self.heads + maps + numbers
