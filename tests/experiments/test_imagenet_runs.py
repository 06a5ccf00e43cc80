"""Runs on a folder of JPEG files in ImageNet's layout: killed in an epoch, divided between processes, judged."""

import os
import signal

import pytest
import torch
from sklearn.metrics import top_k_accuracy_score
from translution_runs import ImageClassificationConfig, Run, build_model
from translution_runs.checkpoint import Keeper, finished
from translution_runs.data.generated import picture
from translution_runs.evaluation import evaluate, unpack
from translution_runs.images import load_split, work
from translution_runs.pictures import PICTURES

from tests.experiments.forge import TINY, wait_until

CLASSES = ("n01", "n02", "n03", "n04", "n05", "n06", "n07")
FOLDERS = {"train": "train", "validation": "val"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Three training pictures of each class and two to validate on."""
    top = tmp_path_factory.mktemp("data") / "imagenet"
    for split, each in (("train", 3), ("validation", 2)):
        for k, name in enumerate(CLASSES):
            (top / FOLDERS[split] / name).mkdir(parents=True)
            for number in range(each):
                path = top / FOLDERS[split] / name / f"{name}_{number}.JPEG"
                path.write_bytes(picture(split, each * k + number))
    return top.parent


@pytest.fixture(scope="module")
def parameters(root):
    """21 pictures in five steps of five, the last with one: a process and a part of it have none."""
    return dict(data="imagenet", data_root=str(root), data_classes=len(CLASSES), digit_size=16, augment="resized-crop",
                train_placement="static", test_placements="static,static top-5", outcomes=True, epochs=2, batch_size=5,
                train_samples=0, test_samples=0, mixer_options="{}", threads=1)


@pytest.fixture
def config(parameters, tmp_path):
    return ImageClassificationConfig.of({**TINY, **parameters, "results_dir": str(tmp_path)})


def trained(forge, parameters, folder, **changes):
    """The last checkpoint's state of a run that ends by itself."""
    own = {**parameters, **changes, "results_dir": str(folder)}
    assert set(forge.run("train", config=own)) == {0}, forge.log.read_text()[-3000:]
    checked = ImageClassificationConfig.of({**TINY, **own})
    step, state = Keeper(folder / "tiny.checkpoints", checked.fingerprint()).load()
    assert step == checked.epochs * 5
    return state


@pytest.fixture(scope="module")
def whole(forge, parameters, tmp_path_factory):
    return trained(forge, parameters, tmp_path_factory.mktemp("whole"))


def curve(state):
    return torch.tensor([[epoch["loss"], epoch["accuracy"]] for epoch in state["progress"]["epochs"]])


def test_a_run_that_is_killed_in_an_epoch_ends_in_the_same_weights(forge, parameters, whole, tmp_path):
    killed = {**parameters, "checkpoint_steps": 1, "results_dir": str(tmp_path), "workers": 1}
    with forge.begun("train", config=killed) as (pids, ended):
        wait_until(lambda: max(finished(tmp_path / "tiny.checkpoints"), default=0) >= 2)
        os.kill(pids[0], signal.SIGKILL)
        assert ended() == [-signal.SIGKILL]
    assert 2 <= finished(tmp_path / "tiny.checkpoints")[-1] < 10
    again = trained(forge, parameters, tmp_path)
    assert again["progress"]["resumed"] == 1 and torch.equal(curve(again), curve(whole))
    torch.testing.assert_close(again["model"], whole["model"], rtol=0, atol=0)


def test_two_processes_with_a_worker_each_take_the_same_steps(forge, parameters, whole, tmp_path):
    two = trained(forge, parameters, tmp_path, processes=2, accumulate=2, workers=1)
    torch.testing.assert_close(two["model"], whole["model"], rtol=1e-5, atol=1e-6)  # float32, other orders of sums
    torch.testing.assert_close(curve(two), curve(whole), rtol=1e-5, atol=1e-6)


def test_a_run_reads_its_folder_and_records_both_accuracies(config):
    record = Run.begin(config).complete()
    assert {split: (found.name, found.samples) for split, found in record.data.items()} == {
        "train": ("imagenet", 21), "test": ("imagenet", 14)}
    one, five = record.evaluations["static"], record.evaluations["static top-5"]
    assert one.n == five.n == 14 and one.correct <= five.correct and one.loss == five.loss
    right, among = (unpack(found.outcomes, found.n) for found in (one, five))
    assert (among | ~right).all() and among.sum() == five.correct
    assert "data_root" not in record.parameters


def test_top_5_is_scikit_learns(config):
    torch.manual_seed(0)
    model, images = build_model(config), load_split(config, "test")
    with torch.no_grad():
        logits = model(images.pixels(torch.arange(14)))
    found = evaluate(config, model, images)
    for name, k in (("static", 1), ("static top-5", 5)):
        expected = top_k_accuracy_score(images.labels, logits.double(), k=k, labels=range(7))
        assert found[name].accuracy == pytest.approx(expected)
    assert list(found) == ["static", "static top-5"] and 0 < found["static top-5"].accuracy < 1


def test_work_counts_imagenets_pictures():
    common = dict(data="imagenet", canvas=224, patch_size=56, test_placements="static,static top-5", epochs=2)
    assert PICTURES == {"train": 1_281_167, "test": 50_000}
    assert work(ImageClassificationConfig.of(common)) == pytest.approx(2 * 1_281_167 + 50_000 / 3)
