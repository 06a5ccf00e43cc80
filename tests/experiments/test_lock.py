import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from translution_runs.lock import hold, holder

HOLD = """
import sys, time
from filelock import FileLock
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("lock", sys.argv[1])  # alone: the library around it takes seconds to import
lock = module_from_spec(spec)
spec.loader.exec_module(lock)
with lock.hold(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock until its input is closed."""
    source = sys.modules[hold.__module__].__file__
    process = subprocess.Popen([sys.executable, "-c", HOLD, source, str(tmp_path / "mine.lock")],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def refused(path) -> str:
    with pytest.raises(ValueError) as caught, hold(path):
        raise AssertionError("held twice")
    return str(caught.value)


def test_a_second_process_is_told_who_holds_it(tmp_path, other):
    who = f"process {other.pid} on {socket.gethostname()}"
    for _ in range(2):  # asking changes nothing
        assert refused(tmp_path / "mine.lock") == f"mine: is being run by {who}"
        assert holder(tmp_path / "mine.lock") == who
    with hold(tmp_path / "other.lock"):
        pass


def test_the_lock_is_free_when_its_holder_is_done(tmp_path, other):
    other.communicate()
    assert not (tmp_path / "mine.lock").exists()
    with hold(tmp_path / "mine.lock"):
        assert holder(tmp_path / "mine.lock") == f"process {os.getpid()} on {socket.gethostname()}"


def test_a_killed_holder_frees_the_lock(tmp_path, other):
    other.kill()
    other.wait()
    assert (tmp_path / "mine.lock").exists()  # left behind, and without force
    assert holder(tmp_path / "mine.lock") is None
    with hold(tmp_path / "mine.lock"):
        assert refused(tmp_path / "mine.lock").endswith(f"process {os.getpid()} on {socket.gethostname()}")


def test_an_error_frees_the_lock(tmp_path):
    with pytest.raises(KeyError), hold(tmp_path / "mine.lock"):
        raise KeyError
    assert list(tmp_path.iterdir()) == [] and holder(tmp_path / "mine.lock") is None


def test_threads_exclude_each_other(tmp_path):
    with hold(tmp_path / "mine.lock"):
        found = []
        thread = threading.Thread(target=lambda: found.append(refused(tmp_path / "mine.lock")))
        thread.start()
        thread.join()
    assert found == [f"mine: is being run by process {os.getpid()} on {socket.gethostname()}"]


def test_one_of_many_waiting_gets_it_and_never_two(tmp_path):
    """Threads that come and go: inside there is one at a time, though the file is removed each time."""
    inside, entered = [], []

    def work():
        for _ in range(30):
            try:
                with hold(tmp_path / "mine.lock"):
                    inside.append(1)
                    time.sleep(0.0005)
                    entered.append(len(inside))
                    inside.pop()
            except ValueError:
                pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entered) >= 30 and set(entered) == {1}


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"), hold(tmp_path / "file" / "mine.lock"):
        pass
