"""Test text in windows of each length: perplexity with its uncertainty, bits a character, and what cannot be read.

The perplexity is exp(L) with L the mean loss of a token in nats. Successive blocks of text are taken as independent, so
that the spread of their mean losses gives the standard error of L and an interval by Student's law; the interval of the
perplexity is the exponential of its ends. Source: chapter "Language models".
"""

from math import exp, log
from typing import Any

import torch
from jaxtyping import Bool, Float64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from translution_lib.models import GPT
from translution_runs.data.tokens import TokenSet
from translution_runs.intervals import mean_interval
from translution_runs.language_modelling import LanguageModellingConfig
from translution_runs.lengths import Bounded, how, lengthened
from translution_runs.precision import forward
from translution_runs.records import TextEvaluation
from translution_runs.sampling import generate
from translution_runs.seeds import generator
from translution_runs.texts import block_of, judged, tokeniser

CONFIDENCE = 0.95
QUARTERS = 4


def measure(config: LanguageModellingConfig, model: GPT, tokens: TokenSet) -> dict[str, Any]:
    """What a record says of the test text: a `TextEvaluation` for each length, or why there is none, and a sample."""
    model.eval()
    ratio = characters_per_token(config, tokens)
    texts, cannot = {}, {}
    for name, (length, rule) in config.lengths.items():
        try:
            texts[name] = evaluate_length(config, model, tokens, length, rule, ratio)
        except Bounded as refused:
            cannot[name] = str(refused)
    return {"texts": texts, "cannot": cannot, "sample": sample(config, model, tokens) if config.sample else ""}


def evaluate_length(
    config: LanguageModellingConfig, model: GPT, tokens: TokenSet, length: int, rule: str = "", ratio: float = 1.0
) -> TextEvaluation:
    """One length by one rule; `ratio` is the number of characters that a token stands for.

    Raises:
        Bounded: the model cannot read such a length so.
    """
    way = how(model, length, rule)
    longer = lengthened(model, length, rule)
    losses, right = token_losses(config, longer, tokens.first(judged(config, tokens) + 1), length)
    quarters = QUARTERS * max(1, length // config.context)
    return summarise(losses, right, block_of(config), ratio, quarters, way)


@torch.no_grad()
def token_losses(
    config: LanguageModellingConfig, model: nn.Module, tokens: TokenSet, length: int
) -> tuple[Float64[Tensor, "w n"], Bool[Tensor, "w n"]]:
    """The loss in nats of every token of successive windows, and whether the most probable token was the right one.

    Nothing of one window is seen in the next. Tokens after the last whole window are left out.
    """
    tokens, losses, right = tokens.on(config.device), [], []
    starts = torch.arange(0, len(tokens) - length, length, device=tokens.device)
    for some in starts.split(max(1, config.batch_size * config.context // length)):
        inputs, targets = (part.to(config.device) for part in tokens.windows(some, length))
        logits = forward(config, model, inputs)
        losses.append(cross_entropy(logits.mT, targets, reduction="none").double())
        right.append(logits.argmax(-1) == targets)
    return torch.cat(losses).cpu(), torch.cat(right).cpu()


def summarise(
    losses: Float64[Tensor, "w n"], right: Bool[Tensor, "w n"], block: int, ratio: float = 1.0,
    quarters: int = QUARTERS, way: str = "within",
) -> TextEvaluation:
    """What a record says of the losses of successive windows.

    Args:
        losses: of each token, in nats.
        right: whether it was the most probable one.
        block: tokens of a block; whole windows, and the windows are whole blocks.
        ratio: characters that a token stands for.
        quarters: parts of a window whose mean loss is told apart.
        way: as `lengths.how` says.

    Label: eq-language-perplexity, eq-language-bits, thm-language-blocks.
    """
    means = losses.reshape(-1, block).mean(1).tolist()
    loss, error, (low, high) = mean_interval(means, CONFIDENCE)
    places = tuple(float(part.mean()) for part in losses.mean(0).tensor_split(quarters))
    return TextEvaluation(
        length=losses.shape[1], tokens=losses.numel(), blocks=len(means), block=block, loss=loss, error=error,
        perplexity=exp(loss), perplexity_error=exp(loss) * error, interval=(exp(low), exp(high)),
        confidence=CONFIDENCE, bits_per_character=loss / log(2) / ratio, accuracy=float(right.double().mean()),
        places=places, how=way, losses=tuple(means),
    )


def characters_per_token(config: LanguageModellingConfig, tokens: TokenSet) -> float:
    """How many characters of the text a predicted token stands for."""
    if config.tokens == "characters":
        return 1.0
    count = judged(config, tokens)
    return len(tokeniser(config).decode(tokens.tokens[1:count + 1])) / count


def sample(config: LanguageModellingConfig, model: GPT, tokens: TokenSet) -> str:
    """A text by the model, which begins where the test text does: after its first token."""
    start = torch.from_numpy(tokens.tokens[:1].astype("int64")).to(config.device)
    written = generate(model, start, config.sample, generator=generator(config.seed, "sample"))
    return tokeniser(config).decode(written.cpu().numpy())
