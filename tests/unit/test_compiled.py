"""The form in C: any sizes and threads, what it must not read, and the library that nobody else may have touched."""

import os
import re
import signal
import stat
import subprocess
import sys
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.strategies import doubled, tables
from tests.unit.test_backends import and_gradients, assert_near, check, needs_compiler, operator
from translution_lib import backend, offsets, shared
from translution_lib import functional as fn
from translution_lib.backends import compiled, library
from translution_lib.backends.grouped import pairs_on
from translution_lib.backends.products import pair_scores, pair_values


@pytest.fixture(autouse=True)
def threads():
    """Leave the number of threads as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@needs_compiler
@given(rel=tables(), heads=st.integers(1, 3), relative=st.sets(st.sampled_from("qkv")), b=st.integers(1, 4),
       c=st.integers(1, 30), d=st.integers(1, 20), d_v=st.integers(1, 20), slots=st.integers(1, 4), keep=st.booleans())
@example(offsets((2, 3), cls=True), 3, set("qkv"), 140, 8, 8, 8, 2, False)       # a pair has more rows than a chunk
@example(offsets((2, 3), cls=True), 3, set("qkv"), 140, 8, 8, 8, 2, True)
@example(shared(9), 1, set("qkv"), 7, 24, 24, 48, 3, True)                      # one relation, several chunks
@example(shared(9), 2, set("qkv"), 7, 16, 13, 21, 1, False)                     # every width of a panel of columns
def test_it_equals_the_definition(rel, heads, relative, b, c, d, d_v, slots, keep):
    torch.set_num_threads(slots)
    args = operator(rel, heads, relative, b, c, d, d_v)
    check(fn.translution, fn.translution_definition, args, 2e-5, "c", keep)


@needs_compiler
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_equal_threads_give_equal_bits(slots):
    torch.set_num_threads(slots)
    args = operator(offsets((3, 3), cls=True), 2, "qkv", 2, 24, 12, 4)
    with backend("c"):
        first, second = (and_gradients(fn.translution(*args), args[:4]) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@needs_compiler
def test_weights_and_inputs_of_any_strides():
    """A transposed weight, such as a tied one, gets its gradient where it belongs."""
    x, w_q, w_k, w_v, rel, heads = operator("line", 2, "qkv", 2, 10, 5, 5)
    turned = [w.detach().mT.contiguous().mT.requires_grad_() for w in (w_q, w_k, w_v)]
    skewed = x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    assert not any(a.is_contiguous() for a in (*turned, skewed))
    check(fn.translution, fn.translution_definition, [skewed, *turned, rel, heads], 2e-5, "c")


@needs_compiler
def test_what_it_takes():
    x = torch.ones(2)
    assert compiled.takes(x, None, torch.nn.Parameter(x))
    other = x.double(), x.bfloat16(), x.to("meta"), x[:0], torch._neg_view(x), torch._efficientzerotensor(2)
    assert not any(compiled.takes(x, y) for y in other)


@needs_compiler
@pytest.mark.usefixtures("plain_types")
def test_what_does_not_fit_is_refused_before_c_reads_it():
    """A pointer has no shape: a smaller table would be read and written beyond its end."""
    x, w_q, w_k, w_v, rel, _ = operator("line", 2, "qkv", 3, 9, 5, 4)
    alpha = torch.rand(3, 2, 4, 4)
    wrong = [(alpha[:1], x, w_v), (alpha[..., :2, :2], x, w_v), (alpha, x, w_v[:3]), (alpha, x, w_v[:, :2]),
             (torch.rand(3, 3, 4, 4), x, w_v)]
    with backend("c"):
        for given_ in wrong:
            with pytest.raises(ValueError, match="operands must fit a table of 4 tokens and 7 relations"):
                pair_values(*given_, rel)
        for given_ in ((x, x, w_q, w_k[..., :4], rel, 2), (x, x[:, :3], w_q, w_k, rel, 2), (x, x, w_q, w_k, rel, 3)):
            with pytest.raises(ValueError, match="operands must fit"):
                pair_scores(*given_)
    with pytest.raises(ValueError, match=r"alpha must have the shape \(3, heads, 4, 4\), got \(1, 2, 4, 4\)"):
        fn.translution_values(alpha[:1], x, w_v, rel)


@needs_compiler
def test_no_more_threads_than_relations():
    """A thread without a relation would have a copy of the sums for nothing."""
    torch.set_num_threads(4)
    args = operator(shared(5), 2, "v", 2, 9, 5, 4)
    with mock.patch.object(compiled, "_shared", mock.Mock(wraps=compiled._shared)) as shared_by, backend("c"):
        and_gradients(fn.translution(*args), args[:4])
    assert {call.args[2] for call in shared_by.call_args_list} == {1}


@given(rel=tables(), slots=st.integers(1, 5))
def test_every_relation_is_dealt_once_and_evenly(rel, slots):
    found = pairs_on(rel, torch.device("cpu"))
    relation, start, query, key, order, part = (a.tolist() for a in compiled._arrays(found, slots))
    assert sorted(order) == list(range(len(relation))) and part[0] == 0 and part[-1] == len(order)
    for k, r in enumerate(relation):
        assert all(rel.index[i, j] == r for i, j in zip(query[start[k]:start[k + 1]], key[start[k]:start[k + 1]],
                                                       strict=True))
    sizes = [b - a for a, b in zip(start[:-1], start[1:], strict=True)]
    loads = [sum(sizes[k] for k in order[a:b]) for a, b in zip(part[:-1], part[1:], strict=True)]
    assert sum(loads) == len(found.flat) and max(loads) - min(loads) <= max(sizes)


@needs_compiler
@pytest.mark.parametrize("kind", ["DEFAULT", "AVX2"])
def test_other_processors_and_compilers(kind, cache_folder, monkeypatch):
    """Without the instructions of AVX, and without a compiler's exchange of numbers among vectors."""
    if kind == "AVX2" and not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("no AVX here")
    monkeypatch.setenv("CC", f"{os.environ.get('CC') or 'cc'} -DWITHOUT_SHUFFLES")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: kind)
    args = operator(offsets((2, 3), cls=True), 2, "qkv", 5, 35, 19, 12)
    with mock.patch.object(library, "load", cache(library.load.__wrapped__)), backend("c"):
        found = and_gradients(fn.translution(*args), args[:4])
    exact = doubled(args)
    assert_near(found, and_gradients(fn.translution_definition(*exact), exact[:4]), 2e-5)
    assert (cache_folder / "lock").exists()


@pytest.fixture
def cache_folder(tmp_path, monkeypatch) -> Path:
    """Where the library is kept in a test: a folder that is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "translution"


@pytest.fixture
def quick(monkeypatch):
    """A compiler that takes no time: it copies a library that is made already. Returns how often it ran."""
    library.load()
    made, runs = next(library.place().glob(f"compiled-{library._key()}.so")), []

    def run(line, **_):
        runs.append(line)
        Path(line[line.index("-o") + 1]).write_bytes(made.read_bytes())
        return subprocess.CompletedProcess(line, 0, "", "")

    monkeypatch.setattr(library.subprocess, "run", run)
    return runs


def fresh() -> None:
    """Load the library as a new process would."""
    library.load.__wrapped__()


@needs_compiler
def test_it_is_compiled_once_and_kept(quick, cache_folder):
    fresh()
    fresh()
    names = sorted(path.name for path in cache_folder.iterdir())
    assert len(quick) == 1 and [Path(name).suffix for name in names] == [".sha256", ".so", ""] and names[-1] == "lock"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (cache_folder, *cache_folder.glob("*.so"))]
    assert modes == [0o700, 0o700]


@needs_compiler
@pytest.mark.parametrize("how", ["changed", "cut", "no checksum", "another checksum", "no letters", "killed"])
def test_what_is_not_whole_is_compiled_again_and_never_loaded(quick, cache_folder, how):
    fresh()
    (made,), (checksum,) = cache_folder.glob("*.so"), cache_folder.glob("*.sha256")
    good = made.read_bytes()
    if how in ("changed", "cut"):
        made.unlink()                                               # this process runs the file that was there
        made.write_bytes(good[:-1] + bytes([good[-1] ^ 1]) if how == "changed" else good[:100])
        made.chmod(0o700)
    elif how == "no checksum":
        checksum.unlink()
    elif how == "another checksum":
        checksum.write_text("0" * 64)
    elif how == "no letters":
        checksum.write_bytes(b"\xff" * 64)
    else:
        made.unlink()
        (cache_folder / "making").mkdir()
        (cache_folder / "making" / "part.o").write_text("half")
    loaded = []
    with mock.patch.object(library.ctypes, "CDLL", side_effect=lambda path: loaded.append(Path(path).read_bytes())), \
            pytest.raises(AttributeError):
        fresh()
    assert loaded == [good] and len(quick) == 2 and not (cache_folder / "making").exists()


KILLED = "import os, signal; from translution_lib.backends import library as l; l.subprocess.run = lambda line, **_: " \
         "(open(line[line.index('-o') + 1], 'w').write('half'), os.kill(os.getpid(), signal.SIGKILL)); l.load()"


@needs_compiler
def test_a_kill_leaves_nothing_that_lasts(quick, cache_folder):
    """Neither a library nor a lock, and what it was at goes."""
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.Popen([sys.executable, "-c", KILLED], env={**os.environ, **paths}).wait() == -signal.SIGKILL
    assert (cache_folder / "making").exists()
    fresh()
    assert len(quick) == 1
    assert {path.suffix for path in cache_folder.iterdir()} == {".so", ".sha256", ""}
    assert not (cache_folder / "making").exists()


@needs_compiler
@pytest.mark.parametrize("which", ["folder", "library"])
@pytest.mark.parametrize("who", ["group", "world", "owner"])
def test_what_others_can_write_is_refused(quick, cache_folder, which, who, monkeypatch):
    fresh()
    path = cache_folder if which == "folder" else next(cache_folder.glob("*.so"))
    if who == "owner":
        real = os.stat(path)
        other = os.stat_result((*real[:4], real.st_uid + 1, *real[5:]))
        stats = Path.stat
        monkeypatch.setattr(Path, "stat", lambda self, **more: other if self == path else stats(self, **more))
    else:
        path.chmod(0o720 if who == "group" else 0o702)
    message = "belongs to another user" if who == "owner" else "others may write to .*chmod go-w"
    with mock.patch.object(library.ctypes, "CDLL", side_effect=AssertionError), \
            pytest.raises(RuntimeError, match=f"cannot use {re.escape(str(cache_folder))} .*{message}"):
        fresh()
    assert len(quick) == 1


def test_a_relative_place_counts_as_none(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for given_ in ("cache", "./cache", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", given_)
        assert library.place() == tmp_path / ".cache" / "translution"
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert library.place() == Path("/some/where/translution")


@needs_compiler
def test_notes_are_kept_for_the_same_code_alone(cache_folder, monkeypatch):
    assert library.noted("float32") is None
    library.note("float32", [{"agreed": True}])
    assert library.noted("float32") == [{"agreed": True}] and library.noted("float64") is None
    monkeypatch.setattr(torch, "__version__", "0")
    assert library.noted("float32") is None
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_folder.parent))
    (path,) = cache_folder.glob("verdict-*.json")
    path.chmod(0o666)
    assert library.noted("float32") is None
    path.chmod(0o600)
    path.write_text("{")
    assert library.noted("float32") is None
    cache_folder.chmod(0o777)
    library.note("float32", [])                                     # which is no error, and nothing is written
    assert path.read_text() == "{"


@pytest.mark.parametrize(("compiler", "message"), [
    ("no-such-compiler", "'no-such-compiler' does not start"), ("false", "false -O3 .* failed"),
    ("true", "true -O3 .* made nothing; is it a C compiler"),
    ("cc '", "CC is .* which is no command .No closing quotation")])
def test_a_compiler_that_fails_is_named(compiler, message, cache_folder, monkeypatch):
    """Nothing half-written stays."""
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(RuntimeError, match=message):
        fresh()
    assert [path.name for path in cache_folder.iterdir()] == ["lock"]


@needs_compiler
def test_a_compiler_whose_path_has_a_space(cache_folder, tmp_path, monkeypatch):
    """Alone, and quoted with an option behind it."""
    path = tmp_path / "my tools" / "cc"
    path.parent.mkdir()
    path.symlink_to(library.shutil.which("cc") or library.shutil.which("gcc"))
    for given_ in (str(path), f"'{path}' -g"):
        monkeypatch.setenv("CC", given_)
        fresh()
    assert len(list(cache_folder.glob("*.so"))) == 2


def test_a_user_without_a_home_is_told_of_the_other_place(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", mock.Mock(side_effect=RuntimeError("Could not determine home directory.")))
    with pytest.raises(RuntimeError, match="no home folder; XDG_CACHE_HOME names another place"):
        fresh()
    assert library.noted("float32") is None
    library.note("float32", [])


@needs_compiler
def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    with pytest.raises(RuntimeError, match=f"cannot use {file}.*XDG_CACHE_HOME"):
        fresh()


@needs_compiler
def test_a_file_that_is_no_library_is_named(quick, cache_folder, monkeypatch):
    monkeypatch.setattr(library.subprocess, "run", lambda line, **_: (
        Path(line[line.index("-o") + 1]).touch(), subprocess.CompletedProcess(line, 0, "", ""))[1])
    with pytest.raises(RuntimeError, match=f"cannot load {cache_folder}/compiled-.*too short"):
        fresh()
