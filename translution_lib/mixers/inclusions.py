"""The inclusions of the taxonomy theorem: each encoding of the library says its factors, or what stands in the way.

Source: the Translution paper, appendix E; chapter "The taxonomy theorem", one rule per row of its table.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from einops import rearrange

from translution_lib.functional.convolution import relation_kernel
from translution_lib.functional.rotary import rotation
from translution_lib.functional.transport import BOUND
from translution_lib.mixers.absolute import AbsoluteTranslution
from translution_lib.mixers.attention import Attention
from translution_lib.mixers.bilinear import BilinearAttention
from translution_lib.mixers.convert import factors, part_factors
from translution_lib.mixers.convolution import Convolution
from translution_lib.mixers.encodings import PositionalGate, Rotary, ScalarBias, Transport, Vectors
from translution_lib.mixers.factors import Factors, NoTranslution, by_head, for_relations, plain
from translution_lib.mixers.general import GeneralTranslution
from translution_lib.mixers.lor import LoRTranslution
from translution_lib.mixers.performer import Performer
from translution_lib.mixers.positional import offset_count
from translution_lib.mixers.relative_performer import PerformerS1, PerformerS2
from translution_lib.mixers.rotary_translution import RotaryTranslution
from translution_lib.mixers.translution import Translution, ValueTranslution
from translution_lib.relations import MASKED, Relations, every_offset, offsets


@factors.register(Translution)
@factors.register(ValueTranslution)
@factors.register(AbsoluteTranslution)
def _as_it_is(layer) -> Factors:
    """Tied matrices, or Translution itself; ``plain`` refuses an absolute embedding."""
    return plain(layer)


@factors.register(Attention)
@factors.register(RotaryTranslution)
def _parts(layer: Attention) -> Factors:
    """Tied matrices, and what each part makes of them; the turns come first, since what is added is not turned."""
    heads = plain(layer)
    if len(layer.parts) > 1:
        heads = _finest(heads, layer)
    for part in sorted(layer.parts, key=lambda part: not part.changes("queries_keys")):
        heads = part_factors(part, heads, layer)
    return heads


def _finest(heads: Factors, layer: Attention) -> Factors:
    """Return the heads at a table that tells all offsets apart, and what matrices of their own tell apart besides."""
    if heads.relations is not layer.relations:
        return heads
    offset = every_offset(layer.relations)
    tied = heads.query.shape[0] == heads.key.shape[0] == heads.value.shape[0] == 1
    return heads.on(offset if tied else _both(layer.relations, offset))


def _both(one: Relations, offset: Relations) -> Relations:
    """Return the table of offsets where it determines another's relations, else that of pairs (relation, offset)."""
    pairs = one.mask
    found, ids = torch.unique(offset.index[pairs] * one.count + one.index[pairs], return_inverse=True)
    if len(found) == len(offset.index[pairs].unique()):
        return offset
    labels = tuple((offset.labels[k // one.count], one.labels[k % one.count]) for k in found.tolist())
    return Relations(torch.full_like(one.index, MASKED).masked_scatter(pairs, ids), len(found), labels,
                     causal=one.causal)


@factors.register(GeneralTranslution)
def _general(layer: GeneralTranslution) -> Factors:
    """The table of matrices that the functions of the offset make."""
    query, key, value = (by_head(table, layer.heads) for table in layer.tables())
    return Factors(layer.relations, query / math.sqrt(layer.head_dim), key, value, torch.eye(layer.inner).to(value))


@factors.register(Convolution)
def _convolution(layer: Convolution) -> Factors:
    """Uniform attention and N times the kernel as values; chapter "What Translution contains"."""
    if layer.relations.causal:
        raise NoTranslution(layer, "under a causal mask the normaliser of a softmax row grows from token to token; a "
                            "sink token is needed", "thm-taxonomy-causal")
    kernel, rel = layer.kernel.detach(), offsets(layer.shape)
    nothing, value = kernel.new_zeros(1, 1, layer.dim, 1), rel.n * relation_kernel(kernel, rel)
    return Factors(rel, nothing, nothing, value[:, None], torch.eye(layer.dim).to(kernel))


@part_factors.register(Vectors)
def _vectors(part: Vectors, heads: Factors, layer: Attention) -> Factors:
    """The vectors are the rows of the constant channel: k_j + r[δ] = [f_j, 1] [W^k; r[δ]].

    Beside turned queries they meet the plain ones, in score channels of their own.
    """
    heads = heads.on(part.near) if heads.relations is layer.relations else heads
    key, value = (None if table is None else heads.refined(_by_relation(part, layer, table), part.near)
                  for table in (part.key_vector, part.value_vector))
    if key is not None and heads.query.shape[0] > 1:
        wide = heads.with_rows(value=value)
        query = F.pad(plain(layer).query, (0, 0, 0, int(not layer.qkv_bias)))
        return wide.with_channels(query, F.pad(key[:, :, None], (0, 0, query.shape[2] - 1, 0)))
    return heads.with_rows(key=key, value=value)


def _by_relation(part: Vectors, layer: Attention, table: torch.Tensor) -> torch.Tensor:
    """Return the vectors per relation of the part's table and head, r h d."""
    return for_relations(rearrange(table, "m (h d) -> m h d", d=layer.head_dim).expand(-1, layer.heads, -1), part.near)


@part_factors.register(ScalarBias)
def _scalar(part: ScalarBias, heads: Factors, layer: Attention) -> Factors:
    """The bias is the product of two constants in one more score channel."""
    bias = for_relations(part.offset_bias().T, layer.relations)
    return heads.with_bias(heads.refined(bias, layer.relations))


@part_factors.register(PositionalGate)
def _gated(part: PositionalGate, heads: Factors, layer: Attention) -> Factors:
    raise NoTranslution(part, "a mixture of two softmaxes is not the softmax of one head; two heads with a constant "
                        "channel compute it", "thm-taxonomy-gate")


@part_factors.register(Rotary)
def _rotary(part: Rotary, heads: Factors, layer: Attention) -> Factors:
    """The rotation of an offset is a matrix of the query: q_i R(p_i) (k_j R(p_j))ᵀ = f_i W^q R(δ) (f_j W^k)ᵀ."""
    if layer.relations.cls and part.cls_token == "origin":
        raise NoTranslution(part, "the score of a pair with the CLS token turns with the place of the other token",
                            "thm-taxonomy-absolute")
    heads, offset = _finest(heads, layer), every_offset(layer.relations)
    return heads.turned(heads.refined(_rotations(part, offset), offset).to(heads.query))


def _rotations(part: Rotary, rel: Relations) -> torch.Tensor:
    """Return R(δ) per relation, (r, h or 1, d, d); the identity for pairs with a CLS token."""
    delta = torch.tensor(rel.labels[: offset_count(rel)], dtype=torch.float64, device="cpu")
    turn = rotation(torch.cat([delta, delta.new_zeros(rel.count - len(delta), delta.shape[1])]),
                    part.angles.detach(), part.layout)
    return (turn[None] if turn.ndim == 3 else turn).transpose(0, 1)


@part_factors.register(Transport)
def _transport(part: Transport, heads: Factors, layer: Attention) -> Factors:
    """A relative transport is a matrix per offset, T_δ T_0⁻¹; focusing is a bias, or a factor of the values."""
    heads = _finest(heads, layer)
    rel = heads.relations
    delta = torch.tensor(rel.labels[: offset_count(rel)], dtype=torch.float64, device="cpu")
    heads = heads.turned(_transports(part, rel, delta).to(heads.query))
    if part.focus is None:
        return heads
    bias = for_relations(part.offset_focus(delta).T, rel)                                       # r h
    if part.focus == "before":
        return heads.with_bias(bias)
    return replace(heads, value=heads.value * bias.exp()[..., None, None])


def _transports(part: Transport, rel: Relations, delta: torch.Tensor) -> torch.Tensor:
    """Return T_δ T_0⁻¹ per relation, (r, h or 1, d, d), or say why the score of a pair depends on more than δ."""
    origin = torch.zeros_like(delta[:1])
    if part.schedule == "constant" and part.scale is not None:
        half = part.half_logs(origin).exp()                                                     # h 1 d
        here = half if part.form == "inner" else 1 / half
        carry = here[..., None] * (part.orthogonal(delta) @ part.orthogonal(origin).mT) * half[..., None, :]
    elif bool(part.log_scale().count_nonzero()):
        _refuse_places(part, rel)
        carry = part.frame(delta).map @ part.frame(origin).inverse
    else:
        carry = part.orthogonal(delta) @ part.orthogonal(origin).mT
    carry = (carry[None] if carry.ndim == 3 else carry).detach()                                # h or 1, m, d, d
    still = torch.eye(part.head_dim).to(carry).expand(carry.shape[0], rel.count - len(delta), -1, -1)
    return torch.cat([carry, still], dim=1).transpose(0, 1)


def _refuse_places(part: Transport, rel: Relations) -> None:
    """Refuse a metric whose factors do not cancel in the difference of the places."""
    if part.form == "inner":
        why = "with s ≠ 1 the metric at the query multiplies a score by s^((m+n)/2), which no offset determines"
    elif part.schedule == "log":
        why = "with s^(log m) the keys are carried by a power of m/n, which no offset determines"
    elif not (part.metric == "scalar" or part.transport == "none"
              or (part.metric == "pairs" and part.transport != "skew")):
        why = "a scaling that does not commute with the turns makes T_m T_n⁻¹ depend on more than m − n"
    elif part.half_logs(part.places(rel.n)).abs().max() >= BOUND:
        why = "on a grid so long the factors of far tokens are held at their bound"
    else:
        return
    raise NoTranslution(part, why, "thm-taxonomy-absolute")


@factors.register(Performer)
@factors.register(PerformerS1)
@factors.register(PerformerS2)
def _performer(layer: Performer) -> Factors:
    raise NoTranslution(layer, "its weights are sums of random features over their sum: the logarithm of the ratio "
                        "of two is not affine in the query's features, as form (★) makes it", "def-taxonomy-star")


@factors.register(LoRTranslution)
def _lor(layer: LoRTranslution) -> Factors:
    """The channels of the cores beside the shared ones; W2 joins the map that gathers the heads."""
    half = 0.5 if layer.variant == "released" and layer.shared is not None else 1.0
    scale, h = half / math.sqrt(layer.head_dim), layer.heads
    query, key, value = (by_head(low @ core, h) for low, core in zip(layer.low, layer.cores, strict=True))
    low = Factors(layer.relations, scale * query, key, half * value, layer.up.detach())
    if layer.shared is None:
        return low
    full = plain(layer)
    full = replace(full, query=half * full.query, value=half * full.value)
    if not layer.relative_dim[1]:
        return full
    return (low.with_constant() if full.constant else low).beside(full)


@factors.register(BilinearAttention)
def _universal(layer: BilinearAttention) -> Factors:
    """The matrix [[A, bᵀ], [c, d]] as the query and the identity as the key: head dimension C + 1."""
    A, b, c, d = (table.detach() for table in (layer.content, layer.query_bias, layer.key_bias, layer.bias))
    top, bottom = torch.cat([A, b[..., None]], dim=-1), torch.cat([c, d[..., None]], dim=-1)[..., None, :]
    value = torch.cat([layer.value.detach(), layer.value_bias.detach()[..., None, :]], dim=-2)
    eye = torch.eye(layer.dim + 1).to(A).expand(1, layer.heads, -1, -1)
    return Factors(layer.relations, torch.cat([top, bottom], dim=-2), eye, value, torch.eye(layer.inner).to(A), True)
