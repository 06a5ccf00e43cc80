"""Pictures a second: the loader alone, the model alone, and both together.

    python benchmarks/image_loading.py --write results/benchmarks/image-loading.json
    python benchmarks/image_loading.py --device cuda --dtype bfloat16 --batch 256 --workers 0 4 8 16 \
        --data-root FOLDER --write results/benchmarks/image-loading-cuda.json

The loader reads JPEG files, decodes them, cuts a random part and scales it to 224 pixels, as a run on ImageNet does.
Without a folder it reads generated files of ImageNet's size, which are written to a temporary folder first. The model
takes the same number of training steps on pictures that are there already. Both together is a training.
"""

import io
import os
import tempfile
import time
from itertools import islice
from pathlib import Path

import measuring
import numpy as np
import torch
from PIL import Image
from torch.nn.functional import cross_entropy
from translution_runs import ImageClassificationConfig, build_model
from translution_runs.data.imagenet import CLASSES, COUNTS, imagenet
from translution_runs.precision import forward
from translution_runs.streaming import StreamedBatches

MODELS = {f"A/{patch} {mixer}": {"architecture": "A", "patch_size": patch, "mixer": mixer}
          for patch, mixer in ((56, "absolute"), (56, "translution"), (32, "absolute"))}
QUICK = {"tiny": {"patch_size": 28, "mixer": "absolute", "dim": 8, "depth": 1, "heads": 1, "ff": 8}}
SIDES, QUICK_SIDES = (500, 375), (60, 45)
"""Width and height of a generated picture, usual ones in ImageNet."""
NOISE = 24
"""Levels of a byte: with it a generated file has about 120 kB; ImageNet's have 108 kB on average."""


def tasks(args) -> list[dict]:
    """A task for every number of workers without a model, and for every model without and with each of them."""
    models, workers = (QUICK, (1,)) if args.quick else (MODELS, tuple(args.workers))
    batch, steps = (2, 2) if args.quick else (args.batch, args.steps)
    shared = {"kind": "image-loading", "batch": batch, "steps": steps,
              "data": "imagenet" if args.data_root else "generated", "quick": args.quick}
    found = [{**shared, "part": "loader", "model": "", "workers": count} for count in workers]
    for name in models:
        found.append({**shared, "part": "model", "model": name, "workers": 0})
        found += [{**shared, "part": "both", "model": name, "workers": count} for count in workers]
    os.environ["IMAGE_LOADING_ROOT"] = args.data_root  # no record shows where the files lie
    return found


def configuration(task: dict) -> ImageClassificationConfig:
    """The parameters of a run as in Table 3's grid, but for its length."""
    own = (QUICK if task["quick"] else MODELS).get(task["model"], {"patch_size": 56, "mixer": "absolute"})
    return ImageClassificationConfig.of({
        "data": "imagenet", "canvas": 224, "augment": "resized-crop", "test_placements": "static",
        "batch_size": task["batch"], "workers": task["workers"], "device": task["device"],
        "precision": task["dtype"], **own})


def measure(task: dict) -> dict:
    """Pictures a second of one part, without the first step, in which workers start."""
    with tempfile.TemporaryDirectory() as folder:
        root = os.environ["IMAGE_LOADING_ROOT"]
        files = {} if root else write_files(Path(folder) / "train", task)
        images = imagenet(root or folder, "train", CLASSES if root else 2, COUNTS if root else None)
        config = configuration(task)
        times = [timed(config, images, task) for _ in range(1 if task["quick"] else min(3, task["runs"]))]
    pictures = task["batch"] * task["steps"]
    return {"seconds": min(times), "times": times, "images_per_second": pictures / min(times), **files}


def write_files(folder: Path, task: dict) -> dict:
    """Files for all steps and one more, in two classes; their mean size in bytes."""
    rng, sides = np.random.default_rng(0), QUICK_SIDES if task["quick"] else SIDES
    count = min(task["batch"] * (task["steps"] + 1), 256)
    for name in ("n0", "n1"):
        (folder / name).mkdir(parents=True)
    sizes = []
    for number in range(count):
        data = jpeg(rng, sides)
        (folder / f"n{number % 2}" / f"{number:06}.JPEG").write_bytes(data)
        sizes.append(len(data))
    return {"files": count, "bytes_per_file": sum(sizes) / count, "sides": list(sides)}


def jpeg(rng: np.random.Generator, sides: tuple[int, int]) -> bytes:
    """A smooth picture with noise, at the quality that most of ImageNet's files have."""
    smooth = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).resize(sides, Image.Resampling.BICUBIC)
    noisy = np.asarray(smooth, np.int16) + rng.integers(-NOISE, NOISE + 1, (sides[1], sides[0], 3))
    stream = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def timed(config: ImageClassificationConfig, images, task: dict) -> float:
    """Seconds of the task's steps."""
    torch.set_num_threads(task["threads"])
    steps = batches(config, images, task)
    model = None if task["part"] == "loader" else build_model(config).to(config.device).train()
    optimizer = None if model is None else torch.optim.AdamW(model.parameters(), lr=1e-4)
    for k, (pixels, labels) in enumerate(steps):
        if model is not None:
            cross_entropy(forward(config, model, pixels), labels % config.classes).backward()
            optimizer.step()
            optimizer.zero_grad()
        if k == 0:  # before the next batch is asked for, so that as many are read as are counted
            measuring.synchronize(task["device"])
            start = time.perf_counter()
    measuring.synchronize(task["device"])
    return time.perf_counter() - start


def batches(config: ImageClassificationConfig, images, task: dict):
    """One step more than the task has; where the model stands alone, the same batch again and again."""
    epochs = (StreamedBatches(config, images, epoch) for epoch in range(10 ** 6))
    parts = (part for epoch in epochs for step in range(len(epoch)) for part in epoch.parts(step)
             if len(part[1]) == task["batch"])
    if task["part"] == "model":
        one = next(parts)
        return [one] * (task["steps"] + 1)
    return islice(parts, task["steps"] + 1)  # which, unlike zip, asks for no further part: that may start new workers


def finish(record: dict) -> None:
    """Print a line for every task."""
    del record["parameters"]["data_root"]
    for row in record["rows"]:
        head = f"{row['part']:<7} {row['model']:<18} {row['workers']} workers"
        if row["status"] != "measured":
            print(f"{head}: {row['status']}, {row['reason']}")
        else:
            print(f"{head}  {row['images_per_second']:8.1f} pictures/s")


def options():
    """The command's options."""
    p = measuring.parser(__doc__)
    p.add_argument("--batch", type=int, default=32, help="pictures in a step; the paper has 256")
    p.add_argument("--steps", type=int, default=6, help="timed steps of each measurement")
    p.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="processes that read pictures ahead")
    p.add_argument("--data-root", default="", help="a folder with ImageNet; by default files are generated")
    return p


if __name__ == "__main__":
    measuring.main("image-loading", options(), tasks, measure, finish)
