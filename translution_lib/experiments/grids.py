"""Grids: the runs behind one table, described in a file of ``notebooks/grids``, run one by one, and summed up.

    python -m translution_lib.experiments.grids notebooks/grids/table4-dynamic-mnist.yaml --data-root FOLDER

skips what has a record, resumes what was interrupted, and writes its records to ``results/<name of the grid>``.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from translution_lib.experiments.image_classification import ImageClassificationConfig
from translution_lib.experiments.records import Record, read_record
from translution_lib.experiments.run import Run
from translution_lib.experiments.tables import Table, provenance

MISSING = "not yet measured"
HARDWARE = frozenset({"device", "threads", "precision"})
"""What a run may choose for itself without leaving its grid."""


@dataclass(frozen=True)
class Grid:
    """The runs of a table.

    Attributes:
        name: of the grid, and of the folder of its records.
        rows: by the name of a row, the configurations of its seeds.
    """

    name: str
    rows: Mapping[str, tuple[ImageClassificationConfig, ...]]

    @property
    def runs(self) -> list[ImageClassificationConfig]:
        """All configurations, row by row."""
        return [config for row in self.rows.values() for config in row]

    def records(self, results: str | Path) -> dict[str, list[Record]]:
        """The records that there are, by row.

        Raises:
            ValueError: a record whose parameters are not those of the grid.
        """
        folder = Path(results) / self.name
        return {name: [found for config in row if (found := _record(folder, config))] for name, row in
                self.rows.items()}


def read_grid(path: str | Path, **changes: Any) -> Grid:
    """The grid of a file; ``changes`` replace parameters of every run.

    Raises:
        ValueError: a file without name, rows and seeds, or a parameter that is wrong.
    """
    import yaml

    content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    absent = [key for key in ("name", "rows", "seeds") if not (isinstance(content, dict) and content.get(key))]
    if absent:
        raise ValueError(f"{path}: a grid has a name, rows and seeds; {', '.join(absent)} is missing")
    common = content.get("common", {})
    return Grid(content["name"], {row: tuple(_config({**common, **own, **changes}, seed) for seed in content["seeds"])
                                  for row, own in content["rows"].items()})


def summary(grid: Grid, results: str | Path, placements: Sequence[str] | None = None, caption: str = "") -> Table:
    """A table with one row for each row of the grid: mean accuracy over the seeds, and their standard deviation.

    A row without any record says so; where seeds are missing, the row says how many there are. By default the columns
    are the dynamic and the static placement, or the static one alone where the images fill their canvas.
    """
    found = grid.records(results)
    room = any(config.canvas > config.image_size for config in grid.runs)
    placements = placements or (("dynamic", "static") if room else ("static",))
    rows = tuple((name, *_cells(records, len(grid.rows[name]), placements)) for name, records in found.items())
    header = ("method", "parameters", *(f"{placement}, %" for placement in placements), "seeds")
    return Table(header, rows, caption, tuple(provenance(record) for records in found.values() for record in records))


def _config(parameters: dict[str, Any], seed: int) -> ImageClassificationConfig:
    options = ImageClassificationConfig.of({**parameters, "seed": seed})
    name = f"{options.train_placement}-{options.mixer.replace(', ', '+').replace(',', '+')}-seed{seed}"
    return ImageClassificationConfig.of({**parameters, "seed": seed, "run_name": name})


def _record(folder: Path, config: ImageClassificationConfig) -> Record | None:
    path = folder / f"{config.name}.json"
    if not path.exists():
        return None
    record, expected = read_record(path), config.parameters()
    other = sorted(name for name in expected if name not in HARDWARE and record.parameters.get(name) != expected[name])
    if other:
        raise ValueError(f"{path}: not a run of this grid; {', '.join(other)} differ")
    return record


def _cells(records: Sequence[Record], seeds: int, placements: Sequence[str]) -> tuple[str, ...]:
    if not records:
        return (MISSING, *("" for _ in placements), f"0 of {seeds}")
    accuracies = [[100 * record.evaluations[placement].accuracy for record in records] for placement in placements]
    texts = [f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "") for values in accuracies]
    return (f"{records[0].cost['parameters']:,}", *texts, f"{len(records)} of {seeds}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what has no record yet, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("grid", help="a file of notebooks/grids")
    parser.add_argument("--data-root", default="", help="folder with the data set")
    parser.add_argument("--results", default="results", help="folder of the records")
    parser.add_argument("--device", help='"cpu", "cuda" or "cuda:1"; the grid\'s own where it is not given')
    parser.add_argument("--row", action="append", help="only this row; may be given several times")
    given = parser.parse_args(arguments)
    grid = read_grid(given.grid, **({"device": given.device} if given.device else {}))
    for row in given.row or grid.rows:
        if row not in grid.rows:
            parser.error(f"--row must be one of {', '.join(grid.rows)}, got {row}")
        for config in grid.rows[row]:
            run_missing(config, Path(given.results) / grid.name, given.data_root)
    print(summary(grid, given.results))


def run_missing(config: ImageClassificationConfig, folder: Path, data_root: str) -> bool:
    """Run a configuration unless its record is there; whether it ran."""
    if _record(folder, config) is not None:
        return False
    here = {"results_dir": str(folder), "data_root": data_root}
    folder.mkdir(parents=True, exist_ok=True)
    Run.begin(ImageClassificationConfig.of({**config.model_dump(), **here})).complete()
    return True


if __name__ == "__main__":
    main()
