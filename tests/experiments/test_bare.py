"""A run needs torch, Fabric and the record's packages: not those of notebooks, clusters, figures or other data."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ABSENT = ["papermill", "ipykernel", "nbformat", "nbconvert", "nbclient", "jupyter_client", "IPython", "typer", "dask",
          "distributed", "datasets", "pyarrow", "kornia", "matplotlib", "tokenizers", "linformer",
          "routing_transformer", "triton"]

SCRIPT = """
    import hashlib, json, math, struct, sys, types
    from dataclasses import replace
    from pathlib import Path

    absent, kind, parameters = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    sys.modules.update(dict.fromkeys(absent))
    if "lightning_fabric" in absent:  # the other package's names for the same modules
        del sys.modules["lightning_fabric"]
        import lightning_fabric, lightning_fabric.strategies
        whole = types.ModuleType("lightning")
        sys.modules |= {"lightning": whole, "lightning.fabric": lightning_fabric,
                        "lightning.fabric.strategies": lightning_fabric.strategies, "lightning_fabric": None}

    from translution_runs.data import loading, sources
    from translution_runs.data.idx_source import FILES, IDXSource
    from translution_runs.kinds import kind_named
    from translution_runs.run import Run

    def idx(path, shape, number):
        content = struct.pack(">HBB" + "I" * len(shape), 0, 8, len(shape), *shape) + bytes(
            (number * k) % 10 for k in range(math.prod(shape)))
        path.write_bytes(content)
        return hashlib.sha256(content).hexdigest()

    if parameters.get("data") == "mnist":
        folder, sums = Path(parameters["data_root"]), {}
        for split, count in (("train", 40), ("test", 20)):
            images, labels = FILES[split]
            sums |= {images: idx(folder / images, (count, 28, 28), 7), labels: idx(folder / labels, (count,), 3)}
        loading.IDX["mnist"] = IDXSource("mnist", FILES, sums)
        sources.SOURCES["mnist"] = replace(sources.SOURCES["mnist"], counts={"train": 40, "test": 20})
    record = Run.begin(kind_named(kind).config.of(parameters)).complete()
    found = sorted(name for name in absent if sys.modules.get(name) is not None)
    print(json.dumps([record.name, found, record.curve[-1].loss]))
"""
IMAGES = {"dim": 8, "depth": 1, "heads": 1, "ff": 8, "epochs": 1, "batch_size": 16, "test_placements": "static"}
DIGITS = {**IMAGES, "canvas": 8, "patch_size": 4, "train_samples": 32, "test_samples": 20, "augment": "crop-flip"}
TEXT = {"context": 8, "depth": 1, "dim": 8, "heads": 1, "ff": 8, "epochs": 1, "steps": 2, "batch_size": 8,
        "test_tokens": 2_049, "sample": 4}


@pytest.mark.parametrize(("kind", "parameters", "more"), [
    ("image-classification", DIGITS, []), ("language-modelling", TEXT, ["lightning_fabric"]),
    ("image-classification", {**IMAGES, "data": "mnist", "canvas": 28, "patch_size": 14}, ["sklearn"]),
])
def test_a_run_is_made_where_little_is_installed(tmp_path, kind, parameters, more):
    places = {"results_dir": str(tmp_path / "runs"), "data_root": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(SCRIPT), json.dumps(ABSENT + more), kind,
                           json.dumps({**parameters, **places})], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    name, found, loss = json.loads(done.stdout.splitlines()[-1])
    assert not found and 0 < loss < 10
    assert json.loads((tmp_path / "runs" / f"{name}.json").read_text())["curve"][0]["loss"] == loss
