"""Which data sets lie on the device that trains on them."""

import torch

LARGEST = 2**30
"""Bytes of a data set that is copied to a GPU as a whole: several runs share a card, each with a copy of its own."""


def worth_moving(device: torch.device | str, size: int) -> bool:
    """Whether a data set of so many bytes is copied there: to a GPU, whose reads of the host's memory would wait."""
    return torch.device(device).type == "cuda" and size <= LARGEST
