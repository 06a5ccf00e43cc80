"""Networks that the papers compare with: convolutional ones, Linformer and the Routing Transformer."""

from translution_runs.baselines.baseline import BASELINES, Baseline, BaselineConfig

__all__ = ["BASELINES", "Baseline", "BaselineConfig"]
