"""Parameters of one relation table for another: what a resized layer takes over, by offset and by place.

An offset, a place or a role of CLS that the first table knows keeps its parameters. What is new takes those of the
nearest one that is known, as if far offsets were clipped. Source: chapter "Sharing far offsets".
"""

import torch
from jaxtyping import Int
from torch import Tensor, nn

from translution_lib.relations import MASKED, Relations


def nearest_tokens(old: Relations, new: Relations) -> Int[Tensor, "n"]:
    """Return for every token of a new table that of an old one at the same place, or at the nearest.

    CLS stays CLS. Tokens without a place are told by their numbers.

    Raises:
        ValueError: one table has a CLS token, a grid or a causal order and the other has not, or grids of other axes.
    """
    _check_alike(old, new)
    if old.positions is None or new.positions is None:
        return torch.arange(new.n, device="cpu").clamp(max=old.n - 1)
    found = torch.cat([_nearest(part, old.positions) for part in new.positions.split(1024)])
    return nn.functional.pad(found + int(old.cls), (int(new.cls), 0))


def nearest_relations(old: Relations, new: Relations) -> Int[Tensor, "r"]:
    """Return for every relation of a new table that of an old one whose parameters it takes.

    A relation that is an offset takes those of this offset, wherever it stands, or of the nearest that is known; any
    other those of the pair of the nearest tokens.

    Raises:
        ValueError: as :func:`nearest_tokens`.
    """
    tokens, (queries, keys) = nearest_tokens(old, new), new.sorted_pairs
    ids = new.index[queries, keys]
    last = ids.new_zeros(new.count).scatter(0, ids, torch.arange(len(ids), device="cpu"))   # a pair of each relation
    found = old.index[tokens[queries[last]], tokens[keys[last]]]
    absent = [r for r in (new.sizes == 0).nonzero().flatten().tolist() if new.labels[r] in old.labels]
    found[absent] = torch.tensor([old.labels.index(new.labels[r]) for r in absent], dtype=found.dtype, device="cpu")
    if new.shape is not None:
        delta, ids = _offsets(new)
        found[ids.unique()] = _of_offsets(old, delta, ids)[ids.unique()]
    return found


def carried(table: nn.Parameter, ids: Int[Tensor, "r"], axis: int = 0) -> nn.Parameter:
    """Return a parameter with these entries of another one along an axis, which learns if that one does."""
    return nn.Parameter(table.detach().index_select(axis, ids.to(table.device)), table.requires_grad)


def _offsets(table: Relations) -> tuple[Int[Tensor, "k d"], Int[Tensor, "k"]]:
    """Return the offsets that a table knows and the relation of each: those that name one, then those of all pairs."""
    assert table.positions is not None
    index = table.index[int(table.cls):, int(table.cls):]
    named = [(label, r) for r, label in enumerate(table.labels) if not isinstance(label, str)]
    return (torch.cat([torch.tensor([label for label, _ in named], device="cpu"),
                       (table.positions[:, None] - table.positions)[index != MASKED]]),
            torch.cat([torch.tensor([r for _, r in named], device="cpu"), index[index != MASKED]]))


def _of_offsets(old: Relations, delta: Int[Tensor, "k d"], relation: Int[Tensor, "k"]) -> Int[Tensor, "r"]:
    """Return the old relation for each new one: of its shortest offset that is known, else of the one nearest to it."""
    order = delta.abs().sum(1).argsort(stable=True)
    delta, relation = delta[order], relation[order]
    known, ids = _offsets(old)
    low, sides = known.amin(0), known.amax(0) - known.amin(0) + 1
    strides = torch.cat([sides.flip(0).cumprod(0).flip(0)[1:], sides.new_ones(1)])
    box = ids.new_full((int(sides.prod()),), MASKED)        # the relation of every offset between the outermost ones
    box[((known - low) * strides).sum(-1)] = ids
    inside = torch.minimum(torch.maximum(delta, low), low + sides - 1)
    found = box[((inside - low) * strides).sum(-1)]
    foreign = (found == MASKED) | (inside != delta).any(-1)
    rank = torch.arange(len(delta), device="cpu") + len(delta) * foreign
    first = rank.new_full((int(relation.max()) + 1,), 2 * len(delta)).scatter_reduce(0, relation, rank, "amin")
    first = first % len(delta)
    holes = found[first] == MASKED
    result = found[first]
    result[holes] = ids[_nearest(delta[first[holes]], known)]
    return result


def _nearest(wanted: Int[Tensor, "m d"], known: Int[Tensor, "k d"]) -> Int[Tensor, "m"]:
    return torch.cdist(wanted.double(), known.double()).argmin(1)


def _check_alike(old: Relations, new: Relations) -> None:
    axes = [None if table.shape is None else len(table.shape) for table in (old, new)]
    if axes[0] != axes[1] or old.cls != new.cls or old.causal != new.causal:
        raise ValueError(f"relations must have the axes, the CLS token and the order of the layer's, {old!r}, "
                         f"got {new!r}")
