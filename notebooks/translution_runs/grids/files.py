"""Grid files: the runs behind one table or figure of a paper, in YAML. The form is described in notebooks/grids."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    field_validator,
    model_validator,
)

import translution_lib

PROFILES = ("smoke", "cpu", "paper")
Parameters = dict[str, Any]


def once(seeds: list[int]) -> list[int]:
    """Refuse a seed that stands twice: its run would count as two."""
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"got {seeds}, expected each seed once")
    return seeds


Seeds = Annotated[list[StrictInt], AfterValidator(once)]


class Loader(yaml.SafeLoader):
    """YAML's safe loader, which keeps no name that stands twice: the last one would hold without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        """As the parent's, for names that stand once."""
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands twice", key.start_mark)
            seen.add((key.tag, str(key.value)))
        return super().construct_mapping(node, deep)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Printed(_Part):
    """The line of a printed table that a row repeats: what tells its cells apart in ``facts/paper_tables.csv``."""

    architecture: str
    method: str
    variant: str = ""


class RowSpec(_Part):
    """A row: its parameters, the printed line, and the name of its method where no line gives it."""

    run: Parameters
    printed: Printed | None = None
    method: str = ""

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, content: Any) -> Any:
        """In a file the parameters stand beside `printed` and `method`."""
        if not isinstance(content, dict) or "run" in content:
            return content
        own = {key: content[key] for key in ("printed", "method") if key in content}
        return {**own, "run": {key: value for key, value in content.items() if key not in own}}


class Column(_Part):
    """A column: further parameters of its runs, the evaluation it shows, and the printed metric beside it.

    An evaluation is a placement of the test images, a shift of them, such as "shift -8" or "shift +8, all classes",
    or a length of the windows of a test text, such as "2x".

    Without `evaluation` the column shows the printed number alone. `subject` is the printed line's architecture or data
    set where it is the column's and not the row's.
    """

    run: Parameters = Field(default_factory=dict)
    evaluation: str | None = None
    metric: str | None = None
    subject: str = ""


class Profile(_Part):
    """A way to run the grid: parameters that replace those of `common`, its seeds, the rows that it leaves out.

    `rows` and `columns` have parameters of single rows and columns, which hold before those of the row or the column
    itself. A column of `without_columns` shows the printed number alone.
    """

    common: Parameters = Field(default_factory=dict)
    rows: dict[str, Parameters] = Field(default_factory=dict)
    columns: dict[str, Parameters] = Field(default_factory=dict)
    without_columns: list[str] = Field(default_factory=list)
    seeds: Seeds = Field(default_factory=list)
    without: list[str] = Field(default_factory=list)
    differs: str = Field(min_length=1)


class GridFile(_Part):
    """A grid as its file describes it.

    Attributes:
        name: the file's name without its ending.
        title: what the table shows.
        paper: whose table or figure it repeats, a name of ``paper_tables.csv`` or "preprint".
        table: number of the printed table, for the numbers in ``facts/paper_tables.csv``; None without numbers.
        experiment: kind of the runs.
        like: another file of the folder, or a grid of the repository, whose common parameters, seeds, columns and
            profiles hold where this file does not say otherwise; its rows and what it leaves out are not taken.
        common: parameters of every run.
        seeds: those of every row.
        rows: by name.
        columns: by heading.
        profiles: by name: "smoke", "cpu", "paper".
    """

    name: str
    title: str
    paper: Literal["translution", "preprint", "performers", "riemannformer"]
    table: int | None = None
    experiment: Literal["image-classification", "language-modelling"]
    like: str = ""
    common: Parameters = Field(default_factory=dict)
    seeds: Seeds = Field(min_length=1)
    rows: dict[str, RowSpec] = Field(min_length=1)
    columns: dict[str, Column] = Field(min_length=1)
    profiles: dict[str, Profile] = Field(min_length=1)

    @field_validator("profiles")
    @classmethod
    def _known(cls, profiles: dict[str, Profile]) -> dict[str, Profile]:
        if unknown := [name for name in profiles if name not in PROFILES]:
            raise ValueError(f"got {', '.join(unknown)}, expected {', '.join(PROFILES)}")
        return profiles


def read_file(path: str | Path) -> GridFile:
    """The content of a grid file, with what it takes from the one that it is like.

    Raises:
        ValueError: no such file, no YAML, or content of another form; the message names the file and the place.
    """
    path = Path(path)
    content = raw(path)
    if content.get("like"):
        base = raw(model_of(path, str(content["like"])))
        if base.get("like"):
            raise ValueError(f"{path.name}: like: {content['like']} is like {base['like']} itself; expected a grid "
                             "that is like no other")
        content = inherited(content, base)
    try:
        found = GridFile.model_validate(content)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in error.errors()]
        raise ValueError("\n".join([f"{path.name}: not a grid", *lines])) from None
    if found.name != path.stem:
        raise ValueError(f"{path.name}: name: got {found.name!r}, expected {path.stem!r}, as the file is called")
    return found


def read_yaml(path: Path, what: str) -> Any:
    """The content of a file that should be a `what`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no YAML; the message names the file.
    """
    try:
        return parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except RecursionError:
        raise ValueError(f"{path.name}: not a {what}; it is nested too deeply") from None
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:   # what makes dates and numbers raises all
        raise ValueError(f"{path.name}: not a {what}; it cannot be read as YAML ({error})") from error


@lru_cache(maxsize=256)
def parsed(text: str) -> Any:
    """What YAML says, parsed once: the profiles of a grid and the grids that are like it ask again. No one changes it.

    libyaml is faster, and ends the process where a file is nested too deeply.
    """
    return yaml.load(text, Loader)  # noqa: S506, a safe one


def raw(path: Path) -> Parameters:
    """A file's own content.

    Raises:
        ValueError: no such file, or no mapping in YAML.
    """
    try:
        content = read_yaml(path, "grid")
    except FileNotFoundError:
        raise ValueError(f"{path}: no such grid file") from None
    named(content, path.name)
    for key in ("common", "profiles"):
        named(content.get(key) or {}, f"{path.name}: {key}")
    for name, profile in (content.get("profiles") or {}).items():
        named(profile, f"{path.name}: profiles.{name}")
        named(profile.get("common") or {}, f"{path.name}: profiles.{name}.common")
    return content


def named(content: object, where: str) -> None:
    """Raise a ValueError for what is no mapping of names to values."""
    if not isinstance(content, dict):
        raise ValueError(f"{where}: not a grid; expected names with values, got {type(content).__name__}")


def model_of(path: Path, name: str) -> Path:
    """The file that a grid is like: beside it, else in the repository."""
    beside = path.with_name(f"{name}.yaml")
    return beside if beside.is_file() else find(name)


def inherited(own: Parameters, base: Parameters) -> Parameters:
    """`own` with the parameters, seeds, columns and profiles of `base` where it has none itself.

    Of a profile of `base` the parameters of those rows are taken that `own` has too.
    """
    kept = own.get("rows") or {}
    profiles = {name: {**profile, "without": [],
                       "rows": {row: more for row, more in (profile.get("rows") or {}).items() if row in kept}}
                for name, profile in (base.get("profiles") or {}).items()}
    for name, profile in (own.get("profiles") or {}).items():
        given = profiles.get(name, {})
        common = {**(given.get("common") or {}), **(profile.get("common") or {})}
        profiles[name] = {**given, **profile, "common": common}
    taken: Parameters = {key: base[key] for key in ("seeds", "columns", "experiment") if key in base}
    common = {**(base.get("common") or {}), **(own.get("common") or {})}
    return {**taken, **own, "common": common, "profiles": profiles}


def home() -> Path:
    """The folder that holds `notebooks/grids`: the current one, or the one beside the library."""
    for folder in (Path.cwd(), Path(translution_lib.__file__).resolve().parents[1]):
        if (folder / "notebooks" / "grids").is_dir():
            return folder
    raise ValueError("no folder notebooks/grids here or beside the library; change to the top of the repository")


def grid_files(folder: str | Path | None = None) -> Mapping[str, Path]:
    """The grid files of a folder by name; by default those of `notebooks/grids`."""
    folder = home() / "notebooks" / "grids" if folder is None else Path(folder)
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(name: str | Path, folder: str | Path | None = None) -> Path:
    """The path of a grid: of "table-2", of "2" for the same, or of a file.

    Raises:
        ValueError: there is none; the message lists those that there are.
    """
    if str(name).endswith((".yaml", ".yml")):
        return Path(name)
    known = grid_files(folder)
    for key in (str(name), f"table-{name}"):
        if key in known:
            return known[key]
    raise ValueError(f"grid: got {str(name)!r}, expected one of {', '.join(known)}, or a file that ends in .yaml")
