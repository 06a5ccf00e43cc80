"""Real signals to real processes: whatever ends a run, the run goes on and ends as if nothing had happened."""

import os
import shutil
import signal
import time
import warnings
from contextlib import suppress

import pytest
import torch
from translution_runs import ImageClassificationConfig, Run
from translution_runs.checkpoint import Keeper, finished
from translution_runs.run import free

from tests.experiments.forge import TINY, stamped, wait_until

LONG = {"epochs": 6}  # 54 steps


def checked(folder, **changes) -> ImageClassificationConfig:
    return ImageClassificationConfig.of({**TINY, **LONG, "results_dir": str(folder), **changes})


def steps(folder) -> list[int]:
    return finished(folder / "tiny.checkpoints")


def result(folder) -> dict:
    """All that a training leaves, but for times and the number of resumptions."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, state = Keeper(folder / "tiny.checkpoints", checked(folder).fingerprint()).load()
    for epoch in state["progress"]["epochs"]:
        del epoch["seconds"]
    assert len(state["progress"]["epochs"]) == LONG["epochs"]
    state["resumed"] = state["progress"].pop("resumed")
    return state


@pytest.fixture(scope="module")
def whole(forge, tmp_path_factory):
    """The same run, never stopped, without a checkpoint before its end."""
    folder = tmp_path_factory.mktemp("whole")
    assert forge.run("train", config={**LONG, "results_dir": str(folder)}) == [0], forge.log.read_text()[-2000:]
    found = result(folder)
    assert found.pop("resumed") == 0
    return found


def same(one, other) -> bool:
    """Whether two nested states are equal, tensors bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def assert_goes_on_to(whole: dict, forge, folder):
    """The run of `folder`, started once more, ends in the same weights, moments and curve, bit for bit."""
    assert forge.run("train", config={**LONG, "results_dir": str(folder)}) == [0], forge.log.read_text()[-2000:]
    found = result(folder)
    assert found.pop("resumed") > 0
    assert same(found, whole)
    assert "refused" not in forge.log.read_text()


def test_ten_kills_at_random_moments_change_nothing(forge, whole, tmp_path, rng):
    kills = 0
    run = {**LONG, "results_dir": str(tmp_path), "checkpoint_steps": 1}
    while kills < 10:
        target = max(steps(tmp_path), default=0) + rng.randrange(4)  # some die before their first step
        with forge.begun("train", config=run) as (pids, ended):
            wait_until(lambda target=target: max(steps(tmp_path), default=0) >= min(target, 53))
            time.sleep(rng.uniform(0, 0.02))
            with suppress(ProcessLookupError):
                os.kill(pids[0], signal.SIGKILL)
            [code] = ended()
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        if code == 0:  # it was done before; the kills that are left hit another
            assert_goes_on_to(whole, forge, tmp_path)
            shutil.rmtree(tmp_path / "tiny.checkpoints")
    assert_goes_on_to(whole, forge, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_after_its_step(forge, whole, tmp_path, number):
    with forge.begun("train", config={**LONG, "results_dir": str(tmp_path), "checkpoint_steps": 7}) as (pids, ended):
        wait_until(lambda: steps(tmp_path))
        os.kill(pids[0], number)
        assert ended() == [128 + number]
    said = f"stopped by {signal.Signals(number).name} after step {steps(tmp_path)[-1]};"
    assert said in forge.log.read_text()
    assert_goes_on_to(whole, forge, tmp_path)


def test_a_second_process_is_refused_until_the_first_has_died(forge, tmp_path):
    run = {**LONG, "results_dir": str(tmp_path), "checkpoint_steps": 1}
    with forge.begun("train", config=run) as (pids, _):
        wait_until(lambda: steps(tmp_path))
        with pytest.raises(ValueError, match=f"tiny: is being run by process {pids[0]} on"):
            Run.begin(checked(tmp_path))
    Run.begin(checked(tmp_path))
    free(tmp_path / "tiny.lock")


def test_a_kill_while_checkpoints_are_written_leaves_sound_ones(forge, tmp_path, rng):
    seen = 0
    for _ in range(10):
        with forge.begun("keep", folder=str(tmp_path / "c")) as (pids, ended):
            wait_until(lambda seen=seen: max(finished(tmp_path / "c"), default=0) > seen)
            time.sleep(rng.uniform(0, 0.02))
            os.kill(pids[0], signal.SIGKILL)
            assert ended() == [-signal.SIGKILL]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            seen, state = Keeper(tmp_path / "c", "abc").load()
        assert torch.equal(state["weights"], stamped(seen)["weights"])
