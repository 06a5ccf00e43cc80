"""Grids: the runs behind the tables and figures of the papers, described in the files of ``notebooks/grids``."""

from translution_lib.experiments.grids.files import PROFILES, GridFile, find, grid_files, home, read_file
from translution_lib.experiments.grids.grid import Grid, Row, read_grid

__all__ = ["Grid", "GridFile", "PROFILES", "Row", "find", "grid_files", "home", "read_file", "read_grid"]
