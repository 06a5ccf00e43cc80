"""Random relation tables, operators and inputs that the unit tests share, and checks that every layer goes through."""

import torch
from hypothesis import strategies as st

from translution_lib import MIXERS, Relations, definition, offsets, pairs, place_cls, shared
from translution_lib.mixers import mixer_named

F64 = torch.float64
ANY_TABLE = {"self-attention", "absolute", "translution", "absolute-translution", "value-translution",
             "lor-translution", "performer", "performer-no-position", "performer-absolute"}
"""The mixers that need no offsets; all others refuse a table without them."""
LINEAR = {name for name in MIXERS if name.startswith("performer")}
"""The mixers without attention weights: they refuse windows and dropout, and save their random draws."""
DRAWN = {"omega", "forwards"}
"""What they save besides their parameters."""

DIM, HEADS = 8, 2   # four channels a head: what a rotation on a grid needs at least
EVERY = [(name, {}) for name in sorted(MIXERS)] + [
    *(("translution", {"relative": r, "head_dim": 3}) for r in ("", "q", "k", "v", "qk", "qv", "kv")),
    ("lor-translution", {"relative_dim": (1, 3)}), ("lor-translution", {"relative_dim": 0}),
    ("lor-translution", {"relative_dim": 0, "variant": "released"}),
    ("lor-translution", {"relative_dim": 2, "shared": False}), ("lor-translution", {"variant": "released"}),
    ("lor-translution", {"core": "diagonal"}), ("general-translution", {"kernel": "axes"}),
    ("translution", {"init": "released", "output": False}), ("convolution", {"kernel_size": 2, "output": False}),
    ("key-vector", {"clip": 1, "per_head": False}), ("key-value-vector", {"clip": 0, "absolute": True}),
    ("scalar-bias", {"bias": "alibi"}), ("gated-bias", {"form": "printed"}),
    ("rotary", {"angles": "learned", "layout": "half"}), ("rotary", {"cls_token": "origin", "head_dim": 6}),
    ("rotary-translution", {"angles": "learned"}), ("general-translution", {"kernel": "radial", "centres": 2}),
    ("general-translution", {"kernel": "table"}), ("absolute-translution", {"relative": "v"}),
    ("performer", {"features": "trigonometric", "num_features": 40}), ("performer", {"draw": "gaussian"}),
    ("performer", {"num_features": 3, "head_dim": 5, "absolute": True}),
    ("performer-s1", {"length_scales": 1, "features": "trigonometric"}), ("performer-s2", {"clip": 1, "head_dim": 3}),
    ("performer-s2", {"clip": 2, "features": "trigonometric"}),
    ("riemann", {"transport": "reflection", "metric": None}), ("riemann", {"transport": "blocks4", "metric": "pairs"}),
    ("riemann", {"transport": "skew", "metric": "diagonal", "form": "covector"}),
    ("riemann", {"transport": "skew", "metric": "general", "alpha": None}),
    ("riemann", {"metric": "general", "focus": "before"}), ("riemann", {"angles": "learned", "focus": "after"}),
    ("riemann", {"schedule": "log", "form": "covector", "head_dim": 6}),
    *((name, {"qkv_bias": True}) for name in ("self-attention", "key-vector", "gated-bias", "rotary", "performer-s2",
                                              "rotary-translution", "lor-translution")),
    ("translution", {"relative": "k", "qkv_bias": True}),
    ("lor-translution", {"core": "diagonal", "qkv_bias": True}),
]
"""Every mixer with its defaults, then every option of every mixer at least once."""


def build(name: str, relations: Relations | None = None, dim: int = DIM, **options) -> torch.nn.Module:
    """Build a layer in float64; a convolution has one head and no CLS token, a bias of queries is not zero."""
    conv = name == "convolution"
    relations = relations or offsets((2, 3), cls=not conv)
    layer = mixer_named(name)(relations, dim=dim, heads=1 if conv else HEADS, **options).to(F64)
    for kind in ("query", "key", "value") if options.get("qkv_bias") else ():
        if isinstance(getattr(layer, kind), torch.nn.Linear):
            torch.nn.init.normal_(getattr(layer, kind).bias)
    return layer


@st.composite
def grids(draw, max_tokens: int = 12, max_dims: int = 3) -> tuple[int, ...]:
    """Draw the sides of a small grid."""
    sides: list[int] = []
    for _ in range(draw(st.integers(1, max_dims))):
        room = max_tokens
        for side in sides:
            room //= side
        sides.append(draw(st.integers(1, max(1, room))))
    return tuple(sides)


@st.composite
def tables(draw, windows: bool = True) -> Relations:
    """Draw any kind of relation table, with up to 13 tokens; without windows none masks more than the future."""
    kind = draw(st.sampled_from(["offsets", "cls", "placed", "causal", "pairs", "shared"]))
    window, clip = (draw(st.none() | st.integers(0, 4)) for _ in range(2))
    window = window if windows else None
    if kind == "pairs":
        return pairs(draw(st.integers(1, 5)))
    if kind == "shared":
        return shared(draw(st.integers(1, 7)), causal=draw(st.booleans()))
    if kind == "causal":
        return offsets(draw(st.integers(1, 9)), causal=True, window=window, clip=clip)
    table = offsets(draw(grids()), cls=kind in ("cls", "placed"), window=window, clip=clip)
    return place_cls(table) if kind == "placed" else table


@st.composite
def grid_tables(draw, windows: bool = True) -> Relations:
    """Draw a table with offsets: a line or a grid, with up to 13 tokens."""
    kind = draw(st.sampled_from(["offsets", "cls", "causal"]))
    window, clip = (draw(st.none() | st.integers(0, 4)) for _ in range(2))
    window = window if windows else None
    if kind == "causal":
        return offsets(draw(st.integers(1, 9)), causal=True, window=window, clip=clip)
    return offsets(draw(grids(max_dims=2)), cls=kind == "cls", window=window, clip=clip)


def tables_of(name: str) -> st.SearchStrategy[Relations]:
    """Draw a table that a mixer accepts."""
    return (tables if name in ANY_TABLE else grid_tables)(windows=name not in LINEAR)


@st.composite
def operators(draw) -> dict:
    """Draw arguments of ``translution``: any table, any subset of relative weights, several heads and sizes."""
    rel, heads = draw(tables()), draw(st.integers(1, 3))
    b, c, d, d_v = (draw(st.integers(1, 3)) for _ in range(4))
    relative = draw(st.sets(st.sampled_from("qkv")))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))

    def weight(letter: str, e: int) -> torch.Tensor:
        shape = (rel.count, c, e) if letter in relative else (c, e)
        return torch.randn(shape, dtype=F64, generator=g).requires_grad_()

    x = torch.randn(b, rel.n, c, dtype=F64, generator=g).requires_grad_()
    return {"x": x, "w_q": weight("q", heads * d), "w_k": weight("k", heads * d), "w_v": weight("v", heads * d_v),
            "relations": rel, "heads": heads}


def doubled(args: list) -> list:
    """Return arguments of an operator with its tensors in float64."""
    return [a.detach().double().requires_grad_() if isinstance(a, torch.Tensor) else a for a in args]


def normal(seed: int, *shape: int) -> torch.Tensor:
    """Return Gaussian numbers of the default type that depend on the seed alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def points(seed: int, *shape: int) -> torch.Tensor:
    """Return random points of the unit sphere."""
    return torch.nn.functional.normalize(normal(seed, *shape), dim=-1)


def gradients(y: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients of a fixed random linear function of y."""
    g = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(7))
    return list(torch.autograd.grad((y * g).sum(), inputs, allow_unused=True, materialize_grads=True))


def assert_forms_agree(layer: torch.nn.Module, x: torch.Tensor) -> None:
    """The fast form and the literal equations give the same output, and the same gradients of x and the parameters."""
    inputs, fast = [x, *layer.parameters()], layer(x)
    with definition():
        literal = layer(x)
    torch.testing.assert_close(fast, literal)
    for a, b in zip(gradients(fast, inputs), gradients(literal, inputs), strict=True):
        torch.testing.assert_close(a, b)


def assert_weights_are_a_mean(layer: torch.nn.Module, x: torch.Tensor) -> None:
    """The weights of every query sum to one, and those of masked pairs are exactly zero."""
    alpha = layer.weights(x)
    assert (alpha[..., ~layer.relations.mask] == 0).all()
    torch.testing.assert_close(alpha.sum(-1), torch.ones_like(alpha[..., 0]))


def assert_half_precision_serves(layer: torch.nn.Module, x: torch.Tensor) -> None:
    """In bfloat16 the layer stays near what it gives in float64, and under autocast it returns bfloat16."""
    half = layer.bfloat16()(x.bfloat16()).double()
    torch.testing.assert_close(half, layer.double()(x.bfloat16().double()), rtol=0.1, atol=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.float()(x.float()).dtype == torch.bfloat16
