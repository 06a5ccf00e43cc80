"""What a part may change of attention. Source: chapters "The taxonomy theorem" and "Add your own encoding"."""

import copy

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.relations import Relations

EQUATIONS = {"placed", "queries_keys", "bias", "weights", "passed", "values"}


class Encoding(nn.Module):
    """A part of :class:`~translution_lib.mixers.attention.Attention` that knows where tokens are.

    Its constructor takes its own options alone. The attention that it is given to copies it and calls ``start``. Each
    of the other methods is one place of the equation, and does nothing unless a part says otherwise; ``where`` is the
    relation table of the tokens at hand. A method whose name ends in ``definition`` is the literal equation of another
    one, which is fast; where there is none, the fast one is the equation.

    Attributes:
        by_rows: whether the fast methods also serve a table of some rows, those of the queries from ``where.first`` on:
            then a text is written row by row. A class with such a method of its own says so itself.
    """

    by_rows: bool = True

    def __init_subclass__(cls, **options) -> None:
        """Take it for granted of no new method that it serves some rows alone."""
        super().__init_subclass__(**options)
        if EQUATIONS & vars(cls).keys() and "by_rows" not in vars(cls):
            cls.by_rows = False

    def start(self, relations: Relations, dim: int, heads: int, head_dim: int) -> None:
        """Make parameters and tables for a layer.

        Raises:
            ValueError: a table or a width that the part cannot serve.
        """

    def entries(self, old: Relations, new: Relations) -> dict[str, tuple[int, Tensor]]:
        """Return which parameters have an axis of offsets or places: its number, and for each new entry the old one.

        All others stay as they are when a layer goes from one table to another.
        """
        return {}

    def resized(self, old: Relations, new: Relations, dim: int, heads: int, head_dim: int) -> "Encoding":
        """Return a copy that has started with another table, with the parameters of this one.

        Raises:
            ValueError: a table that the part cannot serve; a parameter that has another shape there and is not among
                ``entries``.
        """
        part, state = copy.deepcopy(self, {id(old): new}), self.state_dict()
        for name, (axis, ids) in self.entries(old, new).items():
            state[name] = state[name].index_select(axis, ids.to(state[name].device))
        with torch.random.fork_rng(devices=[]):
            part.start(new, dim, heads, head_dim)
        for like in [*self.parameters(), *self.buffers()][:1]:
            part.to(like.device, like.dtype)
        started = part.state_dict()
        for name, table in state.items():
            if table.shape != started[name].shape:
                raise ValueError(f"{type(self).__name__} must name {name} among its entries: the new table wants the "
                                 f"shape {tuple(started[name].shape)}, got {tuple(table.shape)}")
        part.load_state_dict(state)
        for ours, theirs in zip(part.parameters(), self.parameters(), strict=True):
            ours.requires_grad_(theirs.requires_grad)
        return part

    def placed(self, x: Float[Tensor, "b n c"], where: Relations) -> Float[Tensor, "b n c"]:
        """Return what queries, keys and values are made of."""
        return x

    def queries_keys(self, q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h n d"],
                     where: Relations) -> tuple[Tensor, Tensor]:
        """Return queries and keys whose products are the scores times √d; they may have more channels than before."""
        return q, k

    def queries_keys_definition(self, q: Float[Tensor, "b h n n d"], k: Float[Tensor, "b h n n d"],
                                where: Relations) -> tuple[Tensor, Tensor]:
        """Return the query q_ij and the key k_ji of every pair."""
        n, b = where.n, len(q)
        q, k = rearrange(q, "b h i j d -> (b j) h i d"), rearrange(k, "b h i j d -> (b i) h j d")
        q, k = self.queries_keys(q, k, where)
        return (rearrange(q, "(b j) h i d -> b h i j d", b=b, j=n),
                rearrange(k, "(b i) h j d -> b h i j d", b=b, i=n))

    def bias(self, q: Float[Tensor, "b h n d"], where: Relations) -> Tensor | None:
        """Return what is added to the scaled scores, of a shape that broadcasts to b h n n; q as it was projected."""
        return None

    def bias_definition(self, q: Float[Tensor, "b h n d"], where: Relations) -> Tensor | None:
        """Return the same by the literal equation."""
        return self.bias(q, where)

    def weights(self, alpha: Float[Tensor, "b h i n"], where: Relations) -> Float[Tensor, "b h i n"]:
        """Return the attention weights, whose rows sum to one, from those of the softmax."""
        return alpha

    def passed(self, alpha: Float[Tensor, "b h i n"], where: Relations) -> Float[Tensor, "b h i n"]:
        """Return which part of its weight a value passes on."""
        return alpha

    def values(self, alpha: Float[Tensor, "b h i n"], where: Relations) -> Tensor | None:
        """Return what is added to Σ_j α_ij v_j, b h n d."""
        return None

    def values_definition(self, alpha: Float[Tensor, "b h n n"], where: Relations) -> Tensor | None:
        """Return the same by the literal equation."""
        return self.values(alpha, where)

    def learnt(self) -> dict[str, Tensor]:
        """Return what a reader may want to see of a trained part, by name."""
        return {}

    def changes(self, method: str) -> bool:
        """Whether this part has a method of its own."""
        return getattr(type(self), method) is not getattr(Encoding, method)
