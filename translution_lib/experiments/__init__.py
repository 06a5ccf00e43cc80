"""Experiments: a checked configuration, a training that can be killed and resumed, and a record of what came out."""

from typing import TYPE_CHECKING, Any

from translution_lib.experiments.configuration import Configuration
from translution_lib.experiments.image_classification import ARCHITECTURES, ImageClassificationConfig, build_model
from translution_lib.experiments.intervals import wilson_interval
from translution_lib.experiments.language_modelling import LanguageModellingConfig
from translution_lib.experiments.reading import read_records
from translution_lib.experiments.records import (
    SCHEMA_VERSION,
    Epoch,
    Evaluation,
    Record,
    TextEvaluation,
    read_record,
)
from translution_lib.experiments.shifts import shift_curve
from translution_lib.experiments.tables import COLUMNS, Table, table

if TYPE_CHECKING:
    from translution_lib.experiments.run import Run

__all__ = ["ARCHITECTURES", "COLUMNS", "Configuration", "Epoch", "Evaluation", "ImageClassificationConfig",
           "LanguageModellingConfig", "Record", "Run", "SCHEMA_VERSION", "Table", "TextEvaluation", "build_model",
           "read_record", "read_records", "shift_curve", "table", "wilson_interval"]


def __getattr__(name: str) -> Any:
    """`Run`, with what trains: seconds of import that who only reads records does not wait for."""
    if name == "Run":
        from translution_lib.experiments.run import Run

        return Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
