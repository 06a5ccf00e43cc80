"""A layer of softmax attention: what all of them share.

A subclass says how the score and the value of a pair depend on its relation: ``scores`` and ``values`` are the
equations. ``forward`` may take a faster way to the same result, and a test holds the two equal.
Source: the Translution paper, section 3.2; chapters "Self-attention" and "Relations".
"""

import copy
import math
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.backends.switch import asked, by_default, check_backend
from translution_lib.functional.attention import masked_softmax
from translution_lib.functional.checks import check_heads, check_mask, check_sizes, check_tokens
from translution_lib.functional.masks import apart
from translution_lib.functional.shared_maps import matrix
from translution_lib.relations import Relations
from translution_lib.resizing import carried, nearest_relations

DESCRIBE = {"__init__", "extra_repr", "__repr__"}


class Matrices(NamedTuple):
    """What the book writes W^q, W^k and W^v: (C, C′), or (r, C, C′) with one matrix per relation; f W is a row."""

    query: Tensor
    key: Tensor
    value: Tensor


class Mixer(nn.Module):
    """Softmax attention over the pairs of a relation table, b n c -> b n c.

    Args:
        relations: which pairs share parameters, and which are masked. A causal table also serves shorter texts.
        dim: channels C of the tokens.
        heads: number of heads.
        head_dim: channels d of a head; by default dim / heads.
        dropout: probability of dropping an attention weight while training.
        output_dropout: probability of dropping a channel of the output while training.
        output: whether a linear map with bias follows; without it heads · head_dim must equal dim.
        qkv_bias: whether the query, key and value maps that all pairs share have a bias, zero at first.
        backend: how the layer runs where no :func:`translution_lib.backend` is around the call, by the names of that.

    Raises:
        ValueError: heads that do not divide dim, sizes that are not positive integers, a dropout outside [0, 1), a
            qkv_bias of a layer without shared maps, an unknown backend.
        RuntimeError: a backend that this machine cannot run.
    """

    by_relation: ClassVar[Any] = None
    """The parameters with an entry for every relation along their first axis, by name; None where nobody said which."""

    def __init__(self, relations: Relations, dim: int, heads: int, *, head_dim: int | None = None,
                 dropout: float = 0.0, output: bool = True, output_dropout: float = 0.0,
                 qkv_bias: bool = False, backend: str = "auto") -> None:
        super().__init__()
        check_backend(backend)
        self.serves(relations)
        check_sizes(dim=dim, heads=heads, **({} if head_dim is None else {"head_dim": head_dim}))
        for name, share in (("dropout", dropout), ("output_dropout", output_dropout)):
            if not 0 <= share < 1:
                raise ValueError(f"{name} must be from 0 up to 1, got {share!r}")
        self.relations, self.dim, self.heads, self.dropout = relations, dim, heads, dropout
        self.output_dropout, self.qkv_bias, self.backend = output_dropout, qkv_bias, backend
        self.head_dim = check_heads(heads, dim) if head_dim is None else head_dim
        self.inner = heads * self.head_dim
        if not output and self.inner != dim:
            raise ValueError(f"output must be True where heads · head_dim = {self.inner} differs from dim = {dim}")
        for name in Matrices._fields:
            self.register_module(name, None)    # in the order in which they are applied; a table takes its place
        self.output = nn.Linear(self.inner, dim) if output else nn.Identity()

    def __init_subclass__(cls, **options) -> None:
        """Refuse a class that changes an equation and inherits a fast form that does not run it.

        A class with methods of its own and no ``step`` takes that of :class:`Mixer`, which runs all of them. One with
        a constructor of its own says anew what it has ``by_relation``.

        Raises:
            TypeError: ``scores``, ``weights`` or ``values`` of its own below the class whose ``mix`` would run.
        """
        super().__init_subclass__(**options)
        if "step" not in vars(cls) and {name for name, own in vars(cls).items() if callable(own)} - DESCRIBE:
            cls.step = Mixer.step   # type: ignore[method-assign]
        if "__init__" in vars(cls) and "by_relation" not in vars(cls):
            cls.by_relation = None
        fast = next(k for k, kind in enumerate(cls.__mro__) if "mix" in vars(kind))
        if cls.__mro__[fast] is not Mixer:
            for kind in cls.__mro__[:fast]:
                for name in {"scores", "weights", "values"} & vars(kind).keys():
                    raise TypeError(f"{cls.__name__} changes {name}, which the mix of {cls.__mro__[fast].__name__} "
                                    "does not run: write a mix as well, or take mix = Mixer.mix")

    @property
    def matrices(self) -> Matrices:
        """The matrices of query, key and value as the book writes them; those of shared maps are views."""
        query, key, value = (matrix(getattr(self, name)) for name in Matrices._fields)
        return Matrices(query, key, value)

    def scores(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """Return the scaled scores a_ij of all pairs, before the mask, by the literal equation."""
        raise NotImplementedError

    def values(self, alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Return Σ_j α_ij v_ij by the literal equation."""
        raise NotImplementedError

    def mix(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b n e"]:
        """Return what ``values(dropped(weights(x, mask)), x)`` returns, by the fast form."""
        return self.values(self.dropped(self.weights(x, mask)), x)

    def weights(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b h n n"]:
        """Return the attention weights α_ij: rows sum to one, masked pairs are exactly zero.

        ``mask``, b n n or b 1 n, is True where a query may read a key of the table; every query may read one.
        """
        a = self.scores(x)
        return masked_softmax(a if mask is None else a.masked_fill(~mask[:, None], -math.inf),
                              self.relations_for(x).mask_needed(x.device))

    def forward(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b n c"]:
        """Mix the tokens: attention, then the output map.

        Args:
            x: the tokens.
            mask: True where a token exists, b n: the others influence nothing and become zero; or True where a query
                may attend to a key, b n n, in addition to what the table masks. A token that may attend to nothing
                becomes zero.

        Raises:
            ValueError: an x or a mask that does not fit, a mask of pairs for a layer that forms no pairs.
        """
        self.check(x)
        check_mask(mask, x, self.no_pairs)
        table = self.relations_for(x).mask_needed(x.device)
        return self._run(x) if mask is None and table is None else apart(self._run, x, table, mask)

    def step(self, x: Float[Tensor, "b m c"], memory: Any = None) -> tuple[Float[Tensor, "b m c"], Any]:
        """Go on with a text: mix the tokens x, finite ones, that follow those in a memory.

        Over a causal table no token reads a later one, so that what is known of the tokens before stays. Here it is
        their inputs, and all rows are computed again: right for every layer, and slow. A layer that can do with the new
        rows has a step of its own; its memory is what these rows read of the tokens before.

        Args:
            x: the next tokens, often one.
            memory: what the step before returned; None at the start of a text.

        Returns:
            their rows of :meth:`forward`, as in evaluation, and the memory with them.

        Raises:
            ValueError: a table that is not causal, or more tokens than it has.
        """
        seen = longer(memory, x, 1)
        return self(seen)[:, -x.shape[1]:], seen

    def serves(self, relations: Relations) -> None:
        """Refuse a table that a layer of this class cannot serve.

        Raises:
            ValueError: as the class says.
        """

    def resized(self, relations: Relations) -> "Mixer":
        """Return a copy for another table: another size of the grid, a longer text.

        An offset that the layer knows keeps its parameters, and so do the roles of CLS and the places of an embedding;
        a new one starts with those of the nearest that is known. Nothing else changes.

        Raises:
            ValueError: a table that the class cannot serve, or of other axes, with or without CLS or causal order
                unlike this layer's; a parameter that a parametrization or a hook makes.
            NotImplementedError: a class that does not say which of its parameters belong to relations.
        """
        if self.by_relation is None:
            raise NotImplementedError(f"{type(self).__name__} must say by_relation: the names of its parameters with "
                                      "an entry for every relation, () for none")
        self.serves(relations)
        ids = nearest_relations(self.relations, relations)
        named = {name: getattr(self, name) for name in self.by_relation if getattr(self, name) is not None}
        tables = [table for table in named.values() if isinstance(table, nn.Parameter)]
        if len(tables) < len(named):
            hidden = [name for name, table in named.items() if not isinstance(table, nn.Parameter)]
            raise ValueError(f"{', '.join(hidden)} must be a parameter to go over to another table, not the result of "
                             "a parametrization or a hook; remove it first")
        # By what a deep copy puts in the place of what: a table that has two names keeps both.
        return copy.deepcopy(self, {id(self.relations): relations, **{id(t): carried(t, ids) for t in tables}})

    no_pairs = ""
    """Why a layer takes no mask of pairs; empty where it does."""

    def _run(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        given = () if mask is None else (mask,)
        with by_default(self.backend):
            literal = asked() == "definition"
            mixed = self.values(self.dropped(self.weights(x, *given)), x) if literal else self.mix(x, *given)
        return F.dropout(self.output(mixed), self.output_dropout, self.training and self.output_dropout > 0)

    @property
    def steady(self) -> bool:
        """Tell whether every training step does the same, so that nothing is dropped, drawn or counted between two."""
        return not (self.dropout or self.output_dropout)

    def relations_for(self, x: Tensor) -> Relations:
        """Return the relation table for the tokens of x: a prefix of a causal table for a shorter text."""
        return self.relations.for_length(x.shape[1])

    def dropped(self, alpha: Float[Tensor, "b h i n"]) -> Float[Tensor, "b h i n"]:
        """Drop attention weights while training."""
        return F.dropout(alpha, self.dropout, self.training) if self.dropout else alpha

    def check(self, x: Tensor) -> None:
        """Refuse an x of another shape than the layer was built for."""
        check_tokens(x)
        if x.shape[2] != self.dim:
            raise ValueError(f"x has {x.shape[2]} channels, expected dim = {self.dim}")
        self.relations_for(x)

    def extra_repr(self) -> str:
        """Describe the layer without its weights."""
        return f"dim={self.dim}, heads={self.heads}, head_dim={self.head_dim}, relations={self.relations.count}"


def longer(before: Tensor | None, new: Tensor, axis: int = -2) -> Tensor:
    """Append new tokens to what is remembered of those before, if there are any."""
    return new if before is None else torch.cat([before, new], axis)


__all__ = ["Mixer", "check_sizes"]
