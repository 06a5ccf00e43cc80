"""What positional encodings read from a relation table: its offsets, and how to gather something per pair.

Relations 0 … m − 1 of a table with a grid are its offsets; the three roles of the CLS token follow and carry no
position. Source: the Translution paper, appendix E; chapters "Relations" and "Vectors".
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from translution_lib.relations import Relations
from translution_lib.sharing import merge


def offset_count(relations: Relations) -> int:
    """Return m, the number of relations that are offsets: all but those of the CLS token, whose labels are texts.

    Raises:
        ValueError: a table without a grid, such as ``pairs(n)`` or ``shared(n)``, or a grid with relations of one's
            own: its relations are not offsets.
    """
    if relations.shape is None:
        raise ValueError(f"relations must be a table of offsets, as offsets(shape) makes it, got {relations!r}")
    labels = [label for label in relations.labels if not isinstance(label, str)]
    if not labels or {len(label) if isinstance(label, tuple) else 0 for label in labels} != {len(relations.shape)}:
        raise ValueError("relations must be a table of offsets, as offsets(shape) makes it, got the labels "
                         f"{str(relations.labels[:3])[:80]} …")
    return len(labels)


def clipped(relations: Relations, clip: int | None) -> Relations:
    """Return the table of the same pairs with every component of δ clamped to [−clip, clip]; None clips nothing.

    The mask stays as it is. The ids keep the order of ``offsets(shape, clip=clip)``: ascending offsets, then CLS.

    Raises:
        ValueError: a table without a grid, or a clip that is not an integer ≥ 0.

    Label: eq-vectors-clip.
    """
    offset_count(relations)
    if clip is None:
        return relations
    if isinstance(clip, bool) or not isinstance(clip, int) or clip < 0:
        raise ValueError(f"clip must be an integer ≥ 0 or None, got {clip!r}")
    return merge(relations, lambda delta: tuple(max(-clip, min(clip, step)) for step in delta))


def offset_vectors(relations: Relations) -> Float[Tensor, "m d"]:
    """Return the offsets δ of the table as numbers, one row per relation that is an offset."""
    return torch.tensor(relations.labels[: offset_count(relations)], dtype=torch.get_default_dtype(), device="cpu")


def placed_index(relations: Relations, device: torch.device | str) -> Int[Tensor, "i n"]:
    """Return the ids of the offsets, 0 … m − 1, and m for every pair without one: masked pairs and pairs with CLS."""
    m, index = offset_count(relations), relations.index_on(device)
    return index.masked_fill((index < 0) | (index >= m), m)


def per_pair(table: Tensor, relations: Relations, dim: int = -1) -> Tensor:
    """Gather the entries of a table per pair: its axis ``dim`` of length m becomes two axes n n.

    A table of scalars (h m) gives (h n n); a table of vectors (m e) with ``dim=0`` gives (n n e). Pairs with the CLS
    token and masked pairs get zeros.

    Raises:
        ValueError: a table whose axis ``dim`` is not as long as the offsets are many.
    """
    m = offset_count(relations)
    if not -table.ndim <= dim < table.ndim or table.shape[dim] != m:
        raise ValueError(f"table must have {m} entries along axis {dim}, one per offset, got {tuple(table.shape)}")
    padded = torch.cat([table, torch.zeros_like(table.narrow(dim, 0, 1))], dim)
    index = placed_index(relations, table.device)
    return padded.index_select(dim, index.flatten()).unflatten(dim, tuple(index.shape))


def along_keys(scores: Float[Tensor, "b h i m"], relations: Relations) -> Float[Tensor, "b h i n"]:
    """Gather, for every query i, its score with the offset of each key: out_ij = scores_i,δ(i,j), zero without one."""
    index = placed_index(relations, scores.device).expand(*scores.shape[:2], -1, -1)
    return torch.cat([scores, torch.zeros_like(scores[..., :1])], -1).gather(-1, index)


def per_offset(alpha: Float[Tensor, "b h i n"], relations: Relations) -> Float[Tensor, "b h i m"]:
    """Sum the weights of every query over the keys at the same offset: the transpose of :func:`along_keys`."""
    m = offset_count(relations)
    index = placed_index(relations, alpha.device).expand_as(alpha)
    return alpha.new_zeros(*alpha.shape[:3], m + 1).scatter_add(-1, index, alpha)[..., :m]
