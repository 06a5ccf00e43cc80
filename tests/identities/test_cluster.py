"""From laptop to cluster: what a kill costs, how often to save, how long a list of runs lasts, what a run computes."""

from math import exp, log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import lambertw
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from translution_runs import ImageClassificationConfig, budget, build_model
from translution_runs.grids.plan import images

seconds = st.floats(0.5, 5e4)


@pytest.mark.identity("eq-cluster-time")
@given(seconds, st.floats(0, 500), seconds, st.floats(0, 500))
def test_the_expected_time_solves_its_renewal_equation(interval, save, between, restart):
    length = min(interval + save, 20 * between)  # beyond, the numbers overflow and nobody would wait
    found = budget.expected_time(length - min(save, length / 2), min(save, length / 2), between, restart)
    survives = exp(-length / between)
    until_kill = quad(lambda t: t * exp(-t / between) / between, 0, length)[0]
    assert found == pytest.approx(until_kill + (1 - survives) * (restart + found) + survives * length, rel=1e-6)


@pytest.mark.identity("thm-cluster-interval")
@given(st.floats(1e-3, 1e3), st.floats(1.0, 1e6), st.floats(0, 100))
def test_the_best_interval_loses_least_and_lies_below_youngs(save, between, restart):
    save = min(save, 20 * between)  # beyond, the difference to `between` is lost in rounding
    best = budget.best_interval(save, between)
    assert 0 < best < between and best <= sqrt(2 * save * between) * (1 + 1e-12)
    assert best == pytest.approx(between * (1 + lambertw(-exp(-1 - save / between)).real), rel=1e-4)

    def overhead(interval):
        return log(budget.expected_time(interval, save, between, restart) / interval)

    assert all(overhead(best) <= overhead(best * factor) + 1e-9 for factor in (0.3, 0.8, 1.2, 3.0))


@pytest.mark.identity("thm-cluster-makespan")
@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.integers(1, 12))
def test_a_list_of_runs_ends_within_grahams_bound(durations, workers):
    placed = budget.schedule(durations, workers)
    assert [one.run for one in placed] == list(range(len(durations)))
    for worker in range(workers):  # no worker has two runs at once, and none pauses
        own = [one for one in placed if one.worker == worker]
        assert [one.start for one in own] == pytest.approx([0, *np.cumsum([one.duration for one in own])][:len(own)])
    end, mean, longest = budget.makespan(placed), sum(durations) / workers, max(durations)
    assert max(mean, longest) - 1e-9 <= end <= mean + (1 - 1 / workers) * longest + 1e-9


def counted(mixer: str) -> tuple[float, ImageClassificationConfig]:
    """Operations of a run by torch's counter of those of a step, and the run."""
    small = {"mixer": mixer, "canvas": 24, "patch_size": 6, "depth": 1, "dim": 16, "ff": 32}
    config = ImageClassificationConfig.of(small)
    with torch.device("meta"):
        model, x = build_model(config), torch.empty(4, 1, 24, 24)
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        model(x).sum().backward()
    assert budget.operations(config) == budget.operations(config, model.config)
    return counter.get_total_flops() / len(x) * images(config), config


@pytest.mark.identity("eq-cluster-hours")
def test_a_step_is_three_forward_runs_and_up_to_four_with_translution():
    found, config = counted("absolute")
    assert budget.operations(config) == pytest.approx(found)
    assert budget.hours(config, 1e9) * 3600e9 == pytest.approx(found)
    found, config = counted("translution")  # projects its pairs again in backward
    assert 1 < found / budget.operations(config) < 4 / 3


@pytest.mark.parametrize("name", ["resnet-18", "linformer"])
def test_a_baseline_has_operations_too(name):
    """Torch's counter sees a forward run of the network; two more are backward's."""
    config = ImageClassificationConfig.of({"model": name, "data": "cifar10", "canvas": 32, "patch_size": 8, "dim": 8})
    with torch.device("meta"):
        model, x = build_model(config).eval(), torch.empty(1, 3, 32, 32)
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        model(x)
    expected = 3 * counter.get_total_flops() * images(config)
    assert budget.operations(config) == budget.operations(config, budget.model_of(config)) == pytest.approx(expected)


def test_images_are_those_of_all_epochs_and_a_third_of_those_tested():
    config = ImageClassificationConfig.of({"train_samples": 90, "test_samples": 30, "epochs": 2})
    assert images(config) == pytest.approx(2 * 90 + 2 * 30 / 3)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: budget.hours(ImageClassificationConfig.of({}), 0.0), "rate: got 0.0"),
    (lambda: budget.expected_time(0.0, 1.0, 1.0), "interval: got 0.0"),
    (lambda: budget.expected_time(1.0, -1.0, 1.0), "save, restart: got -1.0"),
    (lambda: budget.best_interval(1.0, float("inf")), "between: got inf"),
    (lambda: budget.schedule([1.0], 0), "workers, durations: got 0"),
    (lambda: budget.schedule([1.0, -2.0], 1), "durations: got 1 and -2.0"),
])
def test_impossible_numbers_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_no_runs_take_no_time():
    assert budget.makespan(budget.schedule([], 3)) == 0
