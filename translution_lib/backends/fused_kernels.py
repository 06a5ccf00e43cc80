"""Triton kernels of the fused operator: rows are gathered while they are multiplied, and no projected pair is stored.

Scores, values and all their gradients come from one form, F = Σ_ij g_ij (s_i Wq[r]) · (t_j Wk[r]) with r the relation
of ij, linear in g, s, t, Wq and Wk: the scores are its derivative by g, the values that by a side without a weight, and
the gradients are derivatives too. So four kernels suffice; each program owns what it writes (module ``schedule``).

Shapes in memory: s, t and outputs n b c, weights r c e, numbers per pair b h n n, all contiguous. A program's rows are
BM = slots · BB: BB elements of the batch for every slot of a step. Sums are float32 throughout.
"""

from typing import no_type_check

import triton
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)


def _tuned(*key: str):
    """Let a kernel choose its warps and pipeline stages for the shapes in ``key``; the interpreter has neither."""
    configs = [triton.Config({}, num_warps=w, num_stages=s) for w, s in ((4, 3), (4, 4), (8, 3), (8, 4))]
    return (lambda kernel: kernel) if INTERPRETED else triton.autotune(configs, key=list(key))


@triton.jit
@no_type_check
def _dot(a, b, acc, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """Return acc + a b; the interpreter cannot multiply bfloat16, whose products are exact in float32."""
    if UPCAST:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
@no_type_check
def _narrow(x, dtype: tl.constexpr, UPCAST: tl.constexpr):
    """Round float32 to the nearest number of a type; by its bits where the interpreter would cut bfloat16 off."""
    if UPCAST and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
@no_type_check
def _pairs(query, key, step, block, B, BB: tl.constexpr, BM: tl.constexpr):
    """Query, key and batch element of the rows of a step, and which rows exist."""
    rows = tl.arange(0, BM)
    at = step * (BM // BB) + rows // BB
    i, j, batch = tl.load(query + at), tl.load(key + at), block * BB + rows % BB
    return i.to(tl.int64), j.to(tl.int64), batch, (i >= 0) & (batch < B)


@triton.jit
@no_type_check
def _side(x, w, rows, valid, r, h, d0, C: tl.constexpr, E: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
          BK: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """Columns d0 … d0 + BD of head h of the rows of x times W[r], BM × BD; without a weight, of the rows themselves."""
    d = d0 + tl.arange(0, BD)
    columns = h * D + d
    if w is None:
        y = tl.load(x + rows[:, None] * E + columns[None, :], mask=valid[:, None] & (d < D)[None, :], other=0.0)
        y = y.to(tl.float32)
    else:
        y = tl.zeros([BM, BD], tl.float32)
        for c0 in range(0, C, BK):
            c = c0 + tl.arange(0, BK)
            part = tl.load(x + rows[:, None] * C + c[None, :], mask=valid[:, None] & (c < C)[None, :], other=0.0)
            matrix = tl.load(w + r * C * E + c[:, None] * E + columns[None, :],
                             mask=(c < C)[:, None] & (d < D)[None, :], other=0.0)
            y = _dot(part, matrix, y, PRECISION, UPCAST)
    return y


@triton.jit
@no_type_check
def _weighted(g, x, w, i, j, batch, valid, r, h, d0, B, N, C: tl.constexpr, E: tl.constexpr, D: tl.constexpr,
              H: tl.constexpr, BY_QUERY: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
              PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """g_ij times the projected side of the pair that the program does not own, BM × BD."""
    if BY_QUERY:
        rows = j * B + batch
    else:
        rows = i * B + batch
    y = _side(x, w, rows, valid, r, h, d0, C, E, D, BM, BK, BD, PRECISION, UPCAST)
    factor = tl.load(g + ((batch * H + h).to(tl.int64) * N + i) * N + j, mask=valid, other=0.0)
    return y * factor.to(tl.float32)[:, None]


@_tuned("C_Q", "C_K", "E", "D", "BM")
@triton.jit
@no_type_check
def scores_kernel(out, s, t, w_q, w_k, relation, query, key, B, N, blocks, C_Q: tl.constexpr, C_K: tl.constexpr,
                  E: tl.constexpr, D: tl.constexpr, H: tl.constexpr, BB: tl.constexpr, BM: tl.constexpr,
                  BK: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """out_ij = q_ij · k_ji. Grid: (steps · batch blocks · heads); heads run fastest, since they read the same rows."""
    program = tl.program_id(0)
    h, block, step = program % H, program // H % blocks, program // (H * blocks)
    r = tl.load(relation + step).to(tl.int64)
    i, j, batch, valid = _pairs(query, key, step, block, B, BB, BM)
    a = tl.zeros([BM], tl.float32)
    for d0 in range(0, D, BD):
        q = _side(s, w_q, i * B + batch, valid, r, h, d0, C_Q, E, D, BM, BK, BD, PRECISION, UPCAST)
        k = _side(t, w_k, j * B + batch, valid, r, h, d0, C_K, E, D, BM, BK, BD, PRECISION, UPCAST)
        a += tl.sum(q * k, axis=1)
    place = ((batch * H + h).to(tl.int64) * N + i) * N + j
    tl.store(out + place, _narrow(a, out.dtype.element_ty, UPCAST), mask=valid)


@_tuned("C", "E", "D", "BM")
@triton.jit
@no_type_check
def sums_kernel(out, g, x, w, relation, query, key, first, order, B, N, blocks, C: tl.constexpr, E: tl.constexpr,
                D: tl.constexpr, H: tl.constexpr, BY_QUERY: tl.constexpr, BB: tl.constexpr, BM: tl.constexpr,
                BK: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """out_i = Σ_j g_ij (x_j W[r]), or with keys as owners out_j = Σ_i g_ij (x_i W[r]).

    Grid: (tiles · batch blocks, heads · column blocks).
    """
    tile = tl.load(order + tl.program_id(0) // blocks)
    block, column = tl.program_id(0) % blocks, tl.program_id(1)
    parts: tl.constexpr = (D + BD - 1) // BD
    h, d0 = column // parts, column % parts * BD
    acc = tl.zeros([BM, BD], tl.float32)
    for step in range(tl.load(first + tile), tl.load(first + tile + 1)):
        r = tl.load(relation + step).to(tl.int64)
        i, j, batch, valid = _pairs(query, key, step, block, B, BB, BM)
        acc += _weighted(g, x, w, i, j, batch, valid, r, h, d0, B, N, C, E, D, H, BY_QUERY, BM, BK, BD, PRECISION,
                         UPCAST)
    d = d0 + tl.arange(0, BD)
    rows, valid = _own(tile, block, B, N, BB, BM)
    tl.store(out + rows[:, None] * E + (h * D + d)[None, :], _narrow(acc, out.dtype.element_ty, UPCAST),
             mask=valid[:, None] & (d < D)[None, :])


@triton.jit
@no_type_check
def _own(tile, block, B, N, BB: tl.constexpr, BM: tl.constexpr):
    """The rows of n b c that a tile of tokens owns, and which exist."""
    rows = tl.arange(0, BM)
    token, batch = tile * (BM // BB) + rows // BB, block * BB + rows % BB
    return token.to(tl.int64) * B + batch, (token < N) & (batch < B)


@_tuned("C", "C_OWN", "E", "D", "BM")
@triton.jit
@no_type_check
def rows_kernel(out, g, x, w, w_own, relation, query, key, first, order, B, N, blocks, C: tl.constexpr,
                C_OWN: tl.constexpr, E: tl.constexpr, D: tl.constexpr, H: tl.constexpr, BY_QUERY: tl.constexpr,
                BB: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr,
                PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """out_i = Σ_j g_ij (x_j W[r]) W_own[r]ᵀ over all heads, or with keys as owners out_j = Σ_i ….

    Grid: (tiles · batch blocks, blocks of BC columns).
    """
    tile = tl.load(order + tl.program_id(0) // blocks)
    block, c = tl.program_id(0) % blocks, tl.program_id(1) * BC + tl.arange(0, BC)
    acc = tl.zeros([BM, BC], tl.float32)
    for step in range(tl.load(first + tile), tl.load(first + tile + 1)):
        r = tl.load(relation + step).to(tl.int64)
        i, j, batch, valid = _pairs(query, key, step, block, B, BB, BM)
        for h in range(0, H):
            for d0 in range(0, D, BD):
                y = _weighted(g, x, w, i, j, batch, valid, r, h, d0, B, N, C, E, D, H, BY_QUERY, BM, BK, BD, PRECISION,
                              UPCAST)
                d = d0 + tl.arange(0, BD)
                matrix = tl.load(w_own + r * C_OWN * E + c[None, :] * E + (h * D + d)[:, None],
                                 mask=(c < C_OWN)[None, :] & (d < D)[:, None], other=0.0)
                acc = _dot(_narrow(y, matrix.dtype, UPCAST), matrix, acc, PRECISION, UPCAST)
    rows, valid = _own(tile, block, B, N, BB, BM)
    tl.store(out + rows[:, None] * C_OWN + c[None, :], _narrow(acc, out.dtype.element_ty, UPCAST),
             mask=valid[:, None] & (c < C_OWN)[None, :])


@_tuned("C", "C_OWN", "E", "D", "BM")
@triton.jit
@no_type_check
def weights_kernel(out, g, own, x, w, relation, query, key, first, order, B, N, blocks, R, splits, C: tl.constexpr,
                   C_OWN: tl.constexpr, E: tl.constexpr, D: tl.constexpr, H: tl.constexpr, BY_QUERY: tl.constexpr,
                   BB: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr,
                   PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """out[r] = Σ_ij own_iᵀ g_ij (x_j W[r]) over the pairs of r, or with keys as owners own_jᵀ g_ij (x_i W[r]).

    ``splits`` programs share the steps of a relation, each with an output of its own. Grid: (relations · splits,
    heads · column blocks, blocks of BC rows of the weight).
    """
    tile, split, column = tl.load(order + tl.program_id(0) // splits), tl.program_id(0) % splits, tl.program_id(1)
    parts: tl.constexpr = (D + BD - 1) // BD
    h, d0, c = column // parts, column % parts * BD, tl.program_id(2) * BC + tl.arange(0, BC)
    r = tile.to(tl.int64)
    acc = tl.zeros([BC, BD], tl.float32)
    for turn in range(tl.load(first + tile) * blocks + split, tl.load(first + tile + 1) * blocks, splits):
        i, j, batch, valid = _pairs(query, key, turn // blocks, turn % blocks, B, BB, BM)
        y = _weighted(g, x, w, i, j, batch, valid, r, h, d0, B, N, C, E, D, H, BY_QUERY, BM, BK, BD, PRECISION, UPCAST)
        if BY_QUERY:
            rows = i * B + batch
        else:
            rows = j * B + batch
        part = tl.load(own + rows[None, :] * C_OWN + c[:, None], mask=valid[None, :] & (c < C_OWN)[:, None], other=0.0)
        acc = _dot(part, _narrow(y, part.dtype, UPCAST), acc, PRECISION, UPCAST)
    d = d0 + tl.arange(0, BD)
    place = (split.to(tl.int64) * R + r) * C_OWN * E + c[:, None] * E + (h * D + d)[None, :]
    tl.store(out + place, _narrow(acc, out.dtype.element_ty, UPCAST), mask=(c < C_OWN)[:, None] & (d < D)[None, :])
