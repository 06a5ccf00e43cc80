"""What every mixing layer costs: parameters, multiply–adds, bytes kept for backward, by closed formula.

A multiply–add counts as one. The symbols are those of the chapter "What it costs": n tokens, |A| attended pairs, ρ
relations, C = dim, C′ = inner = heads · head dimension. Source: seed 000, section 3.4 and Tables 2–8, 10, 11.
"""

from dataclasses import dataclass

from translution_lib.functional import grouped

FORMS = ("fast", "gather", "pairs", "lean")


@dataclass(frozen=True)
class Layer:
    """The numbers that every mixer's cost depends on, and the cost of its output map.

    Attributes:
        tokens: n, the CLS token included.
        relations: number ρ of relations in the table.
        attended: number of pairs that are not masked.
        dim: C, channels of a token.
        inner: C′, channels of all heads together.
        heads: number of heads.
        output: whether the output map (C′ + 1)·C is there.
        group: most pairs that the fast form multiplies at once, those of a relation and of its mirror image.
    """

    tokens: int
    relations: int
    attended: int
    dim: int
    inner: int
    heads: int
    output: bool = True
    group: int = 0

    @property
    def pairs(self) -> int:
        """n², masked pairs included."""
        return self.tokens ** 2

    @property
    def parameters(self) -> int:
        """Number of trainable numbers."""
        return self.weights + self.output * (self.inner + 1) * self.dim

    @property
    def macs_as_printed(self) -> int:
        """Multiply–adds as the seed's FLOPs columns count them, a matrix per pair once per token."""
        return self.mixing_as_printed + self.output_macs

    def macs_true(self, attended_only: bool = False) -> int:
        """Multiply–adds of the equations, scores and weighted sums included, softmax and biases not.

        Args:
            attended_only: count the pairs that are not masked, instead of all n² that the authors' code computes.
        """
        return self.mixing(self.attended if attended_only else self.pairs) + self.output_macs

    @property
    def macs_products(self) -> int:
        """Multiply–adds of the matrix products that the library's fast form runs; ``count_macs`` sees these.

        With one head it may run fewer: where a relation has more rows than channels, its scores are one product.
        """
        return self.mixing_products + self.macs_once + self.output_macs

    @property
    def macs_once(self) -> int:
        """Those of ``macs_products`` that a batch shares: products of parameters and positions alone."""
        return 0

    @property
    def output_macs(self) -> int:
        """Multiply–adds of the output map."""
        return self.output * self.tokens * self.inner * self.dim

    def saved_bytes(self, batch: int = 1, itemsize: int = 4, form: str = "fast") -> int:
        """Bytes that the layer keeps for backward besides its parameters and integer tables, no dropout, no window.

        Args:
            batch: samples.
            itemsize: bytes of a number.
            form: "fast" is what the library does: it computes the projected pairs again in backward, or keeps them
                where ``KEEP_BYTES`` of ``functional.grouped`` is set and allows it; "lean" never keeps them;
                "gather" gathers the matrix of every pair, as ``definition()`` and the authors' code do; "pairs" makes
                the vectors of every pair, but no matrices.

        Raises:
            ValueError: a batch or itemsize that is not a positive integer, an unknown form.
        """
        if form not in FORMS:
            raise ValueError(f"form must be one of {FORMS}, got {form!r}")
        check_positive(batch=batch, itemsize=itemsize)
        kept = 0 if form in ("gather", "pairs") else self.kept(batch, itemsize, form)
        numbers = self.saved_numbers(batch, form) + kept + self.output * self.tokens * self.inner
        return itemsize * (batch * numbers + self.saved_once(form))

    def saved_once(self, form: str) -> int:
        """Numbers kept once for a whole batch: what is made of parameters alone."""
        return 0

    def kept(self, batch: int, itemsize: int, form: str = "fast") -> int:
        """Numbers per sample of the projected pairs that the fast form keeps for backward.

        Label: eq-fit-recompute.
        """
        sides, width = self.projected
        scores, values = sum(letter in sides for letter in "qk"), "v" in sides
        size = self.attended * batch * width * itemsize
        keep = [form == "fast" and needed * size <= grouped.KEEP_BYTES for needed in (2, 1)]
        needed = values * keep[1] * (self.heads > 1)        # with one head, backward needs no values
        return (scores * keep[0] + needed) * self.attended * width

    keeps_weights = True
    """Whether the attention weights of all pairs are kept."""

    @property
    def reads(self) -> int:
        """Products that read the input of the layer as it is, token by token."""
        return 0

    def work_numbers(self, itemsize: int) -> tuple[int, int]:
        """Numbers per sample that backward needs: while it goes through the values, through the scores."""
        raise NotImplementedError

    @property
    def projected(self) -> tuple[str, int]:
        """Letters of "qkv" that are projected once per pair, and the channels of a projected pair."""
        return "", 0

    def work(self, batch: int = 1, itemsize: int = 4) -> int:
        """Bytes that backward through the fast form needs at its peak, besides what is saved and gradients of weights.

        A leading count, not an exact one: small pieces are left out. Sums over relations take at least four bytes.
        """
        values, scores = self.work_numbers(itemsize)
        return itemsize * batch * max(values, scores)

    @property
    def largest_weight(self) -> int:
        """Numbers of the largest parameter."""
        return self.dim * self.inner

    def loop(self, rows: int, columns: int) -> int:
        """Numbers per sample that the largest group of pairs needs in backward: rows, projections, their gradients."""
        mirrored = self.group < self.attended and self.attended == self.pairs
        gathered = (3 * self.group // 2 if mirrored else 2 * self.group) * rows
        return gathered + self.group * (rows + 3 * columns)

    # What a kind of layer adds: everything before the output map.
    @property
    def weights(self) -> int:
        """Parameters before the output map."""
        raise NotImplementedError

    @property
    def mixing_as_printed(self) -> int:
        """Multiply–adds before the output map, by the printed rule."""
        raise NotImplementedError

    def mixing(self, pairs: int) -> int:
        """Multiply–adds before the output map when ``pairs`` pairs are computed."""
        raise NotImplementedError

    @property
    def mixing_products(self) -> int:
        """Multiply–adds of matrix products before the output map, in the fast form, without ``macs_once``."""
        raise NotImplementedError

    def saved_numbers(self, batch: int, form: str) -> int:
        """Numbers kept per sample, the projected pairs and the input of the output map excepted."""
        raise NotImplementedError


def check_positive(**values: object) -> None:
    """Refuse what is not an integer from 1 up."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be an integer ≥ 1, got {value!r}")
