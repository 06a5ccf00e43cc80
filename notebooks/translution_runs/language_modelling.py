"""Parameters of the language modelling experiment, and the model they describe.

Chapter "Language models".
"""

from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field, model_validator

from translution_lib.models import GPT
from translution_lib.models.blocks import without_numbers
from translution_lib.models.gpt import BEYOND
from translution_runs.trained import Count, Layers, Positive, TrainedConfig, Width

VOCABULARIES = {"grammar": 24, "shakespeare": 65, "wikitext-2": 137, "openwebtext": 0}
"""Number of characters of a text. WikiText-2's is that of its validation and test files; a run counts what it reads."""
BYTE_PAIRS = 50_257
SPLITS = {"grammar": ("train", "validation"), "shakespeare": ("train", "validation"),
          "wikitext-2": ("train", "test"), "openwebtext": ("train", "validation")}
"""What a model is trained on, and what it is tested on."""


class LanguageModellingConfig(TrainedConfig):
    """A causal language model with any mixer, trained on windows of a text and tested on windows of several lengths.

    Attributes:
        run_name: file name of the record; empty derives one from the parameters.
        mixer: a name in `MIXERS`, or one for each layer, separated by commas.
        mixer_options: further options of the mixer as a JSON object, such as `{"relative_dim": 8}`.
        architecture: "tiny", or "A", "B", "C" of the paper.
        dim: channels of a token; this and the next three replace the architecture's where they are not 0.
        depth: number of layers.
        heads: number of heads.
        ff: hidden channels of the feed-forward part.
        absolute_embedding: a learned embedding of every place is added to the tokens, whatever the mixer.
        data: "grammar" (made here, no file), "shakespeare", "wikitext-2" or "openwebtext".
        tokens: "characters", or "gpt2": its byte pairs, whose two files lie in the folder `gpt2` of `data_root`.
        train_split: "train", or for WikiText-2 also "validation", where its training text is not at hand.
        data_source: "folder" (read from `data_root`) or, for OpenWebText, "huggingface".
        data_root: folder with the files of the text.
        context: tokens of a window in training.
        test_contexts: lengths of the windows in testing, in contexts, separated by commas.
        beyond: rules for offsets longer than any in training that such lengths are also tested with, separated by
            commas: "clip" (they share the parameters of the longest) and "window" (no token reads so far back).
        train_tokens: how many tokens of the training text, from its start; 0 is all.
        test_tokens: how many of the test text; 0 is all.
        held_out: the run is tested on so many tokens from the end of the training text, which it does not train on,
            and never reads the test text: for choosing a learning rate. 0 is none.
        sample: so many tokens are written by the trained model into the record.
        epochs: number of epochs; the learning rate changes between them.
        steps: steps of the optimizer in an epoch.
        batch_size: windows in a step, over all processes, drawn uniformly from the text.
        accumulate: in how many parts a process goes through its share of a step.
        learning_rate: AdamW's at the start; follows a cosine to 0, one step an epoch.
        weight_decay: AdamW's.
        seed: of the initial weights and the windows.
        device: "cpu", "cuda" or "cuda:1" and so on.
        precision: "float32", or "bfloat16" for autocast.
        compile: the model is compiled by torch.compile.
        processes: how many train together, on the CPU or on as many GPUs.
        strategy: "ddp" (each process has the whole model) or "fsdp" (each a part of it).
        threads: torch's threads on the CPU; 0 leaves torch's choice.
        checkpoint_minutes: time between two checkpoints; 0 writes them by steps alone.
        checkpoint_steps: steps between two checkpoints; 0 writes them by time alone.
        results_dir: folder for the record.
    """

    run_name: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$", max_length=120)
    mixer: str = "translution"
    mixer_options: str = "{}"
    architecture: Literal["tiny", "A", "B", "C"] = "tiny"
    dim: Width = 0
    depth: Layers = 0
    heads: Width = 0
    ff: Width = 0
    absolute_embedding: bool = False
    data: Literal["grammar", "shakespeare", "wikitext-2", "openwebtext"] = "grammar"
    tokens: Literal["characters", "gpt2"] = "characters"
    train_split: Literal["train", "validation"] = "train"
    data_source: Literal["folder", "huggingface"] = "folder"
    data_root: str = ""
    context: int = Field(64, ge=4)
    test_contexts: str = "1"
    beyond: str = ""
    train_tokens: Count = 0
    test_tokens: Count = 0
    held_out: Count = 0
    sample: Count = 0
    epochs: Positive = 4
    steps: Positive = 50
    batch_size: Positive = 32
    accumulate: Positive = 1
    learning_rate: float = Field(3e-3, gt=0, le=1)
    weight_decay: float = Field(0.05, ge=0, le=1)
    seed: Count = 0
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    processes: Positive = 1
    strategy: Literal["ddp", "fsdp"] = "ddp"
    threads: Count = 0
    checkpoint_minutes: float = Field(5.0, ge=0)
    checkpoint_steps: Count = 0
    results_dir: str = Field("runs", min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> "LanguageModellingConfig":
        self.check_mixers()
        self._check_text()
        self.check_steps()
        self.check_built(f"mixer {self.mixer!r}", lambda: _arguments(self, self.vocabulary), GPT)
        return self

    def _check_text(self) -> None:
        """What has to fit: text, tokens, splits and lengths."""
        if self.data == "openwebtext" and self.tokens != "gpt2":
            raise ValueError(f"tokens: got {self.tokens!r} for openwebtext, expected 'gpt2'")
        if self.data == "grammar" and self.tokens != "characters":
            raise ValueError(f"tokens: got {self.tokens!r} for grammar, expected 'characters'")
        if self.train_split == "validation" and self.data != "wikitext-2":
            raise ValueError(f"train_split: got 'validation' for {self.data}, whose test text it is; expected 'train'")
        if self.data_source == "huggingface" and self.data != "openwebtext":
            raise ValueError(f"data_source: got 'huggingface' for {self.data}, expected 'folder'")
        named = [one.strip() for one in self.test_contexts.split(",")]
        if not all(one.isdigit() and int(one) > 0 for one in named) or len(set(named)) < len(named):
            raise ValueError(f"test_contexts: got {self.test_contexts!r}, expected different whole numbers from 1, "
                             "separated by commas")
        if [rule for rule in self.rules if rule not in BEYOND] or len(set(self.rules)) < len(self.rules):
            raise ValueError(f"beyond: got {self.beyond!r}, expected nothing, or different names of "
                             f"{', '.join(BEYOND)}, separated by commas")
        if self.rules and named == ["1"]:
            raise ValueError(f"beyond: got {self.beyond!r} with test_contexts '1', expected nothing, or a longer test")

    @property
    def vocabulary(self) -> int:
        """Number of different tokens, as far as it is known before the text is read."""
        return BYTE_PAIRS if self.tokens == "gpt2" else VOCABULARIES[self.data]

    @property
    def splits(self) -> dict[str, str]:
        """The parts of the text for training and for testing."""
        return {"train": self.train_split, "test": SPLITS[self.data][1]}

    @property
    def rules(self) -> list[str]:
        """Those of `beyond`."""
        return [one.strip() for one in self.beyond.split(",")] if self.beyond else []

    @property
    def lengths(self) -> dict[str, tuple[int, str]]:
        """Tokens of a window in testing and the rule for far offsets, by name in the record: "2x", "2x clip"."""
        multiples = [int(one) for one in self.test_contexts.split(",")]
        plain = {f"{one}x": (one * self.context, "") for one in multiples}
        return plain | {f"{one}x {rule}": (one * self.context, rule)
                        for rule in self.rules for one in multiples if one > 1}

    @property
    def tested(self) -> list[str]:
        """The names of `lengths`."""
        return list(self.lengths)

    @property
    def evaluations(self) -> list[str]:
        """All that a record of such a run holds: `tested`."""
        return self.tested

    @property
    def name(self) -> str:
        """`run_name`, or a name made of the parameters."""
        parts = (self.data, str(self.context), self.mixer_part, f"seed{self.seed}", self.fingerprint())
        return self.run_name or "-".join(parts)


def build_model(config: LanguageModellingConfig, vocabulary: int | None = None) -> GPT:
    """The language model of a configuration, with weights from torch's global generator.

    Args:
        config: the run's parameters.
        vocabulary: number of different tokens of the text that was read; by default what is known before.
    """
    return GPT(**_arguments(config, vocabulary or config.vocabulary))


def model_without_numbers(config: LanguageModellingConfig) -> GPT:
    """The same on the device "meta": sizes alone, in no time and no memory."""
    with without_numbers():
        return build_model(config)


def _arguments(config: LanguageModellingConfig, vocabulary: int) -> dict[str, Any]:
    """What the model is built from."""
    return dict(vocabulary=vocabulary, context=config.context, mixer=config.layers,
                absolute=config.absolute_embedding or None, **asdict(config.sizes), **config.options)
