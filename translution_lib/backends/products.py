"""The two hot products, attention scores and values whose matrices depend on the relation of a pair.

Neither an N×N×C×C′ nor, by default, an N×N×C′ tensor exists at any time: backward computes projected pairs again
instead of keeping them. Outside a compiled graph they are functions of autograd, inside they are operators of torch,
which a compiler takes as they are. Operators everywhere would be one way less, but the dispatcher's Python takes 50 µs
a product forward and 120 µs forward and backward, a third more for the smallest tables.
Source: the Translution paper, eq. (1); chapters "The operator", "What it costs" and "Making it fit".
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from translution_lib.backends import exported, grouped
from translution_lib.backends.grouped import Pairs, both, dot, pairs_on, per_head, product
from translution_lib.backends.switch import FORMS, asked, form_named, kept
from translution_lib.relations import TABLES, Relations

LEAST = {"cpu": 10**8, "cuda": 0}
"""From so many multiply–adds of a product on, by kind of device, "auto" looks for a form faster than torch's."""
Operands = tuple[Any, ...]           # two tensors, and weights or None


def pair_scores(s: Float[Tensor, "b n c1"], t: Float[Tensor, "b n c2"], w_q: Tensor | None, w_k: Tensor | None,
                relations: Relations, heads: int) -> Float[Tensor, "b h n n"]:
    """Return q_ij · k_ji for every unmasked pair and head, zero elsewhere; not scaled.

    A weight ``r c e`` projects its side per relation; None means that the side is projected already.
    """
    if torch.compiler.is_exporting():
        return exported.pair_scores(s, t, w_q, w_k, relations, heads)
    same = s is t
    s, t, w_q, w_k = autocast_together(s, t, w_q, w_k)
    s = s.transpose(0, 1).contiguous()
    t = s if same else t.transpose(0, 1).contiguous()
    if torch.compiler.is_compiling():
        return _scores(s, t, w_q, w_k, relations.number, heads, asked())
    job = Job("scores", pairs_on(relations, s.device), heads, asked(), kept())
    return Product.apply(job, s, t, w_q, w_k)[0]


def pair_values(alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"], w: Float[Tensor, "r c e"],
                relations: Relations) -> Float[Tensor, "b n e"]:
    """Return Σ_j α_ij x_j W[relation of ij], each head weighting its own slice of the channels of W."""
    if torch.compiler.is_exporting():
        return exported.pair_values(alpha, x, w, relations)
    alpha, x, w = autocast_together(alpha, x, w)
    alpha, x = alpha.to(x.dtype), x.transpose(0, 1).contiguous()
    if torch.compiler.is_compiling():
        return _values(alpha, x, w, None, relations.number, alpha.shape[1], asked()).transpose(0, 1)
    job = Job("values", pairs_on(relations, x.device), alpha.shape[1], asked(), kept())
    return Product.apply(job, alpha, x, w)[0].transpose(0, 1)


def autocast_together(*tensors: Tensor | None) -> list:
    """Cast tensors as autocast would cast the operands of one matrix product; without autocast return them as they are.

    The products are opaque to autocast, so their operands are brought to one type before.
    """
    device = _numbers_on(next(t for t in tensors if t is not None).device.type)
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in tensors]


class Job:
    """A product of one call: "scores" of s, t, W_q, W_k or "values" of α, x, W, and the form that computes it.

    Tokens are n b c here. The form that forward took is backward's too: that may run in another thread.
    """

    def __init__(self, what: str, pairs: Pairs, heads: int, name: str, keep: bool = False) -> None:
        self.what, self.pairs, self.heads, self.name, self.keep = what, pairs, heads, name, keep
        self.rest = (pairs, heads) if what == "scores" else (pairs,)
        self.form: Any = None

    def forward(self, operands: Operands) -> tuple:
        """Return the product, and what is kept for backward."""
        with _without_autocast(self.pairs.flat.device.type):  # also where forms are timed
            self.form = self.form_for(operands)
            return getattr(self.form, self.what)(*operands, *self.rest, self.keep)

    def backward(self, grad: Tensor, operands: Operands, rows: tuple) -> tuple:
        """Return the gradients by all operands, from what forward kept."""
        with _without_autocast(self.pairs.flat.device.type):
            form = self.form or self.form_for(operands)
            form = form if form.takes(grad, *operands) else grouped
            return getattr(form, self.what + "_backward")(grad, *operands, *self.rest, *rows)

    def form_for(self, operands: Operands) -> Any:
        """Return the form that is asked for, if it serves these operands, else torch's."""
        if self.name in FORMS:
            form = form_named(self.name)
            return form if form.takes(*operands) else grouped
        least = LEAST.get(operands[1].device.type) if self.name == "auto" else None
        if least is None or self.work(operands) < least:
            return grouped
        from translution_lib.backends import choice  # most processes never need it
        return choice.take(self.what, operands, self.pairs, self.heads)

    def work(self, operands: Operands) -> int:
        """Return the multiply–adds of the projections: of every pair and sample, with each of the weights."""
        each = sum(w.shape[-2] * w.shape[-1] for w in operands[2:] if w is not None)
        return len(self.pairs.flat) * operands[1].shape[1] * each

    def literal(self, *operands: Tensor | None) -> Tensor:
        """Return the product by operations that autograd can differentiate again and again."""
        return (_plain_scores if self.what == "scores" else _plain_values)(self, *operands)


def _without_autocast(device: str) -> AbstractContextManager:
    return torch.autocast(_numbers_on(device), enabled=False)


def _numbers_on(device: str) -> str:
    """Return the kind of device whose autocast rules: where there are no numbers, the processor's."""
    return "cpu" if device == "meta" else device


class Product(torch.autograd.Function):
    """A product; the outputs behind the first are the rows that are kept for backward."""

    @staticmethod
    def forward(job, *operands):
        return job.forward(operands)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.job, *operands = inputs
        ctx.operands = len(operands)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)    # else backward would be handed zeros of the size of what is kept
        ctx.save_for_backward(*operands, *output[1:])

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return (None,) * (1 + ctx.operands)
        return None, *Gradients.apply(ctx.job, ctx.operands, grad, *ctx.saved_tensors)

    @staticmethod
    def vmap(info, in_dims, *args):
        return looped(Product, info, in_dims, *args)


class Gradients(torch.autograd.Function):
    """The gradients of a product by its operands."""

    @staticmethod
    def forward(job, operands, grad, *saved):
        return job.backward(grad, saved[:operands], saved[operands:])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.job, operands, grad, *saved = inputs
        ctx.kept = len(saved) - operands
        ctx.save_for_backward(grad, *saved[:operands])

    @staticmethod
    def backward(ctx, *grads):
        return None, None, *again(ctx.job.literal, ctx.saved_tensors, grads), *[None] * ctx.kept

    @staticmethod
    def vmap(info, in_dims, *args):
        return looped(Gradients, info, in_dims, *args)


def looped(cls, info, in_dims, *args):
    """Run a function once per element of the mapped dimension; a custom function sees no batched tensor."""
    def element(k: int):
        return [a if d is None else a.select(d, k) for a, d in zip(args, in_dims, strict=True)]
    results = [cls.apply(*element(k)) for k in range(info.batch_size)]
    columns = list(zip(*results, strict=True))
    outputs = tuple(None if c[0] is None else torch.stack(c) for c in columns)
    return outputs, tuple(None if o is None else 0 for o in outputs)


def again(plain, saved, grads) -> list:
    """Differentiate the gradients of a plain form: second derivatives, from which higher ones follow."""
    grad, *inputs = saved
    present = [k for k, x in enumerate(inputs) if x is not None]

    def gradients(grad, *given):
        def of(*given):
            full = list(inputs)
            for k, x in zip(present, given, strict=True):
                full[k] = x
            return plain(*full)
        return torch.func.vjp(of, *given)[1](grad)

    values = [inputs[k] for k in present]
    found = torch.func.vjp(gradients, grad, *values)[1](tuple(grads[k] for k in present))
    out = [None] * len(inputs)
    for k, g in zip(present, found[1:], strict=True):
        out[k] = g
    return [found[0], *out]


def _plain_scores(job: Job, s, t, w_q, w_k) -> Tensor:
    parts = []
    for group, *matrices in zip(job.pairs.groups, job.pairs.matrices(w_q), job.pairs.matrices(w_k), strict=True):
        q, k = map(product, both(group, s, t), matrices)
        parts.append(dot(q, k, group.count, job.heads))
    return job.pairs.place(torch.cat(parts))


def _plain_values(job: Job, alpha, x, w) -> Tensor:
    out = x.new_zeros(*x.shape[:2], w.shape[-1])
    for group, matrix, a in zip(job.pairs.groups, job.pairs.matrices(w), job.pairs.numbers(alpha), strict=True):
        v = per_head(a, product(group.rows(x, group.keys), matrix))
        out = out.index_add(0, group.queries, v.view(group.count, *out.shape[1:]))
    return out


def _operator(what: str, shape: Callable[..., tuple[int, ...]]) -> Callable[..., Tensor]:
    """Return a product as an operator, with its gradients as another.

    A table of relations goes by its number, and the backend by its name as it was asked for when the graph was made.
    """
    def run(a: Tensor, b: Tensor, v: Tensor | None, w: Tensor | None, table: int, heads: int, name: str) -> Tensor:
        job, operands = _job(what, a, b, v, w, table, heads, name)
        return job.forward(operands)[0].contiguous()

    def back(g: Tensor, a: Tensor, b: Tensor, v: Tensor | None, w: Tensor | None, table: int, heads: int,
             name: str) -> list[Tensor]:
        job, operands = _job(what, a, b, v, w, table, heads, name)
        return [t.contiguous() for t in job.backward(g, operands, ()) if t is not None]

    forward = torch.library.custom_op(f"translution_lib::pair_{what}", run, mutates_args=())
    backward = torch.library.custom_op(f"translution_lib::pair_{what}_gradients", back, mutates_args=())

    def fake(a, b, v, w, table, heads, name):
        return b.new_empty(shape(b, v, TABLES[table], heads))

    def fake_back(g, a, b, v, w, table, heads, name):
        return [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (a, b, v, w) if t is not None]

    def keep(ctx, inputs, output):
        ctx.how = inputs[4:]
        ctx.save_for_backward(*inputs[:4])

    def gradients(ctx, g):
        found = iter(backward(g, *ctx.saved_tensors, *ctx.how))
        return (*(None if t is None else next(found) for t in ctx.saved_tensors), None, None, None)

    forward.register_fake(fake)
    backward.register_fake(fake_back)
    forward.register_autograd(gradients, setup_context=keep)
    return forward


def _job(what: str, a: Tensor, b: Tensor, v: Tensor | None, w: Tensor | None, table: int, heads: int,
         name: str) -> tuple[Job, Operands]:
    return Job(what, pairs_on(TABLES[table], b.device), heads, name), (a, b, v, w) if what == "scores" else (a, b, v)


_scores = _operator("scores", lambda t, w_q, table, heads: (t.shape[1], heads, table.n, table.n))
_values = _operator("values", lambda x, w, table, heads: (*x.shape[:2], w.shape[-1]))
