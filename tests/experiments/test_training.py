import dataclasses
import os
from math import log

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from translution_runs import ImageClassificationConfig, Run, images, read_record
from translution_runs.batches import EpochBatches, in_order
from translution_runs.data import ImageSet, digits, place
from translution_runs.evaluation import TEST_SEED, evaluate, outcomes_by_place
from translution_runs.kinds import IMAGES, TEXTS
from translution_runs.seeds import derive, generator
from translution_runs.signals import Interrupted
from translution_runs.training import Trainer, learning_rate, make_fabric, summed_loss, train

from translution_lib import MIXERS

TINY = {"canvas": 16, "patch_size": 8, "dim": 8, "depth": 1, "heads": 1, "ff": 8, "epochs": 4, "batch_size": 32,
        "train_samples": 80, "test_samples": 40, "train_placement": "dynamic"}


class Killed(Exception):
    pass


def config(folder, **changes) -> ImageClassificationConfig:
    return ImageClassificationConfig.of({**TINY, "results_dir": str(folder), **changes})


def kill_after(number: int):
    def after_epoch(epoch):
        if epoch.number == number:
            raise Killed
    return after_epoch


def begun(folder, **changes) -> Run:
    run = Run.begin(config(folder, **changes))
    run.load()
    run.build()
    return run


def assert_same_weights(one: nn.Module, other: nn.Module):
    for (name, ours), theirs in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


def timeless(record) -> dict:
    shown = record.model_dump(exclude={"seconds", "date", "peak_memory", "resumed", "source"})
    return {**shown, "curve": [{k: v for k, v in epoch.items() if k != "seconds"} for epoch in shown["curve"]]}


DROPOUT, REDRAWN = '{"dropout": 0.2}', '{"redraw_interval": 2}'


@pytest.mark.parametrize(("mixer", "drawn", "every"), [
    ("translution", DROPOUT, 1), ("self-attention", DROPOUT, 2), ("performer-s2", REDRAWN, 2),
    ("translution", DROPOUT, 0),
])
@pytest.mark.parametrize("kills", [(4,), (1, 2)])
def test_a_killed_and_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, mixer, drawn, every, kills):
    """Three steps an epoch: checkpoints after each, within epochs, across them, and none before the end."""
    options = {"mixer": mixer, "mixer_options": drawn, "heads": 2, "checkpoint_steps": every}
    whole = begun(tmp_path / "whole", **options)
    whole.train()
    for number in kills:
        with pytest.raises(Killed):
            begun(tmp_path / "killed", **options).train(kill_after(number))
    torch.manual_seed(99)  # whatever random state the new process is in
    resumed = begun(tmp_path / "killed", **options)
    resumed.train()
    assert_same_weights(whole.model, resumed.model)
    for run in (whole, resumed):
        run.evaluate()
    records = [run.finish() for run in (whole, resumed)]
    assert timeless(records[0]) == timeless(records[1])
    assert [record.resumed for record in records] == [0, len(kills) if every else 0]
    assert [path.name for path in (tmp_path / "killed").iterdir()] == [f"{whole.config.name}.json"]


@pytest.mark.parametrize("signal", [2, 15])
def test_a_signal_ends_a_run_after_its_step_and_the_next_goes_on(tmp_path, signal):
    whole = begun(tmp_path / "whole")
    whole.train()
    stopped = begun(tmp_path / "stopped")

    def ask(epoch):
        if epoch.number == 2:
            os.kill(os.getpid(), signal)

    with pytest.raises(Interrupted) as caught:
        stopped.train(ask)
    assert (caught.value.signal, caught.value.step) == (signal, 7)  # the first step of the third epoch
    assert [path.name for path in stopped.keeper.folder.glob("*.pt")] == ["step-00000007.pt"]
    resumed = begun(tmp_path / "stopped")
    resumed.train()
    assert_same_weights(whole.model, resumed.model)
    assert resumed.resumed == 1 and [e.loss for e in resumed.curve] == [e.loss for e in whole.curve]


def test_the_state_of_a_run_does_not_depend_on_how_often_it_is_saved(tmp_path):
    runs = [begun(tmp_path / str(steps), checkpoint_steps=steps) for steps in (0, 1)]
    for run in runs:
        run.train()
    assert runs[0].config.name == runs[1].config.name
    assert_same_weights(runs[0].model, runs[1].model)


@pytest.mark.parametrize("parts", [2, 5])
def test_a_step_in_parts_is_the_whole_step(tmp_path, parts):
    """Exactly the mean over the step's images, also where the last step has fewer images than parts."""
    finals = []
    for accumulate in (1, parts):
        run = begun(tmp_path / str(accumulate), accumulate=accumulate, train_samples=67, mixer="self-attention")
        run.model.double()
        run.sets["train"] = Precise(**vars(run.sets["train"]))
        run.train()
        finals.append(run.model.state_dict())
    for name, one in finals[0].items():
        torch.testing.assert_close(finals[1][name], one, rtol=1e-9, atol=1e-10, msg=name)


class Precise(ImageSet):
    """Pixels in double precision, so that sums in another order are equal but for rounding of no account."""

    def pixels(self, index):
        return self.images[index].double() / 255


def test_compiling_changes_rounding_only(tmp_path, monkeypatch):
    used = []
    monkeypatch.setattr(torch, "compile", lambda model: used.append(model) or model)  # compiling takes minutes
    run = begun(tmp_path, compile=True, epochs=1)
    run.train()
    assert used == [run.model] and run.curve[0].loss > 0


def test_the_seed_decides_the_result(tmp_path):
    runs = [begun(tmp_path / str(k), seed=seed) for k, seed in enumerate([5, 5, 6])]
    for run in runs:
        run.train()
    assert_same_weights(runs[0].model, runs[1].model)
    assert not torch.equal(runs[0].model.head.weight, runs[2].model.head.weight)


def test_checkpoints_of_other_parameters_are_refused(tmp_path):
    with pytest.raises(Killed):
        begun(tmp_path, run_name="mine", checkpoint_steps=1).train(kill_after(1))
    refused = pytest.raises(ValueError, match="no checkpoint can be")
    with pytest.warns(RuntimeWarning, match="other parameters"), refused:
        begun(tmp_path, run_name="mine", learning_rate=1e-4).train()


def test_the_learning_rate_is_torchs_cosine():
    run = config(".", epochs=7, learning_rate=0.3)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7)
    for epoch in range(7):
        assert learning_rate(run, epoch) == pytest.approx(schedule.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        schedule.step()


def numbered(count: int) -> ImageSet:
    """Images of 2 by 2 pixels; image k is filled with k + 1."""
    images = torch.arange(1, count + 1, dtype=torch.uint8)[:, None, None, None].expand(count, 1, 2, 2).contiguous()
    return ImageSet(images, torch.arange(count) % 10, "numbered", "train", {})


class Watcher(nn.Module):
    """A classifier that remembers what it saw."""

    def __init__(self):
        super().__init__()
        self.logits, self.seen = nn.Parameter(torch.zeros(10)), []

    def forward(self, images):
        self.seen.append(images.detach())
        return self.logits.expand(len(images), -1)


def test_every_epoch_shows_every_image_once_in_a_new_order_at_new_places():
    model = Watcher()
    train(config(".", batch_size=7, epochs=3), model, numbered(50))
    shown = torch.cat(model.seen).reshape(3, 50, 16, 16)
    which = (shown.amax((2, 3)) * 255).round().int()
    assert [len(part) for part in model.seen[:8]] == [7] * 7 + [1]
    assert all(sorted(epoch.tolist()) == list(range(1, 51)) for epoch in which)
    assert not torch.equal(which[0], which[1])
    first, second = (epoch[order.argsort()] > 0 for epoch, order in zip(shown[:2], which[:2], strict=True))
    assert int((first != second).any(-1).any(-1).sum()) > 40  # 225 places: most images moved


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=25)
def test_processes_and_parts_share_out_every_step(count, size, world, accumulate):
    assume(world * accumulate <= size)
    run = config(".", batch_size=size, accumulate=accumulate)
    whole = EpochBatches(config(".", batch_size=size), numbered(count), epoch=3)
    shared = EpochBatches(run, numbered(count), epoch=3)
    assert len(whole) == len(shared) == -(-count // size)
    for step in range(len(whole)):
        ((images, labels),) = whole.parts(step)
        parts = [part for rank in range(world) for part in shared.parts(step, rank, world)]
        assert len(parts) == world * accumulate
        assert torch.equal(torch.cat([x for x, _ in parts]), images)
        assert torch.equal(torch.cat([y for _, y in parts]), labels)


def test_the_batch_size_changes_no_position():
    parts = [torch.cat([x for x, _ in in_order(config(".", batch_size=size), numbered(30), "dynamic", generator(1))])
             for size in (4, 30)]
    assert torch.equal(*parts)


def test_the_evaluation_counts_and_averages_as_by_hand():
    images, model = numbered(25), Watcher()
    model.logits.data[3] = 2.0
    found = evaluate(config("."), model, images)
    others, normaliser = 1.0, log(2.718281828459045**2 + 9)
    for placement in ("static", "dynamic"):
        assert (found[placement].n, found[placement].correct) == (25, 3)  # the labels 3, 13 and 23
        loss = (22 * normaliser + 3 * (normaliser - 2)) / 25 * others
        assert found[placement].loss == pytest.approx(loss, abs=1e-5)
        assert found[placement].accuracy == 3 / 25
    expected = place(images.pixels(torch.arange(25)), 16, "dynamic", generator(TEST_SEED, "test positions"))
    assert torch.equal(model.seen[0], place(images.pixels(torch.arange(25)), 16, "static"))
    assert torch.equal(model.seen[1], expected)


def test_the_test_positions_do_not_depend_on_the_runs_seed():
    models = Watcher(), Watcher()
    for seed, model in enumerate(models):
        evaluate(config(".", seed=seed), model, numbered(20))
    assert torch.equal(models[0].seen[1], models[1].seen[1])


def test_a_loss_that_is_no_number_stops_the_run():
    model = Watcher()
    model.logits.data[0] = float("nan")
    with pytest.raises(FloatingPointError, match="epoch 1; try a smaller learning_rate"):
        train(config("."), model, numbered(10))


def test_streams_of_different_names_differ_and_repeat():
    seeds = {derive(seed, name, epoch) for seed in (0, 1) for name in ("order", "positions") for epoch in (0, 1)}
    assert len(seeds) == 8 and all(0 <= seed < 2**63 for seed in seeds)
    assert derive(0, "order", 1) == derive(0, "order", 1)
    assert derive(0, "weights") == 5147875554478041081  # the committed records were made with this stream


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_every_mixer_trains(tmp_path, mixer):
    heads = 2 if mixer == "performer-s2" else 1
    record = Run.begin(config(tmp_path, mixer=mixer, epochs=2, pool="mean", learning_rate=0.01, heads=heads)).complete()
    assert record.curve[1].loss < record.curve[0].loss
    assert record.model["mixer"] == [mixer] and record.parameters["pool"] == "mean"


def test_bfloat16_runs_and_is_recorded(tmp_path):
    record = Run.begin(config(tmp_path, precision="bfloat16", epochs=1)).complete()
    assert record.parameters["precision"] == "bfloat16"
    assert record.curve[0].loss < 4


@pytest.mark.parametrize("kind", [IMAGES, TEXTS])
def test_bfloat16_is_within_the_model_alone(tmp_path, kind):
    """Products of matrices are in it; logits, loss, sums, weights, gradients and moments are not."""
    tiny = TINY if kind is IMAGES else {"context": 8, "depth": 1, "dim": 8, "heads": 1, "ff": 8, "test_tokens": 2_049}
    run = Run.begin(kind.config.of({**tiny, "results_dir": str(tmp_path), "precision": "bfloat16"}))
    run.load()
    inside, logits = [], []
    run.build().blocks[0].feed_forward[1].register_forward_hook(lambda layer, inputs, out: inside.append(out.dtype))
    trainer = Trainer(run.config, run.model, run.sets["train"], None, make_fabric(run.config), None)
    batches = kind.epoch(run.config, run.sets["train"], 0)

    def sums(found, labels):
        logits.append(found)
        return kind.sums(found, labels)

    (inputs, labels), = batches.parts(0)
    loss, _ = summed_loss(trainer.wrapped, inputs, labels, sums)
    logits[0] = logits[0].detach()
    expected = torch.nn.functional.cross_entropy(logits[0].double().flatten(0, -2), labels.flatten(), reduction="none")
    loss = loss.detach()
    assert float(loss) == pytest.approx(float(expected.reshape(len(labels), -1).mean(1).sum()), rel=1e-5)
    trainer._step(batches, 0, 0)
    own = [one for state in trainer.plain.state.values() for one in state.values()]
    weights = list(run.model.parameters())
    kept = [logits[0], loss, *weights, *(one.grad for one in weights), *own]
    assert {one.dtype for one in kept} == {torch.float32} and trainer.sums.dtype == torch.float64
    assert set(inside) == {torch.bfloat16} and float(trainer.sums[0]) == pytest.approx(float(loss), rel=1e-6)


def test_a_record_of_the_same_name_is_replaced_only_by_the_same_run(tmp_path):
    first = Run.begin(config(tmp_path, run_name="mine", epochs=1)).complete()
    again = Run.begin(config(tmp_path, run_name="mine", epochs=1)).complete()
    assert timeless(first) == timeless(again)
    with pytest.raises(ValueError, match="run_name: mine.json records a run with other parameters"):
        Run.begin(config(tmp_path, run_name="mine", epochs=2))
    assert timeless(read_record(tmp_path / "mine.json")) == timeless(first)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ValueError, match="device: got 'cuda', but torch finds no GPU"):
        Run.begin(config(tmp_path, device="cuda"))


def test_mnist_without_a_folder_is_refused(tmp_path):
    run = Run.begin(config(tmp_path, data="mnist", canvas=32))
    with pytest.raises(ValueError, match="root: got '', expected the folder"):
        run.load()


def test_the_number_of_images_must_be_there(tmp_path):
    run = Run.begin(config(tmp_path, train_samples=5000))
    with pytest.raises(ValueError, match="5000.*1442"):
        run.load()


def test_the_record_holds_what_was_run(tmp_path):
    run = begun(tmp_path)
    run.train()
    run.evaluate()
    record = run.finish()
    assert record == read_record(tmp_path / f"{record.name}.json")
    assert record.cost["parameters"] == sum(p.numel() for p in run.model.parameters())
    assert record.model["dim"] == 8 and record.data["train"].samples == 80 and record.data["test"].samples == 40
    assert [epoch.number for epoch in record.curve] == [1, 2, 3, 4]
    assert str(tmp_path) not in (tmp_path / f"{record.name}.json").read_text()
    assert record.seconds["total"] >= record.seconds["train"] > 0 and record.peak_memory["process"] > 10**7


def test_the_steps_need_a_model(tmp_path):
    with pytest.raises(RuntimeError, match="build"):
        Run.begin(config(tmp_path)).evaluate()


def test_an_image_set_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        numbered(3).name = "other"


def test_tests_on_a_smaller_canvas_are_those_of_a_network_that_was_built_for_it(tmp_path):
    rotary = {"mixer": "rotary", "outcomes": True}  # no parameter belongs to an offset
    wide, small = (config(tmp_path, **rotary, canvas=side) for side in (32, 16))
    model = images.build(wide, {})
    same = images.build(small, {})
    same.load_state_dict(model.state_dict())
    test = digits("test").first(40)
    found = images.measure(config(tmp_path, **rotary, canvas=32, test_canvas=16), model, test)
    assert found == images.measure(small, same, test) != images.measure(wide, model, test)


def test_a_record_says_where_the_images_lay_on_the_canvas_of_the_test(tmp_path):
    run = begun(tmp_path, canvas=32, test_canvas=16, epochs=1, outcomes=True)
    run.train()
    run.evaluate()
    record = run.finish()
    corner, right = outcomes_by_place(record, "dynamic")
    assert int(corner.max()) == 16 - 8 and len(right) == 40
    assert record.evaluations["dynamic"].correct == int(right.sum())
    del record.parameters["test_canvas"]  # as in records of before
    assert int(outcomes_by_place(record, "dynamic")[0].max()) == 32 - 8


def test_a_run_that_chooses_a_rate_never_reads_the_test_images(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(images, "load_split", lambda config, split: asked.append(split) or digits(split))
    sets = images.load_sets(config(tmp_path, held_out=100, train_samples=0, test_samples=40))
    whole = digits("train")
    assert asked == ["train"]
    assert torch.equal(sets["train"].images, whole.images[:-100])
    assert torch.equal(sets["test"].images, whole.images[-100:][:40])
    assert (sets["test"].split, len(sets["test"])) == ("held-out", 40)
    with pytest.raises(ValueError, match=r"held_out: got 2000, expected 1 to 1441: digits has 1442 images"):
        images.load_sets(config(tmp_path, held_out=2000))
