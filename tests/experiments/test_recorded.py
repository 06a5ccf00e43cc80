"""Recorded steps, with a stand-in for CUDA graphs: it runs the recorded function again."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from translution_runs import ImageClassificationConfig, LanguageModellingConfig, Run
from translution_runs.constants import Constants
from translution_runs.data.residence import LARGEST, worth_moving
from translution_runs.data.tokens import TokenSet
from translution_runs.recorded import Recorded, difference, recordable, steady
from translution_runs.training import Trainer, make_fabric, train

IMAGES = {"canvas": 16, "patch_size": 8, "dim": 8, "depth": 1, "heads": 2, "ff": 8, "epochs": 3, "batch_size": 32,
          "train_samples": 80, "test_samples": 40, "train_placement": "dynamic", "mixer": "self-attention"}
TEXTS = {"context": 8, "depth": 1, "dim": 8, "heads": 2, "ff": 8, "epochs": 3, "steps": 4, "batch_size": 12,
         "mixer": "rotary", "test_tokens": 2_049}


def begun(folder, kind=ImageClassificationConfig, **changes) -> Run:
    tiny = IMAGES if kind is ImageClassificationConfig else TEXTS
    run = Run.begin(kind.of({**tiny, "results_dir": str(folder), **changes}))
    run.load()
    run.build()
    return run


def finished(run: Run, capture=None, after_epoch=None):
    return train(run.config, run.model, run.sets["train"], run.keeper, after_epoch, capture=capture)


class Again:
    """Records as a GPU does: the step is run some times first. Its recordings run the function again."""

    def __init__(self, before=4):
        self.before, self.plays, self.captures = before, 0, 0

    def __call__(self, work):
        self.captures += 1
        for _ in range(self.before):
            work()

        def play():
            self.plays += 1
            work()
        return play


def assert_same(one: Run, other: Run, curves, tolerance=0.0):
    for (name, ours), theirs in zip(one.model.state_dict().items(), other.model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, msg=name)
    for first, second in zip(*(curve.epochs for curve in curves), strict=True):
        assert first.loss == pytest.approx(second.loss, rel=tolerance, abs=0)
        assert (first.accuracy, first.learning_rate) == (second.accuracy, second.learning_rate)


@pytest.mark.parametrize(("kind", "changes"), [
    (ImageClassificationConfig, {}),
    (ImageClassificationConfig, {"augment": "crop-flip", "mixer": "translution"}),
    (ImageClassificationConfig, {"mixer": "riemann", "pool": "mean"}),
    (ImageClassificationConfig, {"model": "resnet-18", "mixer": "translution", "canvas": 32, "depth": 0, "heads": 0,
                                 "ff": 0, "train_samples": 40, "batch_size": 16}),
    (LanguageModellingConfig, {}),
    (LanguageModellingConfig, {"precision": "bfloat16"}),
])
def test_played_steps_are_plain_steps(tmp_path, kind, changes):
    """Also the last step of an epoch, which has fewer images, and the rate, which changes between epochs."""
    tolerance = 1e-6 if "precision" in changes else 0.0
    capture, runs = Again(), [begun(tmp_path / name, kind, **changes) for name in ("plain", "played")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curves = finished(runs[0]), finished(runs[1], capture)
    assert_same(*runs, curves, tolerance)
    sizes = 1 if kind is LanguageModellingConfig else 2
    steps = {ImageClassificationConfig: 9, LanguageModellingConfig: 12}[kind]
    assert (capture.captures, capture.plays) == (sizes, steps - 1)  # all but the first are played


@pytest.mark.parametrize("changes", [{}, {"mixer": "riemann", "train_samples": 67}])
@pytest.mark.parametrize("stop", [1, 4, 5])
def test_a_training_goes_on_from_the_middle_of_an_epoch(tmp_path, changes, stop):
    class Killed(Exception):
        pass

    def killing(run):
        keeper = run.keeper
        save = keeper.save

        def kill(step, state):
            save(step, state)
            if step == stop:
                raise Killed
        keeper.save = kill
        return keeper

    whole, stopped, resumed = (begun(tmp_path / name, checkpoint_steps=1, **changes) for name in ("a", "b", "b"))
    plain = finished(whole)
    with pytest.raises(Killed):
        train(stopped.config, stopped.model, stopped.sets["train"], killing(stopped), capture=Again())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        capture = Again()
        assert_same(whole, resumed, (plain, finished(resumed, capture)))
    assert capture.plays == 9 - stop  # a training that goes on has its moments


def test_what_a_recording_reads_and_writes_stays_where_it_is(tmp_path):
    """A recording knows tensors by their addresses; the stand-in does not show whether they hold."""
    run = begun(tmp_path, checkpoint_steps=2)
    trainer = Trainer(run.config, run.model, run.sets["train"], run.keeper, make_fabric(run.config),
                      type("Never", (), {"requested": 0}), Again())
    places = []

    def look(epoch):
        own = [one for state in trainer.plain.state.values() for one in state.values()]
        buffers = [buffer for buffer, _ in trainer.recorded.played.values()]
        held = [*run.model.parameters(), *own, *buffers, trainer.sums, trainer.plain.param_groups[0]["lr"]]
        places.append([one.data_ptr() for one in held])

    trainer.run(look)
    assert len(places) == 3 and places[0] == places[1] == places[2]
    assert len(places[0]) == len(set(places[0])) == 4 * len([*run.model.parameters()]) + 4


def nothing(work):
    return lambda: None


def other_numbers(run):
    def capture(work):
        def play():
            work()
            with torch.no_grad():
                next(run.model.parameters()).add_(1e-3)
        return play
    return capture


def raising(run):
    def capture(work):
        work()
        raise RuntimeError("operation not permitted when stream is capturing")
    return capture


def failing_late(run):
    """Spoils the weights, then fails."""
    def capture(work):
        def play():
            work()
            raise RuntimeError("an illegal memory access")
        return play
    return capture


class Kept:
    """A recording that keeps something of the moment when it was made."""

    def __init__(self, name):
        self.name = name

    def __call__(self, work):
        free = dict(zip(work.__code__.co_freevars, (cell.cell_contents for cell in work.__closure__), strict=True))
        held = free["buffer"] if self.name == "batch" else free["self"].rate
        kept = held.clone()

        def play():
            now = held.clone()
            held.copy_(kept)
            work()
            held.copy_(now)
        return play


@pytest.mark.parametrize(("made", "reason"), [
    (lambda run: nothing, "its sums are .* away"), (other_numbers, "its weights are"), (raising, "not permitted"),
    (failing_late, "illegal memory access"), (lambda run: Kept("batch"), "its sums are"),
    (lambda run: Kept("rate"), "its weights are"),
])
def test_a_wrong_recording_is_refused_with_one_warning_and_the_run_goes_on(tmp_path, made, reason):
    plain, run = begun(tmp_path / "plain"), begun(tmp_path / "refused")
    with pytest.warns(RuntimeWarning, match=reason) as caught:
        found = finished(run, made(run))
    assert len([one for one in caught if "a recorded step cannot be used" in str(one.message)]) == 1
    assert_same(plain, run, (finished(plain), found))


@pytest.mark.parametrize("full", [1, 2])
def test_without_room_for_a_copy_training_goes_on_step_by_step(tmp_path, monkeypatch, full):
    made, copies = Recorded._copy, []

    def copy(self):
        copies.append(self)
        if len(copies) == full:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return made(self)

    plain, run = begun(tmp_path / "plain"), begun(tmp_path / "refused")
    monkeypatch.setattr(Recorded, "_copy", copy)
    with pytest.warns(RuntimeWarning, match="out of memory for copies"):
        found = finished(run, Again())
    assert len(copies) == full
    assert_same(plain, run, (finished(plain), found))


@pytest.mark.parametrize("changes", [
    {"mixer_options": '{"dropout": 0.2}'}, {"accumulate": 2},
    {"mixer": "performer", "mixer_options": '{"redraw_interval": 2}'},
    {"mixer": "self-attention,performer", "depth": 2, "mixer_options": '{"redraw_interval": 3}'},
    {"model": "alexnet", "mixer": "translution", "canvas": 32, "depth": 0, "heads": 0, "ff": 0},
])
def test_steps_that_differ_are_not_recorded(tmp_path, changes):
    def never(work):
        raise AssertionError("recorded")

    run = begun(tmp_path, epochs=1, **changes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(finished(run, never).epochs) == 1


def test_several_processes_and_compiled_models_are_not_recorded(tmp_path):
    run = begun(tmp_path)
    assert recordable(run.config, run.model, 1) and not recordable(run.config, run.model, 2)
    assert not recordable(run.config.model_copy(update={"compile": True}), run.model, 1)


def test_batches_that_are_not_made_on_the_device_are_not_recorded(tmp_path):
    """Pictures that are read from a disk, and rows in another memory."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    taken = []
    recorded = Recorded(lambda work: work, lambda *parts: taken.append(parts), model, optimizer, torch.zeros(2),
                        "float32")
    streamed = SimpleNamespace(steps=[torch.arange(3)])
    elsewhere = SimpleNamespace(steps=[torch.arange(3, device="meta")], batch=lambda rows: (rows, rows))
    here = SimpleNamespace(steps=[torch.arange(3)], batch=lambda rows: (rows, rows))
    assert not recorded.step(streamed, 0) and not recorded.step(elsewhere, 0) and not taken
    assert recorded.step(here, 0) and taken
    assert not any(group["capturable"] for group in optimizer.param_groups)


def test_layers_say_whether_their_steps_are_alike():
    assert steady(torch.nn.Dropout(0.0)) and not steady(torch.nn.Dropout2d(0.1)) and steady(torch.nn.Linear(2, 2))


@given(st.floats(1e-3, 1.0), st.floats(0, 2.0))
def test_a_difference_counts_in_parts_of_the_step(moved, part):
    before = {"weights": [torch.ones(3, 4), torch.ones(2)]}
    step = [moved * torch.eye(3, 4), torch.zeros(2)]
    expected = {"weights": [one + change for one, change in zip(before["weights"], step, strict=True)]}
    found = {"weights": [one + part * change for one, change in zip(expected["weights"], step, strict=True)]}
    assert bool(difference(before, expected, found, 0.1)) == (part > 0.1) or abs(part - 0.1) < 1e-3
    assert "weights" in difference(before, expected, {"weights": [one * torch.nan for one in step]}, 0.1)


def test_constants_are_handed_out_while_they_are_the_same():
    there, table = torch.device("meta"), torch.arange(3.0)
    constants, weights = Constants(there), torch.ones(3, device="meta", requires_grad=True)

    def step(table):
        first, second = table.to(there), (2 * table).to(there, torch.float64)
        (weights * table.to(there)).sum().backward()
        return first, second

    with constants.noted():
        noted = step(table)
    with constants.handed_out():
        again = step(table)
    assert all(one is same for one, same in zip(noted, again, strict=True)) and len(constants.noted_copies) == 3
    for changed in (table + 1, table.double()):
        with pytest.raises(RuntimeError, match="copies other numbers"), constants.handed_out():
            step(changed)
    with pytest.raises(RuntimeError, match="copies other numbers"), constants.handed_out():
        step(table), step(table)
    noted[0].add_(1)
    with pytest.raises(RuntimeError, match="changes in place"), constants.handed_out():
        step(table)


@given(st.integers(1, 70_000), st.integers(1, 9), st.integers(0, 999))
def test_windows_cut_on_a_device_are_those_of_the_text(vocabulary, length, seed):
    numbers = np.random.default_rng(seed).integers(0, min(vocabulary, 2**16), 40).astype(np.uint16)
    text = TokenSet(numbers, vocabulary, "numbers", "train", {})
    moved = text.moved("cpu")
    starts = [one.draw(12, length, torch.Generator().manual_seed(seed)) for one in (text, moved)]
    assert torch.equal(*starts) and moved.table.element_size() == (1 if vocabulary <= 256 else 4)
    for ours, theirs in zip(text.windows(starts[0], length), moved.windows(starts[1], length), strict=True):
        assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype
    assert torch.equal(moved.first(20).table, moved.table[:20]) and len(moved.first(20)) == 20
    assert [one.table.tolist() for one in moved.parted(9)] == [one.tokens.tolist() for one in text.parted(9)]


def test_a_run_of_moved_tokens_is_the_run(tmp_path):
    runs = [begun(tmp_path / name, LanguageModellingConfig) for name in ("here", "moved")]
    runs[1].sets = {part: one.moved("cpu") for part, one in runs[1].sets.items()}
    assert_same(*runs, [finished(run, Again()) for run in runs])
    assert [run.evaluate() for run in runs][0] == runs[1].texts


def test_only_a_gpu_is_given_data_and_only_what_fits(tmp_path):
    assert worth_moving("cuda:1", LARGEST) and not worth_moving("cuda", LARGEST + 1) and not worth_moving("cpu", 1)
    images, text = begun(tmp_path).sets["train"], begun(tmp_path, LanguageModellingConfig).sets["train"]
    assert images.on("cpu") is images and text.on(torch.device("cpu")) is text
