"""Kernels that start warm: each is forked from a process that has imported what the pages import.

A plugin for nbval, ``pytest -p tests.book.warm_kernels --nbval …``. Importing torch, matplotlib and the book's packages
took half of the time of most pages. A page still gets a process of its own, in which no name is bound; only the modules
are in memory.
"""

import multiprocessing
import os
import sys
from pathlib import Path

from jupyter_client.provisioning import local_provisioner

TESTS = str(Path(__file__).resolve().parents[1])
MODULES = ["torch", "matplotlib.pyplot", "matplotlib_inline.backend_inline", "scipy.special", "ipykernel.kernelapp",
           "translution_book.facts", "translution_book.figures", "translution_runs.grids", "translution_runs.verdicts"]

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(MODULES)


class Kernel:
    """A forked kernel, with what ``jupyter_client`` asks of a ``Popen``."""

    stdin = stdout = stderr = None

    def __init__(self, command: list[str], cwd: str | None = None, env: dict[str, str] | None = None, **_):
        here, there = forks.Pipe()
        self.process = forks.Process(target=run, args=(command, cwd or os.getcwd(), env or dict(os.environ), there))
        self.process.start()
        here.recv()  # only now has it a process group of its own, which may be killed
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int:
        self.process.join()
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.process.kill()

    def terminate(self) -> None:
        self.process.terminate()


def run(command: list[str], cwd: str, env: dict[str, str], ready) -> None:
    """Become the kernel that a command like ``python -m ipykernel_launcher -f FILE`` would start."""
    os.setsid()
    ready.send(True)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:] = [folder for folder in sys.path if folder and not folder.startswith(TESTS)]
    from ipykernel import kernelapp
    kernelapp.launch_new_instance(argv=command[command.index("-f"):])


def pytest_configure(config) -> None:
    """Have nbval's kernels forked; the backend is that which a kernel chooses before it imports matplotlib."""
    local_provisioner.launch_kernel = Kernel
    backend = os.environ.get("MPLBACKEND")
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    multiprocessing.forkserver.ensure_running()
    os.environ.pop("MPLBACKEND")
    if backend is not None:
        os.environ["MPLBACKEND"] = backend
