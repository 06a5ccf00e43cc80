"""The closed formulas of Translution's relatives: rotary scores, matrices made of functions, an absolute embedding.

Source: seed 000, appendices B and F; chapters "Rotations", "Continuous positions" and "The taxonomy theorem".
"""

from dataclasses import dataclass

from translution_lib.cost.encodings import RotaryLayer
from translution_lib.cost.kinds import TranslutionLayer


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
