"""Relations that share parameters: offsets merged by a rule, so that far ones need no matrices of their own.

A rule gives every offset δ a group; offsets of one group become one relation. A clipped table (``offsets(clip=)``) is
one rule, T5's logarithmic buckets are another. Source: the Translution paper, section 3.4 ("certain relative positions
may share the same parameter"); chapter "Sharing far offsets".
"""

import math
from collections.abc import Callable, Hashable
from numbers import Integral

import torch
from jaxtyping import Int
from torch import Tensor

from translution_lib.relations import Relations

BUCKETS_BY = ("axis", "radius")
Offset = tuple[int, ...]


def merge(relations: Relations, group: Callable[[Offset], Hashable]) -> Relations:
    """Let all offsets of the same group share one relation.

    A group is named after its member nearest to zero (fewest steps; of several, the last in row-major order), and the
    ids follow these names in row-major order. Mask and CLS roles stay as they are.

    Args:
        relations: a table of offsets.
        group: gives an offset its group.

    Raises:
        ValueError: a table without a grid, such as ``pairs(n)`` or ``shared(n)``: its relations are not offsets.

    Label: eq-sharing-merge, thm-sharing-lost.
    """
    if relations.shape is None:
        raise ValueError(f"relations must be a table of offsets, as offsets(shape) makes it, got {relations!r}")
    old = [label for label in relations.labels if not isinstance(label, str)]
    names: dict[Hashable, Offset] = {}
    for delta in sorted(old, key=lambda delta: (sum(map(abs, delta)), [-step for step in delta])):
        names.setdefault(group(delta), delta)
    labels = (*sorted(names.values()), *relations.labels[len(old):])
    ids = {label: r for r, label in enumerate(labels)}
    new = [ids[names[group(delta)]] for delta in old] + [ids[role] for role in relations.labels[len(old):]]
    # The last entry serves the masked pairs, whose id −1 it keeps.
    index = torch.tensor([*new, -1], device="cpu")[relations.index]
    return Relations(index, len(labels), labels, relations.shape, relations.cls, relations.causal,
                     relations.positions)


def bucketed(relations: Relations, buckets: int, *, max_distance: int | None = None, by: str = "axis") -> Relations:
    """Let far offsets share relations by the logarithm of their distance: T5's buckets, on a line or a grid.

    Distances below buckets / 2 have a bucket each; the others share buckets that grow geometrically up to
    ``max_distance``. Buckets that hold no offset of the table are no relations.

    Args:
        relations: a table of offsets.
        buckets: buckets of a distance, its direction not counted; a multiple of 2.
        max_distance: from here on all distances share the last bucket; by default the longest side of the grid.
        by: "axis" (a bucket and a sign for every component of δ, so that directions differ) or "radius" (one bucket
            for max|δ|, whatever the direction).

    Raises:
        ValueError: a table without a grid, buckets or a max_distance that do not fit, an unknown ``by``.

    Label: eq-sharing-buckets.
    """
    if by not in BUCKETS_BY:
        raise ValueError(f"by must be one of {BUCKETS_BY}, got {by!r}")
    _check_integers(buckets=buckets, **({} if max_distance is None else {"max_distance": max_distance}))
    longest = max(relations.shape or (1,))
    last = max(longest, buckets // 2 + 1) if max_distance is None else max_distance
    bucket = t5_buckets(torch.arange(longest, device="cpu"), buckets, last, causal=True).tolist()

    def signed(step: int) -> int:
        return bucket[step] if step >= 0 else -bucket[-step]

    if by == "radius":
        return merge(relations, lambda delta: bucket[max(map(abs, delta))])
    return merge(relations, lambda delta: tuple(map(signed, delta)))


def t5_buckets(delta: Int[Tensor, "m"], num_buckets: int = 32, max_distance: int = 128,
               causal: bool = False) -> Int[Tensor, "m"]:
    """Return the bucket of each signed distance δ = query − key, from 0 to num_buckets − 1 (T5).

    Near distances have a bucket each; farther ones share buckets whose widths grow geometrically up to
    ``max_distance``. Without ``causal`` the upper half of the buckets is for keys after the query (δ < 0).

    Raises:
        ValueError: num_buckets that is not a multiple of 2 (causal) or of 4, or max_distance not above the near ones.

    Label: eq-scalars-t5.
    """
    _check_integers(num_buckets=num_buckets, max_distance=max_distance)
    if num_buckets % (2 if causal else 4):
        raise ValueError(f"num_buckets must be a multiple of {2 if causal else 4}, got {num_buckets}")
    side = num_buckets if causal else num_buckets // 2
    near = side // 2
    if max_distance <= near:
        raise ValueError(f"max_distance must exceed the {near} near distances, got {max_distance}")
    distance = delta.clamp(min=0) if causal else delta.abs()
    # The released models were trained with these roundings, so the logarithm stays in float32.
    far = torch.log(distance.clamp(min=1).float() / near) / math.log(max_distance / near) * (side - near)
    bucket = torch.where(distance < near, distance, (near + far.long()).clamp(max=side - 1))
    return bucket if causal else bucket + side * (delta < 0)


def _check_integers(**values: object) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be an integer ≥ 1, got {value!r}")
