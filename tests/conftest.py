"""Settings that every test shares."""

import os
import random
import signal
import sys
from collections import Counter
from functools import wraps
from importlib.util import cache_from_source
from inspect import isfunction
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")   # of child processes too: sums in one order, to the last bit

import torch

# Triton's kernels run in its interpreter where there is no GPU; it reads this once, when the library imports it.
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import _decorator, _import_hook

CHECKED = {name for finder in sys.meta_path for name in getattr(finder, "modules", ())}   # by --jaxtyping-packages
renamed = _import_hook._optimized_cache_from_source


def bytecode(typechecker, /, path):
    """Where a module's bytecode lies: under jaxtyping's name if its shapes are checked, and else under its own.

    jaxtyping renames that of all that a checked module imports: each worker would compile what is installed again, and
    the library would be checked, or not, as it was when its bytecode was written.
    """
    return renamed(typechecker, path) if CHECKED & set(Path(path).parts) else cache_from_source(path)


_import_hook._optimized_cache_from_source = bytecode

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
FIRST = sys.maxsize if NIGHTLY else 4   # calls of each function that are checked in each test
calls: Counter = Counter()
jaxtyped = _decorator.jaxtyped


def first_calls(fn=_decorator._sentinel, *, typechecker=_decorator._sentinel):
    """As `jaxtyped`, but for a function's first calls in a test: to check all takes a third of the time."""
    checked = jaxtyped(fn, typechecker=typechecker)
    if not isfunction(fn):   # a class, a property: jaxtyping comes back here for the functions in it
        return checked

    @wraps(fn)
    def call(*args, **kwargs):
        if jaxtyping.config.jaxtyping_disable or calls[fn] >= FIRST:
            return fn(*args, **kwargs)
        calls[fn] += 1
        return checked(*args, **kwargs)

    return call


jaxtyping.jaxtyped = _decorator.jaxtyped = first_calls

settings.register_profile(
    "book",
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "nightly", max_examples=200, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "book"))
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def reproducible():
    """Start every test from the same random state and leave the default dtype as it was."""
    dtype = torch.get_default_dtype()
    torch.manual_seed(0)
    calls.clear()
    yield
    torch.set_default_dtype(dtype)


@pytest.fixture
def double():
    """Compute in float64 where nothing else is said; a module asks for it by ``pytestmark``."""
    torch.set_default_dtype(torch.float64)


@pytest.fixture
def rng():
    """Other random numbers in every run of the tests; a failure shows their seed, and TEST_SEED repeats it."""
    seed = int(os.environ.get("TEST_SEED") or random.SystemRandom().randrange(10**9))
    print(f"TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def plain_types():
    """Switch the enforced annotations off, so that bad input reaches the library's own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def pytest_configure(config):
    """Hear SIGINT, which `&` in a script and nohup have a process ignore: tests send it, to kernels as well."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Enforced shapes look at one item of a list, which beartype chooses with `random`.
    config.addinivalue_line("filterwarnings", "ignore:Do not use the `random` module inside strategies")
