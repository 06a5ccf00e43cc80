"""Models with any mixer: a vision transformer and a causal language model, in the sizes of the paper's Table 1."""

from translution_lib.models.blocks import ARCHITECTURES, Architecture, Block
from translution_lib.models.gpt import GPT, GPTConfig
from translution_lib.models.vit import ViT, ViTConfig

__all__ = ["ARCHITECTURES", "GPT", "Architecture", "Block", "GPTConfig",
           "ViT", "ViTConfig"]
