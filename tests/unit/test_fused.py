"""The fused operator: its kernels, in Triton's interpreter or on a GPU, equal the definition; so do all gradients."""

import json
import math
import os
import subprocess
import sys
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.strategies import tables
from tests.unit.test_backends import DEVICE, HERE, check, needs_triton, operator
from translution_lib import functional as fn
from translution_lib import offsets
from translution_lib.backends import fused
from translution_lib.backends.grouped import pairs_on
from translution_lib.backends.schedule import schedule

pytestmark = pytest.mark.slow

EPS = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}              # half the distance from 1 to the next number


def test_triton_is_there_and_can_run():
    """No silent skip: where the test extra brings Triton, the kernels are run."""
    assert fused._kernels() is not None or not HERE
    assert DEVICE == "cuda" or fused._kernels() is None or fused._kernels().INTERPRETED


@needs_triton
@pytest.mark.parametrize("case", [("window", 1, "qkv", 3, 20, 18, 17), ("line", 1, "v", 18, 2, 2, 2)],
                         ids=["channels", "batch"])
def test_sizes_beyond_one_block(case):
    check(fn.translution, fn.translution_definition, operator(*case))


@needs_triton
def test_programs_share_a_large_relation(monkeypatch):
    monkeypatch.setattr(fused, "_splits", lambda *_: 3)
    check(fn.translution, fn.translution_definition, operator("causal", 1, "qv", 9, 3, 2, 2))


@needs_triton
@pytest.mark.parametrize("shared_too", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_low_rank_translution(shared_too):
    rel, heads, g = offsets(2, cls=True), 2, torch.Generator().manual_seed(3)

    def some(*shape):
        return (torch.randn(shape, generator=g) / math.sqrt(shape[-2])).to(DEVICE).requires_grad_()

    low, cores = tuple(some(6, 3) for _ in "qkv"), tuple(some(rel.count, 3, 4) for _ in "qkv")
    both = tuple(some(6, 6) for _ in "qkv") if shared_too else None
    args = [some(2, rel.n, 6), low, cores, some(4, 6), rel, heads, both]
    check(fn.lor_translution, fn.lor_translution_definition, args)


def sides(dtype, seed=11):
    """Return g, s, t, W_q and W_k rounded to a type, a table and the heads."""
    rel, heads, gen = offsets(3, cls=True), 2, torch.Generator().manual_seed(seed)
    shapes = (3, heads, rel.n, rel.n), (rel.n, 3, 5), (rel.n, 3, 4), (rel.count, 5, 6), (rel.count, 4, 6)
    return [torch.randn(shape, generator=gen).to(DEVICE, dtype) for shape in shapes], rel, heads


def project(x, w, index, side):
    return torch.einsum("ibc,ijce->bije" if side == "q" else "jbc,ijce->bije", x, w[index])


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, *EPS])
def test_half_precision_rounds_only_what_the_bound_counts(dtype):
    """Scores are rounded once; a gradient rounds g·k and then the sum: error ≤ ε(|result| + Σ|terms|)."""
    given, rel, heads = sides(dtype)
    pairs = pairs_on(rel, given[0].device)
    (a,) = fused.scores(*given[1:], pairs, heads)
    ds, dt, dw_q, dw_k = fused.scores_backward(*given, pairs, heads)
    (out,) = fused.values(given[0], given[1], given[3], pairs)
    g, s, t, w_q, w_k = (x.double() for x in given)
    eps, index = EPS.get(dtype, 0) * 1.01, rel.index.to(DEVICE)
    q, k, v = project(s, w_q, index, "q"), project(t, w_k, index, "k"), project(s, w_q, index, "k")
    wide = g.permute(0, 2, 3, 1).repeat_interleave(q.shape[-1] // heads, -1)
    exact = (q * k).unflatten(-1, (heads, -1)).sum(-1).permute(0, 3, 1, 2)
    rows = {"ds": ("bije,ijce->ibc", wide * k, w_q[index]), "dt": ("bije,ijce->jbc", wide * q, w_k[index]),
            "dw_q": ("bije,ibc->ijce", wide * k, s), "dw_k": ("bije,jbc->ijce", wide * q, t)}
    pairs_of = [(a, exact, exact.abs()), (out, (v * wide).sum(2).transpose(0, 1), None)]
    for name, found in (("ds", ds), ("dt", dt), ("dw_q", dw_q), ("dw_k", dw_k)):
        how, left, right = rows[name]
        result, terms = torch.einsum(how, left, right), torch.einsum(how, left.abs(), right.abs())
        if name[1] == "w":
            result, terms = (torch.zeros_like(found, dtype=result.dtype).index_add(0, index.flatten(), z.flatten(0, 1))
                             for z in (result, terms))
        pairs_of.append((found, result, result.abs() + terms))
    for found, result, bound in pairs_of:
        assert found.dtype == dtype
        bound = result.abs() if bound is None else bound
        assert ((found.double() - result).abs() <= eps * bound + 3e-5).all()


@needs_triton
def test_what_it_takes():
    x = torch.ones(2, device=DEVICE)
    assert fused.takes(x, None, torch.nn.Parameter(x))
    other = x.double(), x.bfloat16(), x.to("meta"), x[:0], torch._neg_view(x)
    assert not any(fused.takes(x, y) for y in other)
    with mock.patch.object(fused, "_kernels", return_value=None):
        assert not fused.takes(x)


@given(tables(), st.sampled_from(["relation", "query", "key"]), st.sampled_from([1, 2, 4, 16]))
def test_a_schedule_runs_every_pair_once_and_by_its_owner(rel, owner, slots):
    plan = schedule(rel, owner, slots, torch.device("cpu"))
    seen = []
    for tile, (first, last) in enumerate(zip(plan.first[:-1], plan.first[1:], strict=True)):
        for step in range(first, last):
            filled = plan.query[step] >= 0
            assert torch.equal(filled, plan.key[step] >= 0) and filled.any()
            for slot in filled.nonzero().flatten().tolist():
                i, j, r = int(plan.query[step, slot]), int(plan.key[step, slot]), int(plan.relation[step])
                assert rel.index[i, j] == r
                assert r == tile if owner == "relation" else (i if owner == "query" else j) == tile * slots + slot
                seen.append((i, j))
    assert sorted(seen) == [tuple(p) for p in rel.mask.nonzero().tolist()]
    sizes = plan.first.diff()[plan.order]
    assert sorted(plan.order.tolist()) == list(range(len(sizes))) and (sizes.diff() <= 0).all()


def python(code: str, **environment: str) -> str:
    """Run a program by itself, since Triton reads its environment once."""
    environment = {**os.environ, **environment}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from translution_lib import backend, offsets, translution
from translution_lib.backends import fused
x, w = torch.ones(1, 3, 2), torch.ones(5, 2, 2)
assert translution(x, w, w, w, offsets(3)).shape == (1, 3, 2) and not fused.takes(x)
try:
    backend("triton").__enter__()
except RuntimeError as error:
    print("needs Triton" in str(error))
"""


def test_without_triton_the_library_works():
    assert python(WITHOUT_TRITON).split() == ["True"]


COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from translution_lib.backends import fused_kernels

BLOCKS = dict(E=192, D=64, H=3, BB=128, BM=128, BK=64, BD=64, PRECISION="ieee", UPCAST=False)
OWNED = dict(C=192, C_OWN=192, BC=256, BY_QUERY=True)
for name, sizes in {"scores": dict(C_Q=192, C_K=192), "sums": dict(C=192, BY_QUERY=True), "rows": OWNED,
                    "weights": OWNED}.items():
    kernel = getattr(fused_kernels, name + "_kernel").fn
    constants = {**BLOCKS, **sizes}
    def kind(name):
        if name in constants:
            return "constexpr"
        if name in ("B", "N", "blocks", "R", "splits"):
            return "i32"
        return "*i32" if name in ("relation", "query", "key", "first", "order") else "*bf16"
    signature = {p.name: kind(p.name) for p in kernel.params}
    aligned = {(p.num,): [["tt.divisibility", 16]] for p in kernel.params if signature[p.name][0] == "*"}
    fixed = {name: value for name, value in constants.items() if name in signature}
    source = triton.compiler.ASTSource(kernel, signature, fixed, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8, "num_stages": 3})
    print(json.dumps([name, made.asm["ptx"].count("wgmma.mma_async"), made.asm["ptx"].count("cp.async.c"),
                      made.metadata.shared]))
"""


@needs_triton
def test_kernels_compile_for_hopper(tmp_path):
    """No GPU is needed to compile: the products are warpgroup instructions, fed by asynchronous copies, and fit."""
    lines = python(COMPILE, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path)).splitlines()
    assert len(lines) == 4
    for name, products, copies, memory in map(json.loads, lines):
        assert products and copies, name
        assert memory <= 227 * 1024, name
