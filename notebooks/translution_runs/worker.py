"""One of several processes that train a run together. `processes.py` starts them; each finds its rank around it.

    python -m torch.distributed.run --standalone --nproc-per-node 2 -m translution_runs.worker FILE KIND

Standard input is the line to the process that started them: a byte is the number of a signal, to be answered as if it
had come to this process; its end means that nobody waits for the result any more.
"""

import json
import os
import sys
import threading
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard

from translution_runs.fabric import DDPStrategy, Fabric, ModelParallelStrategy, Strategy
from translution_runs.kinds import IMAGES, AnyConfig, kind_named
from translution_runs.run import Run
from translution_runs.signals import Interrupted, stop_on_signals
from translution_runs.training import make_fabric, train

ABANDONED = 1  # exit code


@record  # so that an error's text is reported as the cause of the failure of all
def main(path: str, experiment: str = IMAGES.name) -> None:
    """Train the run of the configuration in the file `path`, of that kind, and leave its last checkpoint.

    Where a signal stops the training, `<path>.stopped` says which, and after what step.
    """
    with stop_on_signals():  # from here on; `train` goes on noting
        threading.Thread(target=listen, daemon=True).start()
        config = kind_named(experiment).config.of(json.loads(Path(path).read_text(encoding="utf-8")))
        try:
            work(config, together(config))
        except Interrupted as stopped:
            Path(f"{path}.stopped").write_text(f"{stopped.signal} {stopped.step}", encoding="ascii")


def work(config: AnyConfig, fabric: Fabric) -> None:
    """This process's part of the training."""
    fabric.launch()
    if config.threads:
        torch.set_num_threads(config.threads)
    run = Run(config, Path(config.results_dir), None)  # not begun: the lock is the starter's
    run.load()
    train(config, run.build(), run.sets["train"], run.keeper, fabric=fabric)


def together(config: AnyConfig) -> Fabric:
    """Fabric for the configured number of processes: gloo between CPUs, nccl between GPUs."""
    strategy: Strategy = DDPStrategy() if config.strategy == "ddp" else ModelParallelStrategy(
        shard, data_parallel_size=config.processes, tensor_parallel_size=1)
    return make_fabric(config, devices=config.processes, strategy=strategy)


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Spread the parameters over the processes, block by block: one block at a time is whole (FSDP)."""
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh["data_parallel"])
    fully_shard(model, mesh=mesh["data_parallel"])
    return model


def listen(descriptor: int = 0) -> None:
    """Pass on what comes from the starter, and end this process with it."""
    while numbers := os.read(descriptor, 16):
        for number in numbers:
            os.kill(os.getpid(), number)
    os._exit(ABANDONED)


if __name__ == "__main__":
    main(*sys.argv[1:])
