"""Random streams that depend on names only: what a run draws in epoch 7 does not depend on what it drew before."""

import hashlib

import torch
from jaxtyping import Int64
from torch import Tensor


def derive(seed: int, *names: str | int) -> int:
    """A seed of 63 bits for the stream `names` of the run `seed`, the same on every machine."""
    digest = hashlib.sha256(repr((seed, *names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A generator on the CPU for the stream `names` of the run `seed`."""
    return torch.Generator().manual_seed(derive(seed, *names))


def order(seed: int, count: int, epoch: int) -> Int64[Tensor, " count"]:
    """The numbers of so many examples in the order in which an epoch takes them.

    Label: eq-imagenet-order.
    """
    return torch.randperm(count, generator=generator(seed, "order", epoch))
