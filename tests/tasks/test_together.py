"""Processes that a command or `qkv.train` starts: how they meet, that they give the bits of one, and how they end."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import run, succeeded
from torch import distributed as dist

import qkv
from qkv.checkpoint.folder import verify
from qkv.checkpoint.rotation import latest_complete
from qkv.errors import ConfigError, DataError
from qkv.tasks import launch
from qkv.tasks import run as runs
from qkv.tasks.launch import _open_store, as_plain, meet
from qkv.training.events import Event, Outcome, Updated
from qkv.training.processes import LostProcessError, in_environment

PAIRS = [(a + b, (b + a).upper()) for a in "abcdefgh" for b in "abcdefgh"]
TINY: dict[str, Any] = {
    "model": "gru",
    "width": 8,
    "tokenizer": "char",
    "steps": 4,
    "validate_every": 2,
    "dropout": 0.2,
    "batch_tokens": 48,
    "accumulate": 4,
}
PLACE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize("rank", ["-1", "2", "²", "x", "1" * 5000, "1.0", " 0"])
def test_a_wrong_number_of_a_process_is_refused(rank: str) -> None:
    with pytest.raises(ConfigError) as raised:
        in_environment({"RANK": rank, "WORLD_SIZE": "2"})
    assert raised.value.argument == "environment"


@pytest.mark.parametrize("size", ["0", "-2", "٣", ""])
def test_a_wrong_number_of_processes_is_refused_or_ignored(size: str) -> None:
    with pytest.raises(ConfigError) if size else contextlib.nullcontext():
        assert in_environment({"RANK": "0", "WORLD_SIZE": size}) is None


@pytest.mark.parametrize("changed", [{"MASTER_PORT": port} for port in ("", "x", "99999", "taken")] + [{}])
def test_a_first_process_that_cannot_be_is_refused(changed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = {"MASTER_PORT": str(other.getsockname()[1])} if changed.get("MASTER_PORT") == "taken" else changed
        for name, text in {"RANK": "0", "WORLD_SIZE": "2", **(PLACE if changed else {}), **taken}.items():
            monkeypatch.setenv(name, text)
        with pytest.raises(ConfigError) as raised, meet(None, "cpu", print):
            pass
    assert raised.value.argument == "environment"


def test_no_other_machine_reaches_the_processes() -> None:
    """Who listens on all networks also answers at other addresses of this machine."""
    store, port = _open_store(2)
    store.set("key", "value")
    assert store.get("key") == b"value"
    socket.create_connection(("127.0.0.1", port), timeout=10).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=10)


UNREACHED = """
import os, sys, time
from datetime import timedelta
from multiprocessing import get_context, parent_process
from qkv.tasks import launch

launch._CONNECTING = timedelta(seconds=1)

def meet(orphaned):
    while orphaned and parent_process().is_alive():
        time.sleep(0.01)
    launch._run(0, 1, 2, int(sys.argv[1]), 1, print)

if sys.argv[2] == "killed":
    get_context("fork").Process(target=meet, args=[True]).start()
    os._exit(0)
meet(False)
"""


@pytest.mark.parametrize("first", ["killed", "out of reach"])
def test_a_process_that_meets_no_other_ends(first: str) -> None:
    """PyTorch's store tries to connect for five minutes; a test that hangs so long has failed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, "-c", UNREACHED, str(port), first]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert bool(done.stderr) == (first != "killed"), "its user has the prompt of the shell again"
    assert bool(done.returncode) == (first != "killed")


def trained(out: Path, count: int | None = 2, data: Any = PAIRS, *callbacks: Callable[[Event], object]) -> Outcome:
    given = {**TINY, "data": data, "callbacks": callbacks, "processes": count}
    return qkv.train("translate", out=out, quiet=True, **given).outcome


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The processes that the test starts, all of which have ended when it has."""
    processes: list[Any] = []
    begin = launch._start

    def start(*args: Any) -> Any:
        processes.append(begin(*args))
        return processes[-1]

    monkeypatch.setattr(launch, "_start", start)
    yield processes
    assert processes
    assert all(process.exitcode is not None for process in processes)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of one process."""
    return trained(tmp_path_factory.mktemp("alone"), None).digest


def test_the_command_gives_the_checkpoint_of_one_process(tmp_path: Path, alone: str, started: list[Any]) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    names = {name: f"--{name.replace('_', '-')}" for name in TINY if name != "accumulate"}
    flags = [text for name, flag in names.items() for text in (flag, str(TINY[name]))]
    config = tmp_path / "four.toml"
    config.write_text("[training]\naccumulate = 4\n")
    given = ["--data", file, "--config", config, "--out", tmp_path / "command", "--processes", "2", *flags]
    shown = succeeded(run("train", "translate", *given)).stderr
    assert shown.count("step 4:") == 1
    assert verify(tmp_path / "command" / "step-00000004").digest == alone
    assert [process.exitcode for process in started] == [0]


@pytest.mark.slow
def test_python_gives_the_checkpoint_of_one_process(tmp_path: Path, alone: str, started: list[Any]) -> None:
    """In the fast suite the run whose process is killed begins with two of them and ends with the same bits."""
    assert trained(tmp_path / "python", 2, iter(PAIRS)).digest == alone
    assert [process.exitcode for process in started] == [0]


PROGRAM = """
print("once")
import sys
sys.path[:0] = {folders!r}
import qkv
from tests.tasks.test_together import PAIRS, TINY
print(qkv.train("translate", data=PAIRS, out="run", processes=2, **TINY).outcome.digest)
"""


@pytest.mark.slow
def test_a_program_is_not_run_twice(tmp_path: Path, alone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a terminal: there is no file, and folders are added to the path by hand."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folders = [str(Path(qkv.__file__).parent.parent), str(Path(__file__).parent.parent.parent)]
    program = PROGRAM.format(folders=folders).encode()
    done = subprocess.run([sys.executable, "-"], input=program, cwd=tmp_path, capture_output=True, check=False)
    assert done.stdout.decode().split() == ["once", alone], done.stderr.decode()
    assert done.stderr.decode().count("step 4:") == 1


TWICE = """
import qkv
from tests.tasks.test_together import PAIRS, TINY
for name in ("first", "second"):
    qkv.train("translate", data=PAIRS, out=name, quiet=True, **TINY)
"""


@pytest.mark.slow
def test_a_program_under_torchrun_trains_several_times(
    tmp_path: Path, alone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [Path(qkv.__file__).parent.parent, Path(__file__).parent.parent.parent]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "twice.py").write_text(TWICE)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, "twice.py"], cwd=tmp_path, check=True, capture_output=True)
    assert {verify(tmp_path / name / "step-00000004").digest for name in ("first", "second")} == {alone}


@pytest.mark.parametrize(
    "what", ["kill", *(pytest.param(what, marks=pytest.mark.slow) for what in ("interrupt", "raise"))]
)
def test_the_end_of_a_process_ends_all_and_the_run_goes_on(
    what: str, tmp_path: Path, alone: str, started: list[Any]
) -> None:
    def strike(event: Event) -> None:
        if isinstance(event, Updated) and event.step == 3:
            match what:
                case "kill":
                    started[0].kill()
                case "interrupt":
                    signal.raise_signal(signal.SIGINT)
                case _:
                    raise KeyboardInterrupt

    match what:
        case "kill":
            with pytest.raises(LostProcessError) as raised:
                trained(tmp_path / "run", 2, iter(PAIRS), strike)
            assert raised.value.got == f"process 1, which signal {signal.SIGKILL} ended"
        case "interrupt":
            outcome = trained(tmp_path / "run", 2, PAIRS, strike)
            assert (outcome.reason, outcome.step, outcome.signal) == ("interrupted", 3, signal.SIGINT)
        case _:
            with pytest.raises(KeyboardInterrupt):
                trained(tmp_path / "run", 2, PAIRS, strike)
    assert [process.exitcode is None for process in started] == [False]
    newest = latest_complete(tmp_path / "run", lambda _: None)
    assert newest is not None
    assert newest.name == ("step-00000003" if what == "interrupt" else "step-00000002")
    assert trained(tmp_path / "run", None).digest == alone


def test_an_error_of_another_process_keeps_its_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Any]
) -> None:
    missing = str(tmp_path / "missing.tsv")

    def other(work: Any, task: str, tables: Any, *rest: Any) -> Any:
        return partial(work, task, {**tables, "data": {"data": missing}}, *rest)

    monkeypatch.setattr(runs, "partial", other)
    with pytest.raises(DataError) as raised:
        trained(tmp_path / "run")
    assert raised.value.file == missing
    assert len(started) == 1


@pytest.mark.parametrize(
    "data",
    [
        [("a", object())],
        [("a", b"b")],
        [("a", Decimal(2))],
        [("a", {"b": "c"})],
    ],
)
def test_values_that_other_processes_cannot_be_given_are_refused(data: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError) as raised:
        trained(tmp_path / "run", 2, data)
    assert raised.value.argument.startswith("data:1")
    assert 'data="FILE"' in raised.value.hint
    assert not (tmp_path / "run").exists()


SCALARS = st.text(st.characters(exclude_categories=["Cs"])) | st.integers(-(2**53), 2**53) | st.floats() | st.booleans()


@given(st.lists(st.recursive(SCALARS, lambda items: st.lists(items, max_size=4), max_leaves=8), max_size=4))
def test_texts_numbers_and_lists_are_handed_over_unchanged(items: list[Any]) -> None:
    assert repr(as_plain(items)) == repr(items)


@given(st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=1))
def test_data_of_any_container_is_handed_over_as_lists(rows: list[list[int]]) -> None:
    forms: list[Any] = [rows, tuple(map(tuple, rows)), (iter(row) for row in rows), np.array(rows), map(np.array, rows)]
    assert [as_plain(form) for form in forms] == [rows] * len(forms)


@pytest.mark.parametrize("count", [0, -1, True, 1.0, "2", [2]])
def test_what_is_no_number_of_processes_is_refused(count: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        trained(tmp_path / "run", count)
    assert raised.value.argument == "processes"


@pytest.mark.parametrize(
    ("task", "settings", "argument"),
    [
        ("regress", {"data": [(0.0, 0.0), (1.0, 1.0)]}, "processes"),
        ("translate", {"data": PAIRS, "device": "meta", **TINY}, "device"),
    ],
)
def test_what_is_not_trained_in_several_processes_is_refused(
    task: str, settings: dict[str, Any], argument: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        qkv.train(task, out=tmp_path / "run", processes=2, **settings)  # type: ignore[call-overload]
    assert raised.value.argument == argument


def test_processes_alone_cut_each_batch_and_give_the_bits_of_as_many_parts(tmp_path: Path) -> None:
    """The run keeps its number of parts: one process goes on with it."""

    def stop(event: Event) -> None:
        if isinstance(event, Updated) and event.step == 3:
            raise InterruptedError

    settings = {**TINY, "data": PAIRS, "quiet": True, "accumulate": None}
    expected = qkv.train("translate", out=tmp_path / "one", parts=2, **settings).outcome.digest
    with pytest.raises(InterruptedError):
        qkv.train("translate", out=tmp_path / "two", processes=2, callbacks=[stop], **settings)
    assert qkv.train("translate", out=tmp_path / "two", **settings).outcome.digest == expected


def test_fewer_parts_than_processes_are_refused_by_the_flag(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    flags = ["--model", "gru", "--width", "8", "--tokenizer", "char", "--parts", "1", "--processes", "2"]
    refused = run("train", "translate", "--data", tmp_path / "pairs.tsv", "--out", tmp_path / "run", *flags)
    assert refused.exit_code == 2
    assert "--accumulate times --parts" in refused.stderr
    assert "--parts 2" in refused.stderr


def test_a_process_group_of_the_program_is_left_alone(tmp_path: Path, alone: str) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert trained(tmp_path / "run").digest == alone
        assert dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()
