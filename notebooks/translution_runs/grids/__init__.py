"""Grids: the runs behind the tables and figures of the papers, described in the files of ``notebooks/grids``."""

from translution_runs.grids.files import PROFILES, GridFile, find, grid_files, home, read_file
from translution_runs.grids.gathering import gather
from translution_runs.grids.grid import Grid, Row, read_grid
from translution_runs.grids.status import STATES, Status, counts, status
from translution_runs.grids.store import store_of
from translution_runs.grids.tables import MISSING, Result, comparison, results, summary

__all__ = ["MISSING", "PROFILES", "STATES", "Grid", "GridFile", "Result", "Row", "Status", "comparison", "counts",
           "find", "gather", "grid_files", "home", "read_file", "read_grid", "results", "status", "store_of", "summary"]
