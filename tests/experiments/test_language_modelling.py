"""Language modelling: losses and perplexities by hand, resumption bit for bit, what is refused, the notebook."""

import math
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from translution_runs import LanguageModellingConfig, Run, processes, read_record, read_records, texts
from translution_runs.data.tokens import TokenSet
from translution_runs.grids import execute, report
from translution_runs.kinds import kind_named, kind_of
from translution_runs.language_modelling import build_model
from translution_runs.records import TextEvaluation
from translution_runs.sampling import generate
from translution_runs.tables import perplexity, table
from translution_runs.text_evaluation import summarise, token_losses
from translution_runs.texts import BLOCK, EpochWindows, judged, sums
from translution_runs.training import train

import translution_lib

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "language_modelling.ipynb"
Config = LanguageModellingConfig
TINY = {"context": 8, "depth": 1, "dim": 8, "heads": 2, "ff": 8, "epochs": 3, "steps": 3, "batch_size": 12,
        "test_tokens": 2 * BLOCK + 1}


def config(folder=".", **changes) -> Config:
    return Config.of({**TINY, "results_dir": str(folder), **changes})


def begun(folder, **changes) -> Run:
    run = Run.begin(config(folder, **changes))
    run.load()
    run.build()
    return run


def text(numbers, vocabulary=5) -> TokenSet:
    return TokenSet(np.array(numbers, np.uint16), vocabulary, "numbers", "test", {})


class Killed(Exception):
    pass


@pytest.mark.parametrize(("parameters", "expected"), [
    ({"epoch": 3}, "epoch: no such parameter"),
    ({"canvas": 28}, "canvas: no such parameter"),
    ({"steps": 0}, "steps: got 0 (int); input should be greater than or equal to 1"),
    ({"context": 3}, "context: got 3"),
    ({"data": "mnist"}, "data: got 'mnist'"),
    ({"data": "openwebtext"}, "tokens: got 'characters' for openwebtext, expected 'gpt2'"),
    ({"tokens": "gpt2"}, "tokens: got 'gpt2' for grammar, expected 'characters'"),
    ({"data": "shakespeare", "train_split": "validation"}, "train_split: got 'validation' for shakespeare, whose test"),
    ({"data_source": "huggingface"}, "data_source: got 'huggingface' for grammar, expected 'folder'"),
    ({"test_contexts": "1,x"}, "test_contexts: got '1,x', expected different whole numbers from 1"),
    ({"test_contexts": "0"}, "test_contexts: got '0'"),
    ({"test_contexts": "2,2"}, "test_contexts: got '2,2'"),
    ({"test_contexts": ""}, "test_contexts: got ''"),
    ({"beyond": "stretch"}, "beyond: got 'stretch', expected nothing, or different names of clip, window"),
    ({"beyond": "clip,clip"}, "beyond: got 'clip,clip'"),
    ({"beyond": "clip"}, "beyond: got 'clip' with test_contexts '1', expected nothing, or a longer test"),
    ({"mixer": "attention"}, "mixer: got 'attention', expected one of absolute"),
    ({"mixer": "rotary,rotary,rotary"}, "mixer: got 3 names, expected 1 or one for each of 2 layers"),
    ({"mixer_options": "["}, "mixer_options: got '[', expected a JSON object"),
    ({"mixer_options": '{"canvas": 1}'}, "the model cannot be built"),
    ({"batch_size": 1, "accumulate": 2}, "batch_size: got 1, expected at least 2"),
    ({"strategy": "fsdp"}, "strategy: got 'fsdp' for one process"),
    ({"device": "cuda:1", "processes": 2}, "device: got 'cuda:1' for 2 processes"),
])
def test_a_wrong_parameter_is_named_with_what_came_and_what_was_expected(parameters, expected):
    with pytest.raises(ValueError) as caught:
        Config.of(parameters)
    assert expected in str(caught.value)


def test_the_loss_is_that_of_a_text_predicted_token_by_token():
    """Every prediction made alone, from what stands before it in its window, and scored by torch."""
    run, numbers = config(), torch.randint(5, (49,), generator=torch.Generator().manual_seed(0)).tolist()
    torch.manual_seed(0)
    model = build_model(run, vocabulary=5).eval()
    losses, right = token_losses(run, model, text(numbers), 8)
    assert losses.shape == (6, 8)
    with torch.no_grad():
        for window in range(6):
            for place in range(8):
                seen = numbers[8 * window:8 * window + place + 1]
                logits, target = model(torch.tensor([seen]))[0, -1], numbers[8 * window + place + 1]
                alone = torch.nn.functional.cross_entropy(logits[None], torch.tensor([target]))
                assert losses[window, place] == pytest.approx(float(alone), abs=1e-5)
                assert bool(right[window, place]) == (int(logits.argmax()) == target)


def test_the_training_loss_is_torchs_mean_over_tokens_summed_over_windows():
    logits, targets = torch.randn(4, 8, 5, dtype=torch.float64), torch.randint(5, (4, 8))
    loss, right = sums(logits, targets)
    each = [torch.nn.functional.cross_entropy(one, target) for one, target in zip(logits, targets, strict=True)]
    torch.testing.assert_close(loss, torch.stack(each).sum())
    torch.testing.assert_close(float(right), float((logits.argmax(-1) == targets).double().mean(1).sum()))


def test_a_run_that_chooses_a_rate_never_reads_the_test_text(monkeypatch):
    asked = []
    monkeypatch.setattr(texts, "load_split", lambda config, split: asked.append(split) or text(range(9_000)))
    sets = texts.load_sets(config(held_out=4_000, train_tokens=50, test_tokens=2_049))
    assert asked == ["train"]
    assert sets["train"].tokens.tolist() == list(range(50))
    assert sets["test"].tokens.tolist() == list(range(5_000, 7_049))
    assert (sets["test"].split, texts.describe(sets["test"]).samples) == ("held-out", 2_049)
    with pytest.raises(ValueError, match="held_out: got 9000, expected 1 to 8999: numbers has 9000 tokens"):
        texts.load_sets(config(held_out=9_000))


def test_a_record_keeps_the_losses_of_its_blocks_and_refuses_others():
    losses = torch.rand(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = summarise(losses, losses < 0.5, block=16)
    torch.testing.assert_close(torch.tensor(found.losses, dtype=torch.float64), losses.reshape(3, 16).mean(1))
    with pytest.raises(ValueError, match="losses: 2 with the mean"):
        TextEvaluation(**{**found.model_dump(), "losses": found.losses[:2]})


@given(st.integers(2, 6), st.sampled_from([1, 2, 4]), st.integers(0, 999))
@settings(max_examples=20)
def test_the_perplexity_and_its_interval_are_those_of_scipy(blocks, windows, seed):
    losses = torch.rand(blocks * windows, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = summarise(losses, losses < 0.5, block=8 * windows, ratio=2.0)
    means = losses.reshape(blocks, -1).mean(1).numpy()
    low, high = stats.t.interval(0.95, blocks - 1, loc=means.mean(), scale=stats.sem(means))
    assert found.loss == pytest.approx(float(losses.mean())) and found.perplexity == pytest.approx(math.exp(found.loss))
    assert found.error == pytest.approx(stats.sem(means))
    assert found.perplexity_error == pytest.approx(found.perplexity * stats.sem(means))
    assert found.interval == pytest.approx((math.exp(low), math.exp(high)))
    assert found.bits_per_character == pytest.approx(math.log2(found.perplexity) / 2)
    assert np.mean(found.places) == pytest.approx(found.loss) and len(found.places) == 4
    assert (found.tokens, found.blocks, found.length) == (losses.numel(), blocks, 8)


def test_a_model_that_knows_nothing_has_the_vocabulary_as_perplexity(tmp_path):
    run = begun(tmp_path)
    torch.nn.init.zeros_(run.model.head.weight)
    found = run.evaluate()["1x"]
    assert found.perplexity == pytest.approx(24, abs=1e-4) and found.error == pytest.approx(0, abs=1e-6)
    assert found.bits_per_character == pytest.approx(math.log2(24), abs=1e-5)


def test_a_table_of_pairs_has_the_perplexity_of_its_counts():
    """A model that looks at the last token alone, against counting pairs by hand."""

    class Pairs(torch.nn.Module):
        def __init__(self, probability):
            super().__init__()
            self.logits = torch.nn.Parameter(probability.log())

        def forward(self, tokens):
            return self.logits[tokens]

    numbers = torch.randint(5, (65,), generator=torch.Generator().manual_seed(1))
    probability = torch.rand(5, 5, dtype=torch.float64) + 0.1
    probability /= probability.sum(1, keepdim=True)
    losses, _ = token_losses(config(), Pairs(probability).double(), text(numbers.tolist()), 8)
    counts = torch.zeros(5, 5, dtype=torch.float64)
    for one, other in zip(numbers[:-1], numbers[1:], strict=True):
        counts[one, other] += 1
    by_hand = math.exp(-float((counts * probability.log()).sum()) / 64)
    assert summarise(losses, losses < 0, block=8).perplexity == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize(("mixer", "options", "every"), [
    ("translution", '{"dropout": 0.2}', 1), ("performer", '{"redraw_interval": 2}', 2)])
def test_a_killed_and_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, mixer, options, every):
    given_ = {"mixer": mixer, "mixer_options": options, "checkpoint_steps": every, "sample": 12}

    def kill(epoch):
        if epoch.number == 2:
            raise Killed

    whole = begun(tmp_path / "whole", **given_)
    whole.train()
    with pytest.raises(Killed):
        begun(tmp_path / "killed", **given_).train(kill)
    torch.manual_seed(99)
    resumed = begun(tmp_path / "killed", **given_)
    resumed.train()
    records = []
    for run in (whole, resumed):
        run.evaluate()
        records.append(run.finish())
    for (name, ours), theirs in zip(whole.model.state_dict().items(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    assert records[0].texts == records[1].texts and records[0].sample == records[1].sample
    assert [e.loss for e in records[0].curve] == [e.loss for e in records[1].curve]
    assert [record.resumed for record in records] == [0, 1 if every else 0]


def test_a_step_in_parts_is_the_whole_step(tmp_path):
    finals = []
    for accumulate in (1, 4):
        run = begun(tmp_path / str(accumulate), accumulate=accumulate, mixer="rotary")
        run.model.double()
        train(run.config, run.model, run.sets["train"])
        finals.append(run.model.state_dict())
    for name, one in finals[0].items():
        torch.testing.assert_close(finals[1][name], one, rtol=1e-8, atol=1e-9, msg=name)


@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=20)
def test_processes_and_parts_share_out_every_step(size, world, accumulate):
    assume(world * accumulate <= size)
    numbers = text(range(40), 40)
    whole = EpochWindows(config(batch_size=size), numbers, epoch=2)
    shared = EpochWindows(config(batch_size=size, accumulate=accumulate), numbers, epoch=2)
    assert len(whole) == len(shared) == 3
    for step in range(3):
        ((inputs, targets),) = whole.parts(step)
        parts = [part for rank in range(world) for part in shared.parts(step, rank, world)]
        assert len(parts) == world * accumulate and torch.equal(torch.cat([x for x, _ in parts]), inputs)
        assert torch.equal(torch.cat([y for _, y in parts]), targets) and torch.equal(targets, inputs + 1)


def test_the_seed_and_the_epoch_decide_the_windows():
    numbers = text(range(500), 500)
    drawn = [EpochWindows(config(seed=seed), numbers, epoch).steps[0]
             for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[3])


def test_all_lengths_are_judged_on_the_same_tokens_in_whole_blocks(tmp_path):
    more = {"test_contexts": "1,2,3", "mixer": "rotary", "beyond": "clip,window", "test_tokens": 3_000}
    record = Run.begin(config(tmp_path, **more, epochs=1)).complete()
    block = 1_056  # 22 · 48, the least multiple of 8, 16 and 24 from 1,024 on
    assert {(one.tokens, one.block, one.blocks) for one in record.texts.values()} == {(2 * block, block, 2)}
    assert [len(one.places) for one in record.texts.values()] == [4, 8, 12, 8, 12]
    assert {name: one.how for name, one in record.texts.items()} == {
        "1x": "within", "2x": "native", "3x": "native", "2x window": "window", "3x window": "window"}
    assert set(record.cannot) == {"2x clip", "3x clip"}


def test_a_text_that_is_too_short_is_refused_before_training(tmp_path):
    run = Run.begin(config(tmp_path, test_tokens=2 * BLOCK))
    with pytest.raises(ValueError, match="test_contexts: got '1' contexts of 8 tokens, expected a test text of 2,049"):
        run.load()
    with pytest.raises(ValueError, match="context: got 8, expected less than 5"):
        Run.begin(config(tmp_path, train_tokens=5)).load()
    assert judged(config(), text([0] * (3 * BLOCK))) == 2 * BLOCK


def test_a_record_says_what_was_read_and_what_cannot_be(tmp_path):
    record = Run.begin(config(tmp_path, mixer="scalar-bias", test_contexts="1,2", beyond="clip", sample=30)).complete()
    assert record == read_record(tmp_path / f"{record.name}.json") and record.experiment == "language-modelling"
    assert [found.name for found in read_records(tmp_path)] == [record.name]
    assert set(record.texts) == {"1x", "2x clip"} and record.texts["2x clip"].how == "clip"
    assert record.cannot == {"2x": "there are parameters for 8 offsets, and none for the others"}
    assert record.parameters == record.parameters | {"mixer": "scalar-bias", "context": 8}
    assert len(record.sample) == 31 and record.model["vocabulary"] == 24 and not record.evaluations
    assert record.cost["parameters"] == sum(p.numel() for p in build_model(config(mixer="scalar-bias")).parameters())
    shown = report.record(record)
    assert "cannot" in shown and "bits/character" in shown and record.sample in shown and "tokens of grammar" in shown
    assert "2x cannot" in report.outcome(record)
    line, = table([record], {name: perplexity(name) for name in ("1x", "2x")}).rows
    assert line[0].startswith(f"{record.texts['1x'].perplexity:.3f} [") and line[1] == "cannot"


def test_bfloat16_runs_and_is_recorded(tmp_path):
    record = Run.begin(config(tmp_path, precision="bfloat16", mixer="rotary", epochs=1)).complete()
    assert record.curve[0].loss < 4 and record.parameters["precision"] == "bfloat16"


def test_a_run_is_handed_on_with_its_kind(tmp_path):
    """To processes that train together, to a worker of a cluster, and to its notebook."""
    scheduler = pytest.importorskip("translution_runs.scheduler")
    run = config(tmp_path, mixer="rotary", epochs=1)
    assert processes.command(run, tmp_path / "config.json")[-2:] == [f"{tmp_path}/config.json", "language-modelling"]
    answer = scheduler.perform(run.model_dump(), translution_lib.__version__, False, experiment="language-modelling")
    assert answer[:2] == ("done", "") and read_records(tmp_path)[0].name == run.name
    assert scheduler.perform(run.model_dump(), translution_lib.__version__)[0] == "failed"  # no parameters of images
    assert execute.notebook_path(None, kind_of(run)) == NOTEBOOK
    with pytest.raises(ValueError, match="experiment: got 'speech', expected one of image-classification, language-mo"):
        kind_named("speech")


def test_images_have_no_tokeniser(tmp_path):
    from translution_runs import ImageClassificationConfig

    with pytest.raises(ValueError, match="tokeniser: a run of image-classification has none"):
        _ = Run.begin(ImageClassificationConfig.of({"results_dir": str(tmp_path)})).tokeniser


def test_the_most_probable_text_is_the_one_found_by_hand():
    torch.manual_seed(0)
    model, start = build_model(config(), vocabulary=5).eval(), torch.tensor([1, 2])
    written = start.tolist()
    with torch.no_grad():
        for _ in range(12):
            written.append(int(model(torch.tensor([written[-8:]]))[0, -1].argmax()))
    assert generate(model, start, 12, temperature=1e-4).tolist() == written
    assert generate(model, start, 12, temperature=0).tolist() == written == generate(
        model, torch.tensor(written[:11]), 3, temperature=0).tolist()
    drawn = [generate(model, start, 12, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize(("wrong", "word"), [({"start": torch.tensor([], dtype=torch.int64)}, "ids"),
                                             ({"count": -1}, "new_tokens"), ({"temperature": -1.0}, "temperature")])
def test_a_sample_without_a_start_or_a_temperature_is_refused(wrong, word):
    with pytest.raises(ValueError, match=word):
        generate(build_model(config(), 5), **{"start": torch.tensor([1]), "count": 2, **wrong})


def test_the_notebook_has_the_configurations_parameters_and_defaults():
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    namespace: dict = {}
    exec(parameters.source, namespace)
    assert Config.from_namespace(namespace) == Config.of({})
    assert list(namespace["__annotations__"]) == list(Config.model_fields)
    assert all("  # " in line for line in parameters.source.splitlines())
    assert [cell.id for cell in notebook.cells] == [f"cell-{k:02d}" for k in range(len(notebook.cells))]
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if cell.cell_type == "code")


def test_the_notebooks_cells_make_one_record(tmp_path, capsys):
    code = [cell.source for cell in nbformat.read(NOTEBOOK, 4).cells if cell.cell_type == "code"]
    namespace: dict = {}
    for number, source in enumerate(code):
        exec(source, namespace)
        namespace.update({**TINY, "test_contexts": "1,2", "sample": 20, "results_dir": str(tmp_path)}
                         if number == 0 else {})
    (record,) = read_records(tmp_path)
    assert record.cannot and record.sample in capsys.readouterr().out
