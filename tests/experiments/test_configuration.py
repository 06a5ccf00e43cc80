import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from translution_runs import ARCHITECTURES, ImageClassificationConfig, build_model
from translution_runs.building import model_without_numbers

from translution_lib import MIXERS, models

Config = ImageClassificationConfig


def message(**parameters) -> str:
    with pytest.raises(ValueError) as caught:
        Config.of(parameters)
    return str(caught.value)


@pytest.mark.parametrize(("parameters", "expected"), [
    ({"epoch": 3}, "epoch: no such parameter"),
    ({"epochs": "abc"}, "epochs: got 'abc' (str); input should be a valid integer"),
    ({"epochs": 2.0}, "epochs: got 2.0 (float)"),
    ({"epochs": True}, "epochs: got True (bool)"),
    ({"epochs": 0}, "epochs: got 0 (int); input should be greater than or equal to 1"),
    ({"run_name": 7}, "run_name: got 7 (int); input should be a valid string (papermill: pass a string that looks"),
    ({"run_name": "../other"}, "run_name: got '../other' (str)"),
    ({"learning_rate": 0.0}, "learning_rate: got 0.0 (float); input should be greater than 0"),
    ({"learning_rate": float("nan")}, "learning_rate: got nan (float)"),
    ({"weight_decay": -0.1}, "weight_decay: got -0.1"),
    ({"seed": -1}, "seed: got -1"),
    ({"data": "cifar"}, "data: got 'cifar' (str); input should be 'digits', 'mnist', 'fashion-mnist', 'cifar10', "),
    ({"train_placement": "flying"}, "train_placement: got 'flying'"),
    ({"test_placements": "static,centre"}, "test_placements: got 'static,centre', expected different names of static,"),
    ({"test_placements": "static,static"}, "test_placements: got 'static,static', expected different names"),
    ({"test_placements": ""}, "test_placements: got ''"),
    ({"batch_size": 3, "processes": 2, "accumulate": 2}, "batch_size: got 3, expected at least 4"),
    ({"strategy": "fsdp"}, "strategy: got 'fsdp' for one process"),
    ({"device": "cuda:1", "processes": 2}, "device: got 'cuda:1' for 2 processes"),
    ({"encoding": "absolute"}, "encoding: got 'absolute'"),
    ({"augment": "mixup"}, "augment: got 'mixup'"),
    ({"checkpoint_minutes": -1.0}, "checkpoint_minutes: got -1.0"),
    ({"device": "tpu"}, "device: got 'tpu'"),
    ({"precision": "float16"}, "precision: got 'float16'"),
    ({"architecture": "D"}, "architecture: got 'D'"),
    ({"mixer": "attention"}, f"mixer: got 'attention', expected one of {', '.join(sorted(MIXERS))}"),
    ({"mixer": "translution,self-attention,absolute"}, "mixer: got 3 names, expected 1 or one for each of 2 layers"),
    ({"canvas": 7}, "canvas: got 7, expected at least 8"),
    ({"canvas": 24, "data": "mnist"}, "canvas: got 24, expected at least 28"),
    ({"patch_size": 5}, "patch_size: got 5, expected a divisor of the canvas, 24"),
    ({"test_canvas": 20}, "test_canvas: got 20, expected 0, or a multiple of the patch, 6, of at least 8"),
    ({"test_canvas": 6}, "test_canvas: got 6, expected 0, or a multiple of the patch, 6, of at least 8"),
    ({"test_canvas": 18, "encoding": "pairs"}, "test_canvas: got 18 with model 'vit', encoding 'pairs'"),
    ({"test_canvas": 18, "shift": 2}, "encoding 'relative', data 'digits' and shift 2, expected 0"),
    ({"digit_size": 4}, "digit_size: got 4, expected 0 or at least 8"),
    ({"digit_size": 27, "data": "mnist", "canvas": 84}, "digit_size: got 27, expected 0 or at least 28"),
    ({"shift": 24}, "shift: got 24, expected less than the canvas, 24"),
    ({"shift_class": 10}, "shift_class: got 10, expected 0 to 9"),
    ({"heads": 5}, "heads"),
    ({"mixer_options": "{"}, "mixer_options: got '{', expected a JSON object"),
    ({"mixer_options": "[1]"}, "mixer_options: got '[1]', expected a JSON object"),
    ({"mixer_options": '{"dropout": 0.1, "dropout": 0.2}'}, "object ('dropout' stands there twice)"),
    ({"mixer_options": '{"rank": 2}'}, "the model cannot be built"),
    ({"mixer_options": '{"dim": 2}'}, "the model cannot be built"),
])
def test_a_wrong_parameter_is_named_with_what_came_and_what_was_expected(parameters, expected):
    assert expected in message(**parameters)


def test_every_wrong_parameter_is_reported_at_once():
    text = message(epochs=0, batch_size="x", other=1)
    assert text.startswith("ImageClassificationConfig: 3 wrong parameter(s)")
    assert all(name in text for name in ("epochs", "batch_size", "other"))


@pytest.mark.parametrize("text", ['{"dropout":0.2}', ' { "dropout" : 0.2 }\n', '{"\\u0064ropout": 2e-1}'])
def test_one_spelling_of_the_same_options(text):
    """However the options are written, the run is the same: its name, its fingerprint, its record."""
    plain = Config.of({"mixer_options": '{"dropout": 0.2}'})
    other = Config.of({"mixer_options": text})
    assert other == plain and other.fingerprint() == plain.fingerprint() and other.name == plain.name


def test_a_configuration_does_not_change():
    with pytest.raises(ValueError, match="frozen"):
        Config.of({}).epochs = 3


NAMESPACE = {**Config.of({}).model_dump(), "__name__": "__main__", "_": "old output", "In": ["x"], "Out": {1: 2},
             "json": json, "Config": Config, "print": print}


def test_a_namespace_gives_its_parameters():
    assert Config.from_namespace({**NAMESPACE, "epochs": 3}) == Config.of({"epochs": 3})


@pytest.mark.parametrize("value", [1, 1.5, "x", True, None, [1], {"a": 1}])
def test_a_namespace_with_another_plain_value_is_refused(value):
    with pytest.raises(ValueError, match="epoch: no such parameter"):
        Config.from_namespace({**NAMESPACE, "epoch": value})


def test_a_namespace_that_lacks_a_parameter_is_refused():
    with pytest.raises(ValueError, match="the parameters cell does not set epochs, seed"):
        Config.from_namespace({name: value for name, value in NAMESPACE.items() if name not in ("seed", "epochs")})


def test_the_papers_architectures_are_the_models():
    for name, sizes in models.ARCHITECTURES.items():
        assert Config.of({"architecture": name}).sizes == sizes
    assert set(ARCHITECTURES) == {*models.ARCHITECTURES, "tiny"}


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 9))
def test_own_sizes_replace_the_architectures(depth, heads, head_dim, ff):
    config = Config.of({"depth": depth, "heads": heads, "dim": heads * head_dim, "ff": ff})
    found = build_model(config).config
    assert (found.depth, found.heads, found.dim, found.ff) == (depth, heads, heads * head_dim, ff)
    assert (found.image_size, found.patch_size, found.channels, found.classes) == (24, 6, 1, 10)


def test_a_mixer_for_each_layer_and_options_reach_the_model():
    hybrid = build_model(Config.of({"mixer": "self-attention, translution"}))
    assert hybrid.config.mixer == ("self-attention", "translution")
    low = build_model(Config.of({"mixer": "lor-translution", "mixer_options": '{"relative_dim": 3}'}))
    assert low.config.options == {"relative_dim": 3}


changes = st.sampled_from([{"epochs": 9}, {"seed": 1}, {"mixer": "absolute"}, {"learning_rate": 1e-3},
                           {"train_placement": "dynamic"}, {"precision": "bfloat16"}])


@given(changes)
def test_the_fingerprint_changes_with_what_changes_the_result(change):
    assert Config.of(change).fingerprint() != Config.of({}).fingerprint()
    assert Config.of(change).name != Config.of({}).name


def test_the_fingerprint_and_the_parameters_leave_places_out():
    here, there = Config.of({}), Config.of({"results_dir": "elsewhere", "data_root": "disk", "run_name": "mine"})
    assert here.fingerprint() == there.fingerprint()
    assert not {"results_dir", "data_root"} & set(there.parameters())
    assert there.name == "mine"


@given(changes)
def test_a_configuration_returns_from_json(change):
    config = Config.of(change)
    assert Config.of(json.loads(json.dumps(config.parameters()))) == config


def test_a_check_of_a_configuration_leaves_the_random_numbers_where_they_are():
    """Otherwise what a page prints would depend on how many records it has read before."""
    state = torch.get_rng_state()
    for mixer in ("performer-s1", "translution", "rotary"):
        config = Config.of({"mixer": mixer, "dim": 48, "heads": 3})  # of no other test's sizes
        model_without_numbers(config)
    assert torch.equal(torch.get_rng_state(), state)
