"""How a notebook is run here: papermill's client, with the run's progress on a bar and signals for the kernel."""

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from nbformat import NotebookNode
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, papermill_engines
from tqdm import tqdm

from translution_runs.environment import FOLDERS
from translution_runs.signals import SIGNALS, Interrupted

ENGINE = "translution"
START_SECONDS = 600  # a kernel on a busy machine takes its time
BAR = "FloatProgressModel"  # the widget that tqdm moves in a kernel


@dataclass
class Relay:
    """Hands INT and TERM on to the kernel, whose training answers them after its step.

    Attributes:
        requested: the last signal; 0 while none came.
        kernel: process of the kernel; None while there is none.
    """

    requested: int = 0
    kernel: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Answer a signal: by an exception at once where there is no kernel that could."""
        self.requested = number
        if self.kernel is None:
            raise Interrupted(number, 0)
        try:
            os.kill(self.kernel, number)
        except ProcessLookupError:
            pass  # it has ended by itself


@contextmanager
def relayed() -> Iterator[Relay]:
    """A relay that answers INT and TERM within the block; ignored signals stay so, and all outside the main thread."""
    relay, before = Relay(), {}
    if threading.current_thread() is threading.main_thread():
        heard = [number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
        before = {number: signal.signal(number, relay) for number in heard}
    try:
        yield relay
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Client(PapermillNotebookClient):
    """Papermill's client, which tells a relay of its kernel and shows the steps of the training on a bar."""

    def __init__(self, manager: Any, relay: Relay, bar: tqdm, **options: Any) -> None:
        super().__init__(manager, **options)
        self.relay, self.bar = relay, bar

    def start_new_kernel(self, **options: Any) -> None:
        """As the parent's, over local sockets; from then on signals go to the kernel."""
        if os.name == "posix":  # nobody else on the machine can listen
            self.sockets = TemporaryDirectory(prefix="kernel-")  # by default two kernels of one folder could meet
            self.km.transport, self.km.ip = "ipc", str(Path(self.sockets.name) / "socket")
        super().start_new_kernel(**options)
        self.relay.kernel = self.km.provisioner.pid

    def execute_cell(self, cell: NotebookNode, index: int, **options: Any) -> NotebookNode:
        """As the parent's; no cell begins after a signal."""
        if self.relay.requested:  # the kernel does not hear an interrupt between two cells
            raise Interrupted(self.relay.requested, 0)
        return super().execute_cell(cell, index, **options)

    def process_message(self, message: Mapping[str, Any], *where: Any, **options: Any) -> Any:
        """As the parent's; the bar follows the one in the notebook."""
        try:
            return super().process_message(message, *where, **options)
        finally:
            if message["msg_type"] == "comm_msg":
                self._follow(self.widget_state.get(message["content"]["comm_id"], {}))

    def _follow(self, state: Mapping[str, Any]) -> None:
        if state.get("_model_name") == BAR and state.get("max"):
            self.bar.total = int(state["max"])
            self.bar.update(int(state.get("value", 0)) - self.bar.n)


class RelayEngine(Engine):
    """Papermill's own engine with another client."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, log_output: bool = False, *, relay: Relay,
                                 bar: tqdm, **_: Any) -> NotebookNode:
        """Run the notebook; the kernel imports this very library, wherever it lies."""
        client = Client(nb_man, relay, bar, timeout=None, startup_timeout=START_SECONDS, kernel_name=kernel_name,
                        extra_arguments=["--log-level=CRITICAL"])  # errors arrive as messages
        # A kernel drops the first entry where that is the working folder: one that is none stands before.
        paths = [os.devnull, *map(str, FOLDERS), os.environ.get("PYTHONPATH", "")]
        # A folder of files that somebody else has written is no place to import from.
        return client.execute(env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                                   "PYTHONSAFEPATH": "1"})


papermill_engines.register(ENGINE, RelayEngine)
