"""What the tests of experiments share."""

import pytest
from translution_runs import Run, command
from translution_runs.grids import execute

from tests.experiments.forge import Forge
from tests.experiments.small_grid import GRID


@pytest.fixture(scope="session")
def forge(tmp_path_factory):
    """A process that forks runs to be killed."""
    running = Forge(tmp_path_factory.mktemp("forge") / "log.txt")
    yield running
    running.close()


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A grid of four runs that take no notebook, called in its folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quick.yaml").write_text(GRID)
    monkeypatch.setattr(command, "execute",
                        lambda config, store: Run.begin(execute.placed(config, store)).complete())
    return tmp_path
