"""Large pages are asked for behind large new blocks alone, and a block is as good with them as without."""

import mmap
from pathlib import Path
from unittest import mock

import pytest
import torch

from translution_lib.backends import pages


def asked(x):
    """Return what the system was asked for when x had been made."""
    calls = []
    with mock.patch.object(pages, "_madvise", lambda: lambda *given: calls.append(given) or 0):
        assert pages.in_large_pages(x) is x
    return calls


@pytest.mark.parametrize("more", [0, 1, 2**18 + 3])
def test_whole_pages_of_the_block_are_asked_for(more):
    x = torch.empty(pages.LEAST // 4 + more)
    ((begin, length),) = asked(x)
    assert begin % pages.PAGE == length % pages.PAGE == 0
    assert x.data_ptr() <= begin and begin + length <= x.data_ptr() + x.nbytes
    assert length > x.nbytes - 2 * pages.PAGE


@pytest.mark.parametrize("x", [torch.empty(pages.LEAST // 4 - 1), torch.empty(2**40, device="meta"), torch.empty(0)],
                         ids=["small", "meta", "empty"])
def test_nothing_is_asked_for_otherwise(x):
    assert not asked(x)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no such wish")
def test_the_system_hears_it_and_the_numbers_are_right():
    """It says yes where it has large pages at all; the memory of nobody is refused."""
    x, answers, ask = torch.empty(pages.LEAST // 4), [], pages._madvise()
    with mock.patch.object(pages, "_madvise", lambda: lambda *given: answers.append(ask(*given))):
        assert torch.equal(pages.in_large_pages(x).fill_(3), torch.full_like(x, 3))
    assert answers == [0 if Path("/sys/kernel/mm/transparent_hugepage").exists() else -1]
    assert pages._madvise()(pages.PAGE, pages.PAGE) == -1


def test_without_the_wish_nothing_happens(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    with mock.patch.object(pages, "_madvise", pages._madvise.__wrapped__):
        x = torch.empty(pages.LEAST // 4)
        assert pages._madvise() is None and pages.in_large_pages(x) is x
