"""Check, then time: which form is the fastest on a machine, found out on the machine itself.

On the first use of a device and a type every candidate is compared with the definition in a process of its own (module
``proof``), where it may raise, hang or die without harm. On the first use of a shape those that agreed are compared
with torch's form and timed on the real operands, forward and backward together, and the fastest is taken from then on.
So two runs may take different forms, and differ in their last bits; :func:`report` says what was taken, and
``backend`` takes one by name.

The check of a card lasts from seconds to minutes, most of it compiling. Where many processes share a card, one of them
does it for all: it calls :func:`self_check`, and starts the others with
``env={**os.environ, "TRANSLUTION_FORMS": exported()}``. They still time the shapes that it has not met. A run that was
interrupted goes on with the same forms if it finds there what :func:`exported` gave before. A processor has one
candidate, C, whose check takes seconds; that it agreed is noted beside the compiled library for all later processes.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from copy import deepcopy
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from math import ceil
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from translution_lib.backends import grouped, library
from translution_lib.backends.grouped import Pairs
from translution_lib.backends.switch import form_named
from translution_lib.relations import Relations

CANDIDATES: dict[str, tuple[str, ...]] = {"cuda": ("padded", "grouped_mm", "triton"), "cpu": ("c",)}
"""The forms that are checked and timed, by kind of device. Where a shape cannot be timed, the first is preferred."""
SECONDS = 300.0
"""How long the check of a candidate may last."""
REPEATS = 3
WORTH = 0.9
"""What a form may need of the time of torch's on a processor, lest a near tie decides otherwise in every run."""
FAR = 0.1
"""From this relative difference on a form is wrong on a shape, and not only rounded otherwise."""
VARIABLE = "TRANSLUTION_FORMS"

_lock = RLock()
_verdicts: dict[tuple[str, str], list[dict]] = {}
_taken: dict[tuple, Any] = {}
_times: list[dict] = []


def plain(tensors: tuple[Tensor | None, ...]) -> bool:
    """Whether tensors are ordinary ones that hold numbers: nothing traced, mapped or empty is checked or timed."""
    return all(t is None or (type(t) in (Tensor, Parameter) and t.numel()) for t in tensors)


def take(what: str, operands: tuple[Tensor | None, ...], pairs: Pairs, heads: int) -> Any:
    """Return the form for "scores" of s, t, W_q, W_k or "values" of α, x, W: the fastest of those that agreed.

    While a CUDA graph is captured or torch compiles, nothing is checked or timed: what is remembered is taken, else the
    first that agreed, else torch's.
    """
    device, dtype = _place(operands)
    if not plain(operands) or not _candidates(device, operands):
        return grouped
    shape = _shape_class(what, operands, pairs, heads)
    key = tuple(shape.values())
    if key not in _taken:
        with _lock:
            if key not in _taken:
                busy = _busy(device)
                verdicts = _known(device, dtype) or [] if busy else _checked(device, dtype)
                able = _able(verdicts, device, operands)
                found = _handed(shape, able)
                if busy and not found:
                    return form_named(able[0]) if able else grouped
                _taken[key] = form_named(found or _fastest(shape, able, what, operands, pairs, heads))
    return _taken[key] if _taken[key].takes(*operands) else grouped


def report() -> dict:
    """Return what was found in this process as plain data: every check, and of every shape the times and the form."""
    with _lock:
        checks = [{"device": device, "dtype": dtype, **verdict}
                  for (device, dtype), verdicts in _verdicts.items() for verdict in verdicts]
        return deepcopy({"checks": checks, "choices": _times})


def exported() -> str:
    """Return the verdicts and choices of this process as a text for ``TRANSLUTION_FORMS`` in the environment of others.

    It names the versions of torch, Triton and this library, and every card; a process where these differ ignores it.
    """
    with _lock:
        found = [{"device": device, "dtype": dtype, "verdicts": v} for (device, dtype), v in _verdicts.items()]
        choices = [{k: v for k, v in entry.items() if k not in ("seconds", "left_out")} for entry in _times]
        return json.dumps({"versions": _versions(), "found": found, "choices": choices})


def self_check(device: torch.device | str, dtype: torch.dtype, seconds: float | int = SECONDS) -> list[dict]:
    """Compare every candidate with the definition, each in a process of its own, and remember the verdicts.

    Args:
        device: where they run.
        dtype: the type of the operands.
        seconds: when a process is killed that has not answered.

    Returns:
        for every candidate its name, whether it ``agreed``, the ``reason`` if not, whether it ``applies`` to this
        device and type at all, its worst relative ``error`` and the ``seconds`` that the check took.
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    with _lock, tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        children = [_Child(name, device, dtype, seconds, os.path.join(folder, str(k)))
                    for k, name in enumerate(CANDIDATES.get(device.type, ()))]
        try:
            verdicts = [child.verdict(begun + seconds, seconds) for child in children]
        finally:
            for child in children:
                child.end()
        _verdicts[_device_name(device), str(dtype)] = verdicts
        return deepcopy(verdicts)


class _Child:
    """The check of one candidate in a process of its own, which writes to files: a full pipe would hold it up."""

    def __init__(self, name: str, device: torch.device, dtype: torch.dtype, seconds: float | int, place: str) -> None:
        self.name, self.begun, self.process, self.reason = name, time.monotonic(), None, ""
        command = [sys.executable, "-m", "translution_lib.backends.proof", name, str(device),
                   str(dtype).removeprefix("torch."), str(ceil(seconds) + 5)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
                       "PYTHONSAFEPATH": "1"}               # it imports what this process would
        self.out, self.err = open(place + ".out", "w+b"), open(place + ".err", "w+b")
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
                                            env=environment)
        except (OSError, ValueError, TypeError) as error:
            self.reason = f"its process does not start: {error}"

    def verdict(self, deadline: float | int, seconds: float | int) -> dict:
        """Wait for the answer, or for the end of the time."""
        answer: dict = {"agreed": False, "applies": True, "reason": self.reason, "error": None}
        if self.process is not None:
            try:
                code = self.process.wait(max(0.0, deadline - time.monotonic()))
                answer = _answer(self._text(self.out)) or {**answer, "reason": self._death(code)}
            except subprocess.TimeoutExpired:
                answer["reason"] = f"no answer in {seconds:g} s"
        return {"candidate": self.name, **answer, "seconds": round(time.monotonic() - self.begun, 3)}

    def end(self) -> None:
        """Kill the process if it still runs, and close its files."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            with suppress(subprocess.TimeoutExpired):       # one that hangs in a driver may outlive that
                self.process.wait(5)
        self.out.close()
        self.err.close()

    def _death(self, code: int) -> str:
        lines = self._text(self.err).strip().splitlines()
        return f"its process ended with code {code}" + (f": {lines[-1][:300]}" if lines else "")

    @staticmethod
    def _text(file) -> str:
        file.seek(0)
        return file.read().decode(errors="replace")


def _answer(printed: str) -> dict | None:
    """Return the verdict in the last line that a process printed, if it is one."""
    with suppress(ValueError, IndexError):
        found = json.loads(printed.strip().splitlines()[-1])
        return found if _sound(found) else None
    return None


def _sound(verdict: object) -> bool:
    """Whether data from outside is a verdict."""
    return isinstance(verdict, dict) and {"agreed", "applies", "reason", "error"} <= set(verdict) and \
        isinstance(verdict["agreed"], bool)


def _candidates(device: torch.device, operands: tuple) -> list[str]:
    """Return the candidates that can serve operands; C where there is a compiler."""
    names = CANDIDATES.get(device.type, ())
    return [name for name in names if form_named(name).takes(*operands) and (name != "c" or library.compiler())]


def _checked(device: torch.device, dtype: torch.dtype) -> list[dict]:
    """Return the verdicts on a device and type; the first call checks, and warns once of each that is left out."""
    known = _known(device, dtype)
    if known is not None:
        return known
    verdicts = self_check(device, dtype)
    where = f"{dtype} on {_device_name(device)}"
    for verdict in verdicts:
        if verdict["applies"] and not verdict["agreed"]:
            warnings.warn(f"the form {verdict['candidate']!r} is left out for {where}: {verdict['reason']}",
                          RuntimeWarning, stacklevel=2)
    if not any(verdict["agreed"] for verdict in verdicts):
        warnings.warn(f"no fast form serves {where}: torch's form is taken", RuntimeWarning, stacklevel=2)
    elif device.type == "cpu":
        library.note(f"{dtype}", verdicts)
    return verdicts


def _known(device: torch.device, dtype: torch.dtype) -> list[dict] | None:
    """Return the verdicts that this process has, that the environment brings, or that were noted for a processor."""
    key = _device_name(device), str(dtype)
    if key not in _verdicts:
        given = _given(device, key) or (_fitting(device, library.noted(key[1])) if device.type == "cpu" else None)
        if given is None:
            return None
        _verdicts[key] = given
    return _verdicts[key]


def _given(device: torch.device, key: tuple[str, str]) -> list[dict] | None:
    """Return the verdicts in ``TRANSLUTION_FORMS`` if they were found by the same software on such a device."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        for entry in _environment()["found"]:
            if (entry["device"], entry["dtype"]) == key:
                return _fitting(device, entry["verdicts"])
    return None


def _fitting(device: torch.device, verdicts: Any) -> list[dict] | None:
    """Return data from outside if they are verdicts on the candidates of a device."""
    if not isinstance(verdicts, list) or not all(map(_sound, verdicts)):
        return None
    return verdicts if [v.get("candidate") for v in verdicts] == [*CANDIDATES[device.type]] else None


def _handed(shape: dict, able: list[str]) -> str | None:
    """Return the form that ``TRANSLUTION_FORMS`` names for a shape, if it can serve, and put it on record."""
    wanted = json.loads(json.dumps(shape))
    with suppress(ValueError, TypeError, KeyError):
        for entry in _environment()["choices"]:
            if {**entry, **wanted} == entry and entry["taken"] in (*able, "torch"):
                _times.append({**shape, "seconds": {}, "left_out": {}, "taken": entry["taken"]})
                return entry["taken"]
    return None


def _environment() -> dict:
    """Return what ``TRANSLUTION_FORMS`` holds, nothing if other software wrote it."""
    data = json.loads(os.environ.get(VARIABLE, ""))
    return data if data["versions"] == _versions() else {}


def _versions() -> dict:
    from translution_lib import __version__
    try:
        triton: str | None = version("triton")
    except PackageNotFoundError:
        triton = None
    return {"torch": torch.__version__, "triton": triton, "translution_lib": __version__}


def _able(verdicts: list[dict], device: torch.device, operands: tuple) -> list[str]:
    """Return the candidates that agreed and can serve the operands, in the order of their registry."""
    agreed = {verdict["candidate"] for verdict in verdicts if verdict["agreed"]}
    return [name for name in _candidates(device, operands) if name in agreed]


def _fastest(shape: dict, able: list[str], what: str, operands: tuple, pairs: Pairs, heads: int) -> str:
    """Time the candidates on the operands and return the fastest; torch's where none can run or agrees with it.

    On a processor torch's form is timed too, which may be the fastest there.
    """
    seconds: dict[str, float] = {}
    left_out: dict[str, str] = {}
    expected = _expected(what, operands, pairs, heads) if able else None
    if able and expected and shape["device"] == "cpu":
        seconds["torch"] = _seconds(grouped, what, operands, pairs, heads)
    for name in able:
        form = form_named(name)
        try:
            if (far := _difference(_step(form, what, operands, pairs, heads), expected)) > FAR:
                raise ArithmeticError(f"it differs from torch's form by {far:.1e}")
            seconds[name] = _seconds(form, what, operands, pairs, heads)
        except torch.OutOfMemoryError:
            left_out[name] = "out of memory"
            torch.cuda.empty_cache()
        except Exception as error:
            left_out[name] = f"{type(error).__name__}: {error}"
            warnings.warn(f"the form {name!r} is left out for {shape}: {left_out[name]}", RuntimeWarning, stacklevel=2)
    taken = min(seconds, key=lambda name: seconds[name] * (WORTH if name == "torch" else 1)) if seconds else "torch"
    _times.append({**shape, "seconds": seconds, "left_out": left_out, "taken": taken})
    return taken


def _step(form: Any, what: str, operands: tuple, pairs: Pairs, heads: int) -> list[Tensor | None]:
    """Run forward and backward; the result serves as its own gradient."""
    rest = (pairs, heads) if what == "scores" else (pairs,)
    out = getattr(form, what)(*operands, *rest, False)[0]
    return [out, *getattr(form, what + "_backward")(out, *operands, *rest)]


def _expected(what: str, operands: tuple, pairs: Pairs, heads: int) -> list[Tensor | None] | None:
    """Return what torch's form gives, or None where the memory does not suffice for it."""
    try:
        return _step(grouped, what, operands, pairs, heads)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None


def _difference(found: list[Tensor | None], expected: list[Tensor | None] | None) -> float:
    """Return the largest relative difference of a query, token or relation, as far as the numbers are finite.

    The small cases of the check do not reach every block of a kernel; these operands are those that count.
    """
    worst = 0.0
    for a, b in zip(found, expected or found, strict=True):
        if a is not None and b is not None:
            dims = (0, 1, 3) if b.ndim == 4 else (1, 2)
            error, size = (torch.linalg.vector_norm(x, dim=dims, dtype=torch.float32) for x in (a - b, b))
            ratio = torch.where(size.isfinite() & (error != 0), error / size, 0)
            worst = max(worst, float(ratio.nan_to_num(nan=torch.inf, posinf=torch.inf).max()))
    return worst


def _seconds(form: Any, what: str, operands: tuple, pairs: Pairs, heads: int) -> float:
    """Return the best time of forward and backward together."""
    device, _ = _place(operands)
    times = []
    for _ in range(REPEATS if device.type != "cpu" else 1):
        _synchronize(device)
        begun = time.perf_counter()
        _step(form, what, operands, pairs, heads)
        _synchronize(device)
        times.append(time.perf_counter() - begun)
    return min(times)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _busy(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured, or torch is compiling: what runs now is recorded, not run."""
    return torch.compiler.is_compiling() or (device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def _shape_class(what: str, operands: tuple, pairs: Pairs, heads: int) -> dict:
    """Return what the choice depends on; the batch is rounded up to a power of two."""
    device, dtype = _place(operands)
    batch = operands[0].shape[1 if what == "scores" else 0]
    widths = tuple(None if t is None else t.shape[-1] for t in operands[0 if what == "scores" else 1:])
    return {"operation": what, "device": _device_name(device), "dtype": str(dtype), "widths": widths, "heads": heads,
            "batch": 1 << (batch - 1).bit_length(), "tokens": pairs.table.n, "table": _fingerprint(pairs.table)}


def _place(operands: tuple) -> tuple[torch.device, torch.dtype]:
    first = next(t for t in operands if t is not None)
    return first.device, first.dtype


def _fingerprint(relations: Relations) -> str:
    """Return a name of a table's ids, the same for equal tables."""
    def make() -> str:
        return sha256(repr(relations.count).encode() + relations.index.cpu().numpy().tobytes()).hexdigest()[:16]
    return relations._remember(("fingerprint",), make)


@cache
def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
