"""The exact operators: each by its definition, the equation literally, and in a fast form that is equal to it."""

from translution_lib.functional.attention import masked_softmax, self_attention, self_attention_definition
from translution_lib.functional.convolution import convolution, convolution_definition, relation_kernel, taps
from translution_lib.functional.lor import lor_translution, lor_translution_definition
from translution_lib.functional.shifts import moved_tokens, shift_error, shifted
from translution_lib.functional.translution import (
    gather_weight,
    scores_definition,
    translution,
    translution_definition,
    translution_scores,
    translution_values,
    values_definition,
)

__all__ = [
    "convolution", "convolution_definition", "gather_weight", "lor_translution", "lor_translution_definition",
    "masked_softmax", "moved_tokens", "relation_kernel", "scores_definition", "self_attention",
    "self_attention_definition", "shift_error", "shifted", "taps",
    "translution", "translution_definition", "translution_scores", "translution_values", "values_definition",
]
