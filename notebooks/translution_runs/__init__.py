"""Experiments: a checked configuration, a training that can be killed and resumed, and a record of what came out.

What is named here is imported when it is first used: who reads records does not wait for what trains.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from translution_runs.configuration import Configuration
    from translution_runs.image_classification import ARCHITECTURES, ImageClassificationConfig, build_model
    from translution_runs.intervals import wilson_interval
    from translution_runs.language_modelling import LanguageModellingConfig
    from translution_runs.reading import read_records
    from translution_runs.records import SCHEMA_VERSION, Epoch, Evaluation, Record, TextEvaluation, read_record
    from translution_runs.run import Run
    from translution_runs.shifts import shift_curve
    from translution_runs.tables import COLUMNS, Table, table

_MODULES = {
    "configuration": ("Configuration",),
    "image_classification": ("ARCHITECTURES", "ImageClassificationConfig", "build_model"),
    "intervals": ("wilson_interval",),
    "language_modelling": ("LanguageModellingConfig",),
    "reading": ("read_records",),
    "records": ("SCHEMA_VERSION", "Epoch", "Evaluation", "Record", "TextEvaluation", "read_record"),
    "run": ("Run",),
    "shifts": ("shift_curve",),
    "tables": ("COLUMNS", "Table", "table"),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["ARCHITECTURES", "COLUMNS", "Configuration", "Epoch", "Evaluation", "ImageClassificationConfig",
           "LanguageModellingConfig", "Record", "Run", "SCHEMA_VERSION", "Table", "TextEvaluation", "build_model",
           "read_record", "read_records", "shift_curve", "table", "wilson_interval"]


def __getattr__(name: str) -> Any:
    """A name of `__all__`, from its module."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
