"""Check, then time: a form that is wrong in any way is left out, and of the others the fastest is taken."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch

from tests.unit.test_backends import DEVICE, needs_compiler, needs_triton, operator
from tests.unit.test_fused import python
from translution_lib import backend, offsets
from translution_lib import functional as fn
from translution_lib.backends import choice, fused, grouped, library, products, proof
from translution_lib.backends.grouped import pairs_on
from translution_lib.backends.products import Job
from translution_lib.backends.stacked import padded

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
HONEST = """
from translution_lib.backends.stacked import padded
scores, scores_backward, takes = padded.scores, padded.scores_backward, padded.takes
values, values_backward = padded.values, padded.values_backward
"""
FORMS = {   # the source of a form, and what the reason says; None where it agrees
    "honest": (HONEST, None),
    "slow": (HONEST, None),     # what it is timed at is added in `install`: a busy machine may hold up any other
    "raising": (HONEST + """
def values(*args):
    raise RuntimeError("no such kernel")
""", "RuntimeError: no such kernel"),
    "missing": ("import no_such_module\n", "ModuleNotFoundError"),
    "wrong": (HONEST + """
def scores(*args):
    return (1.01 * padded.scores(*args)[0],)
""", "scores of .* relative error 1.0e-02"),
    "one_relation": (HONEST + """
def values_backward(*args):
    d_alpha, dx, dw = padded.values_backward(*args)
    dw[1] *= 1.001
    return d_alpha, dx, dw
""", "dW of .* relative error 1.0e-03"),
    "no_zero": (HONEST + """
def scores_backward(*args):
    ds, dt, *dw = padded.scores_backward(*args)
    return ds, dt, *(None if w is None else w + (w == 0) * 1e-30 for w in dw)
""", "dW_q of .* relative error inf"),
    "other_bits": (HONEST + """
calls = []
def values(*args):
    calls.append(0)
    return (padded.values(*args)[0] * (1 + 1e-6 * (len(calls) % 2)),)
""", "values of .*: equal inputs gave other bits"),
    "other_type": (HONEST + """
def values(*args):
    return (padded.values(*args)[0].double(),)
""", "of torch.float64, expected .* of torch.float32"),
    "absent": ("def takes(*tensors):\n    return False\n", "it serves no such operands"),
}
DEADLY = {  # those that must not be imported here
    "exiting": ("import os, sys\nsys.stderr.write('last words')\nsys.stderr.flush()\nos._exit(3)\n",
                "ended with code 3: last words"),
    "aborting": ("import os\nos.abort()\n", "ended with code -6"),
    "hanging": ("import time\nprint('{}', flush=True)\ntime.sleep(1000)\n", "no answer in 1 s"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder that can be imported from, with a module for every form."""
    folder = tmp_path_factory.mktemp("forms")
    for name, (source, _) in {**FORMS, **DEADLY}.items():
        (folder / f"{name}_form.py").write_text(source)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Nothing is remembered from before, nor after; the choice is made on the CPU, for any size."""
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(products.LEAST, "cpu", 0)
    for name, empty in (("_verdicts", {}), ("_taken", {}), ("_times", [])):
        monkeypatch.setattr(choice, name, empty)


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_believed_if_it_agrees(name):
    reason, found = FORMS[name][1], proof.verdict(f"{name}_form", CPU, torch.float32)
    assert found["agreed"] == (reason is None) and found["applies"] == (name != "absent")
    if reason is None:
        assert 0 < found["error"] < 1e-5 and found["reason"] is None
    else:
        assert re.search(reason, found["reason"]), found["reason"]


@pytest.mark.usefixtures("made")
def test_a_form_that_dies_takes_nothing_with_it(monkeypatch):
    monkeypatch.setitem(choice.CANDIDATES, "cpu", ("exiting_form", "honest_form", "aborting_form", "wrong_form"))
    exiting, honest, aborting, wrong = choice.self_check("cpu", torch.float32)
    assert honest["agreed"] and 0 < honest["error"] < 1e-5 and honest["seconds"] > 0
    for name, found in (("exiting", exiting), ("aborting", aborting)):
        assert not found["agreed"] and DEADLY[name][1] in found["reason"]
    assert re.search(FORMS["wrong"][1], wrong["reason"])
    assert choice.report()["checks"][1] == {"device": "cpu", "dtype": "torch.float32", **honest}


@pytest.mark.usefixtures("made")
def test_a_form_that_hangs_is_killed(monkeypatch):
    monkeypatch.setitem(choice.CANDIDATES, "cpu", ("hanging_form",) * 2)
    started = []

    class Started(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Started)
    found = choice.self_check("cpu", torch.float32, 1)
    assert [(v["agreed"], v["reason"]) for v in found] == [(False, DEADLY["hanging"][1])] * 2
    assert len(started) == 2 and all(process.returncode is not None for process in started)


@pytest.mark.skipif(not hasattr(signal, "alarm"), reason="no alarm on this system")
def test_a_check_ends_by_itself_if_nobody_waits_for_it(made):
    command = [sys.executable, "-m", "translution_lib.backends.proof", "hanging_form", "cpu", "float32", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, env=environment, capture_output=True).returncode == -signal.SIGALRM


def test_only_a_whole_verdict_is_an_answer():
    whole = {"agreed": True, "applies": True, "reason": None, "error": 0.0}
    assert choice._answer("noise\n" + json.dumps(whole) + "\n") == whole
    for printed in ("", "{", "{}", "[]", json.dumps({**whole, "agreed": 1}), json.dumps(whole) + "\nnoise"):
        assert choice._answer(printed) is None


def known(*agreed: str, left_out: tuple[str, ...] = ()) -> tuple[tuple[str, ...], list[dict]]:
    """A registry, and verdicts on it that need no process."""
    names = [f"{name}_form" for name in (*agreed, *left_out)]
    return tuple(names), [{"candidate": name, "agreed": k < len(agreed), "applies": True, "reason": "so",
                           "error": 0.0, "seconds": 0.0} for k, name in enumerate(names)]


def install(monkeypatch, *agreed: str, left_out: tuple[str, ...] = ()) -> mock.Mock:
    """Have the check find this, and the slow form and torch's be timed as slower than any pause of the machine."""
    names, found = known(*agreed, left_out=left_out)

    def check(device, dtype, seconds=0.0):
        choice._verdicts[choice._device_name(device), str(dtype)] = found
        return found

    spy, seconds = mock.Mock(wraps=check), choice._seconds

    def timed(form, *rest):
        return math.inf if form is grouped else seconds(form, *rest) + 1e4 * (form.__name__ == "slow_form")

    monkeypatch.setattr(choice, "_seconds", timed)
    monkeypatch.setattr(library, "note", lambda *_: None)
    monkeypatch.setitem(choice.CANDIDATES, "cpu", names)
    monkeypatch.setattr(choice, "self_check", spy)
    return spy


def run(args=None):
    args = args or operator("line", 1, "qkv", 2, 3, 4, 2)
    return torch.autograd.grad(fn.translution(*args).square().sum(), args[:4])


@pytest.mark.usefixtures("made")
def test_the_fastest_of_those_that_agreed_is_taken_forward_and_backward(monkeypatch):
    check = install(monkeypatch, "slow", "honest", left_out=("wrong",))
    with pytest.warns(RuntimeWarning, match="'wrong_form' is left out for torch.float32 on cpu: so"):
        first = run()
    import honest_form
    spies = {k: mock.Mock(wraps=getattr(honest_form, k)) for k in
             ("scores", "scores_backward", "values", "values_backward")}
    with mock.patch.multiple(honest_form, **spies), warnings.catch_warnings():
        warnings.simplefilter("error")
        again = run()
    assert [spy.call_count for spy in spies.values()] == [1] * 4        # nothing is timed again
    assert all(map(torch.equal, first, again)) and check.call_count == 1
    found = choice.report()
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(found)) and len(found["checks"]) == 3
    assert [(c["operation"], c["taken"], set(c["seconds"])) for c in found["choices"]] == [
        (what, "honest_form", {"torch", "slow_form", "honest_form"}) for what in ("scores", "values")]
    assert all(c["seconds"]["slow_form"] > c["seconds"]["honest_form"] > 0 for c in found["choices"])


@pytest.mark.usefixtures("made")
def test_a_batch_of_the_same_power_of_two_and_an_equal_table_are_not_timed_again(monkeypatch):
    install(monkeypatch, "honest")
    for batch in (3, 4, 3):
        run(operator("line", 1, "qkv", batch, 3, 4, 2))
    assert len(choice._times) == 2
    run(operator("line", 1, "qkv", 5, 3, 4, 2))
    run(operator("clip", 1, "qkv", 4, 3, 4, 2))
    assert len(choice._times) == 6


@pytest.mark.usefixtures("made")
def test_if_none_agrees_torchs_form_is_taken_with_one_warning(monkeypatch):
    install(monkeypatch, left_out=("wrong",))
    with pytest.warns(RuntimeWarning) as said:
        run()
    assert len(said) == 2 and "torch's form is taken" in str(said[1].message)
    assert {c["taken"] for c in choice._times} == {"torch"}


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(("error", "warned"), [(torch.OutOfMemoryError("full"), 0), (RuntimeError("launch"), 2)])
def test_what_fails_on_a_shape_is_left_out_for_it(monkeypatch, error, warned):
    install(monkeypatch, "honest", "slow")
    import honest_form
    with mock.patch.multiple(honest_form, scores_backward=mock.Mock(side_effect=error),
                             values=mock.Mock(side_effect=error)), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run()
    assert len(said) == warned
    assert all(c["taken"] == "slow_form" and "honest_form" in c["left_out"] for c in choice._times)


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("name", ["scores", "scores_backward", "values", "values_backward"])
@pytest.mark.parametrize("wrong", [0.5, float("nan")])
def test_what_is_wrong_on_the_real_operands_is_left_out(monkeypatch, name, wrong):
    """One relation, token or query is enough."""
    install(monkeypatch, "honest", "slow")
    import honest_form
    real = getattr(honest_form, name)

    def spoiled(*args):
        *first, last = real(*args)
        (last[:, :, 1] if name == "scores" else last[1]).mul_(wrong)
        return *first, last

    with mock.patch.object(honest_form, name, spoiled), pytest.warns(RuntimeWarning, match="differs from torch's"):
        run()
    found = {c["operation"]: (c["taken"], "honest_form" in c["left_out"]) for c in choice._times}
    assert found[name.split("_")[0]] == ("slow_form", True)


def test_operands_that_are_not_finite_leave_nobody_out():
    x = torch.tensor([[[1.0]], [[float("nan")]], [[0.0]]])
    assert choice._difference([x, None], [x, None]) == 0 == choice._difference([x], None)
    assert choice._difference([x.nan_to_num(3)], [x]) == 0 and choice._difference([x + 1], [x]) == float("inf")


@pytest.mark.usefixtures("made")
def test_nothing_is_checked_or_timed_while_a_graph_is_captured(monkeypatch):
    check = install(monkeypatch, "slow", "honest")
    with mock.patch.object(choice, "_busy", return_value=True):
        with mock.patch.object(grouped, "scores", mock.Mock(wraps=grouped.scores)) as spy:
            run()
        assert spy.called and not check.called          # nothing is known
        choice._verdicts["cpu", "torch.float32"] = known("slow", "honest")[1]
        import slow_form
        with mock.patch.object(slow_form, "scores", mock.Mock(wraps=slow_form.scores)) as spy:
            run()
        assert spy.call_count == 1 and not choice._taken and not choice._times
    run()
    assert {c["taken"] for c in choice._times} == {"honest_form"}


@pytest.mark.usefixtures("made")
def test_what_is_asked_for_goes_before_the_choice(monkeypatch):
    check = install(monkeypatch, "honest")
    with backend("torch"), mock.patch.object(grouped, "values", mock.Mock(wraps=grouped.values)) as spy:
        run()
    assert spy.called and not check.called
    run()
    assert choice._times[-1]["taken"] == "honest_form"


def test_small_products_of_a_processor_are_torchs_unasked(monkeypatch):
    """Up to a number of multiply–adds: of the pairs that there are, the batch and the weights that are given."""
    args = operator("causal", 1, "qv", 2, 3, 4, 2)
    taken = []
    for least in (2 * 10 * 3 * 2, 2 * 10 * 3 * 2 + 1, 2 * 10 * 3 * 4, 2 * 10 * 3 * 4 + 1):
        monkeypatch.setitem(products.LEAST, "cpu", least)
        with mock.patch.object(choice, "take", mock.Mock(return_value=grouped)) as take:
            run(args)
        taken.append([call.args[0] for call in take.call_args_list])
    assert taken == [["scores", "values"], ["scores"], ["scores"], []]


@needs_compiler
def test_a_processor_takes_c_where_it_agreed_and_notes_that(monkeypatch):
    """The check runs once for all processes that have the same code and compiler; the times are those of each."""
    args = operator("line", 1, "qkv", 8, 24, 24, 24)
    monkeypatch.setattr(choice, "_seconds", lambda form, *_: 1.0 if form is grouped else 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = run(args)
        assert [v["agreed"] for v in choice._verdicts["cpu", "torch.float32"]] == [True]
        assert [(c["taken"], {*c["seconds"]}) for c in choice._times] == [("c", {"torch", "c"})] * 2
        choice._verdicts.clear(), choice._taken.clear(), choice._times.clear()
        with mock.patch.object(choice, "self_check", side_effect=AssertionError):
            assert all(map(torch.equal, run(args), first))
        assert {c["taken"] for c in choice._times} == {"c"}
    choice._taken.clear()
    monkeypatch.setattr(choice, "_seconds", lambda form, *_: 1.0 if form is grouped else 0.95)
    run(args)
    assert choice._times[-1]["taken"] == "torch"                    # for a near tie


def test_without_a_compiler_a_processor_goes_on_in_silence(monkeypatch):
    monkeypatch.setattr(library, "compiler", lambda: None)
    with warnings.catch_warnings(), mock.patch.object(choice, "self_check", side_effect=AssertionError):
        warnings.simplefilter("error")
        run()
        run([a.detach().double().requires_grad_() if isinstance(a, torch.Tensor) else a
             for a in operator("line", 1, "qkv", 2, 3, 4, 2)])
    assert not choice._times


def test_nothing_empty_and_nothing_without_numbers_is_timed():
    x, *_, w = (t.detach() for t in operator("line", 1, "qkv", 2, 3, 4, 2)[:4])
    rel, alpha = offsets(4), torch.rand(2, 1, 4, 4)
    with mock.patch.object(choice, "_checked", side_effect=AssertionError):
        assert fn.translution_values(alpha[:0], x[:0], w, rel).shape == (0, 4, 2)
        assert Job("values", pairs_on(rel, CPU), 1, "auto").form_for((alpha, x.to("meta"), w)) is grouped


CHILD = """
import torch, warnings
from translution_lib.backends import choice
warnings.simplefilter("error")
choice.CANDIDATES["cpu"] = {registry!r}
print(choice._known(torch.device("cpu"), torch.float32) is not None)
"""


@pytest.mark.usefixtures("made")
def test_verdicts_are_handed_to_child_processes(monkeypatch):
    install(monkeypatch, "honest").side_effect = None
    run()
    text = choice.exported()
    registry = choice.CANDIDATES["cpu"]
    assert python(CHILD.format(registry=registry), **{choice.VARIABLE: text}).split() == ["True"]
    choice._verdicts.clear()
    for change in (lambda d: d["versions"].update(torch="0"), lambda d: d["found"][0].update(device="other"),
                   lambda d: d["found"][0].update(dtype="torch.half"), lambda d: d["found"][0].update(verdicts=[]),
                   lambda d: d["found"][0]["verdicts"][0].pop("agreed"), lambda d: d.pop("found"),
                   lambda d: d.pop("versions"),
                   lambda d: d["found"][0].update(verdicts=[{"candidate": "honest_form", "agreed": "yes"}])):
        data = json.loads(text)
        change(data)
        monkeypatch.setenv(choice.VARIABLE, json.dumps(data))
        assert choice._known(CPU, torch.float32) is None
    for text_ in ("", "{", "[]", "null", '{"versions": 1}', '{"found": 3}'):
        monkeypatch.setenv(choice.VARIABLE, text_)
        assert choice._known(CPU, torch.float32) is None
    monkeypatch.setenv(choice.VARIABLE, text)
    assert choice._known(CPU, torch.float32)[0]["candidate"] == "honest_form"


@pytest.mark.usefixtures("made")
def test_a_process_goes_on_with_the_forms_that_it_is_handed(monkeypatch):
    """Without timing, also while a graph is captured; what cannot serve any more is not taken."""
    install(monkeypatch, "slow", "honest")
    run()
    text = choice.exported()
    for busy in (False, True):
        choice._verdicts.clear(), choice._taken.clear(), choice._times.clear()
        monkeypatch.setenv(choice.VARIABLE, text)
        with mock.patch.object(choice, "_fastest", side_effect=AssertionError), \
                mock.patch.object(choice, "_busy", return_value=busy):
            run()
        assert [c["taken"] for c in choice.report()["choices"]] == ["honest_form"] * 2
    data = json.loads(text)
    data["found"][0]["verdicts"][1]["agreed"] = False
    choice._verdicts.clear(), choice._taken.clear(), choice._times.clear()
    monkeypatch.setenv(choice.VARIABLE, json.dumps(data))
    run()
    run(operator("line", 1, "qkv", 9, 3, 4, 2))
    assert [c["taken"] for c in choice._times] == ["slow_form"] * 4 and all(c["seconds"] for c in choice._times)


def test_a_check_that_cannot_start_is_a_reason_and_no_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", str(Path("no") / "such" / "python"))
    assert all("does not start" in v["reason"] and not v["agreed"] for v in choice.self_check("cpu", torch.float32))


@pytest.mark.parametrize("dtype", proof.BOUNDS)
@pytest.mark.parametrize("name", ["torch", "c", "padded", "grouped_mm"])
def test_the_forms_of_the_library_agree(name, dtype):
    found = proof.verdict(name, CPU, dtype)
    applies = {"grouped_mm": torch.bfloat16, "c": torch.float32}.get(name, dtype) == dtype
    assert found["agreed"] == found["applies"] == applies
    assert not applies or found["error"] < proof.BOUNDS[dtype] / 5


def test_a_bound_lies_below_what_one_wrong_pair_does():
    """One of a query's pairs lost in all samples and heads: in every case and type it is seen."""

    def lost(*args):
        (a,) = padded.scores(*args)
        at = args[4].groups[0]
        a[:, :, at.queries[0], at.keys[0]] = 0
        return (a,)

    wrong = ModuleType("wrong")
    names = ("takes", "scores_backward", "values", "values_backward")
    vars(wrong).update({name: getattr(padded, name) for name in names}, scores=lost)
    for dtype in proof.BOUNDS:
        for seed, case in enumerate(proof.CASES):
            if not case.same:
                with pytest.raises(proof.Disagreement, match="scores of"):
                    proof.compare(wrong, case, seed, CPU, dtype)


@needs_triton
@pytest.mark.skipif(DEVICE != "cpu", reason="on a card its own check runs all cases")
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.nightly)])
def test_triton_agrees_on_a_case_that_its_interpreter_can_run(dtype):
    assert max(proof.compare(fused, proof.CASES[2], 2, CPU, dtype)) < proof.BOUNDS[dtype] / 5


def test_forms_that_are_nested_too_deeply_are_nobodys(monkeypatch):
    monkeypatch.setenv(choice.VARIABLE, "[" * 100_000)
    assert choice._given(CPU, ("cpu", "torch.float32")) is None
