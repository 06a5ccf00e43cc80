"""The closed formula of RiemannFormer's attention. Source: seed 003, equations (1)–(22); chapter "RiemannFormer"."""

from dataclasses import dataclass

from translution_lib.cost.encodings import RotaryLayer


@dataclass(frozen=True)
class RiemannLayer(RotaryLayer):
    """Queries and keys carried to a common space, once per token.

    Attributes:
        still: whether the maps turn nothing.
        skew: whether the maps are exponentials of full learned matrices, d × d per token and head, instead of blocks.
        scales: learned numbers of the metric; None without one.
        squashed: whether a sigmoid keeps them below one.
        turning: whether the axes of the metric turn with the token.
        focus: "" for none, "before" or "after" for locality focusing before or after the softmax.

    Label: eq-cifar-parameters.
    """

    still: bool = False
    skew: bool = False
    scales: int | None = None
    squashed: bool = True
    turning: bool = False
    focus: str = ""

    @property
    def weights(self) -> int:
        """Self-attention's, angles or matrices where they are learned, the metric's, and one σ per head."""
        matrices = self.skew * self.axes * self.inner * self.width
        return super().weights + matrices + (self.scales or 0) + bool(self.focus) * self.heads

    @property
    def width(self) -> int:
        """Channels d of a head."""
        return self.inner // self.heads

    @property
    def placed(self) -> int:
        """Tokens that have a place: all but CLS."""
        return self.tokens - bool(self.extra)

    @property
    def carrying(self) -> int:
        """Multiply–adds that carry a query or a key, of all heads: by blocks of two, by a full matrix, or not."""
        return self.inner * (self.width if self.skew else 0 if self.still else 2)

    def mixing(self, pairs: int) -> int:
        """Self-attention's, every query and key carried once, and scaled once where there is a metric."""
        scaling = self.inner if self.scales is not None else 0
        plain = 3 * self.tokens * self.dim * self.inner + 2 * pairs * self.inner
        return plain + 2 * self.tokens * (self.carrying + scaling)

    @property
    def macs_once(self) -> int:
        """None: the phases are sums, and the exponential of a matrix is no product that a counter sees."""
        return 0

    @property
    def mixing_products(self) -> int:
        """Self-attention's on the wider heads, the unturned CLS, and the products with full matrices."""
        rest = 2 * self.tokens * self.inner if self.extra else 0
        maps = 2 * self.placed * self.carrying if self.skew else 0
        sums = self.pairs * (self.inner if self.focus == "after" else self.wide)
        return 3 * self.tokens * self.dim * self.inner + self.pairs * self.wide + sums + rest + maps

    def saved_numbers(self, batch: int, form: str) -> int:
        """X twice where an embedding is added, what the fused kernel keeps or the weights, and ``unturned``.

        Focusing keeps the weights: before the softmax because torch's fused kernel gives no gradient of a bias.
        """
        n, x = self.tokens, (1 + self.absolute) * self.tokens * self.dim
        kept = {"": n * (4 * self.wide + self.heads), "before": 3 * n * self.wide + self.heads * self.pairs,
                "after": n * (2 * self.wide + self.inner) + 2 * self.heads * self.pairs}[self.focus]
        return x + kept + self.unturned(batch)

    def unturned(self, batch: int) -> int:
        """Numbers kept of q and k before they are carried, and between the scaling and the turning."""
        n, e = self.tokens, self.inner
        whole = (self.scales is not None and not self.turning) or (self.extra and batch == 1)
        between = (self.learned or self.skew) + self.turning
        rest = 2 * n * e + (batch > 1) * 2 * e if self.extra else 0
        return 2 * n * e * bool(whole) + 2 * self.placed * e * between + rest

    def saved_once(self, form: str) -> int:
        """What is made of positions and parameters: angles or matrices, factors of the metric, log λ."""
        t, a, d, e = self.placed, self.axes, self.width, self.inner
        turns = 0 if self.still else 2 * d + (3 * t * e + t * a if self.learned else 2 * t * d)
        if self.skew:
            turns = (a + 2 * t * e) * d + t * a
        metric = 2 * t * d
        if self.scales is not None:
            metric = 3 * t * e + t * a + a * d + 2 * self.squashed * self.scales
        factors = self.heads * self.pairs if self.focus == "after" else 0
        focus = 2 * self.heads + t * t + factors if self.focus else 0
        return turns + metric + focus

    @property
    def keeps_weights(self) -> bool:  # type: ignore[override]
        """Whether the attention weights of all pairs are kept."""
        return bool(self.focus)

    @property
    def largest_weight(self) -> int:
        """A matrix, or the skew matrices."""
        return max(self.dim, self.skew * self.axes * self.width) * self.inner

    def work_numbers(self, itemsize: int) -> tuple[int, int]:
        """Rotary's, beside gradients of weights and scores where they exist."""
        values, scores = super().work_numbers(itemsize)
        return values, scores + 2 * bool(self.focus) * self.heads * self.pairs
