"""What the tests of experiments share."""

import pytest

from tests.experiments.forge import Forge


@pytest.fixture(scope="session")
def forge(tmp_path_factory):
    """A process that forks runs to be killed."""
    running = Forge(tmp_path_factory.mktemp("forge") / "log.txt")
    yield running
    running.close()
