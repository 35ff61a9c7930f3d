"""Several processes that train together give the bits of one, and end together."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training.parts import CONFIG, SETTINGS, Shift, ShiftTask, run_training
from tests.training.together import together
from torch import Tensor, nn
from torch import distributed as dist

from qkv.checkpoint.folder import load
from qkv.checkpoint.rotation import latest_complete
from qkv.errors import ConfigError, DataError, QkvError
from qkv.metrics.figure import Figure
from qkv.training import processes as training_processes
from qkv.training.journal import NAME as JOURNAL
from qkv.training.journal import read_journal
from qkv.training.processes import Node, Processes, Tree, connected, current
from qkv.training_settings import Settings

pytestmark = pytest.mark.forks

FOUR = replace(SETTINGS, steps=14, batch_tokens=12, accumulate=4)


class Steady(Shift):
    """Counts nothing: what a process counts is not what all of them see."""

    def forward(self, source: Tensor) -> Tensor:
        return self.output(self.dropout(self.norm(torch.tanh(self.hidden(self.embedding(source))))))


class Struck(ShiftTask):
    """Something happens in one process at one of its batches."""

    def __init__(self, model: Shift, at: int | None = None, what: str = "kill") -> None:
        super().__init__(model)
        self.at, self.what, self.seen = at, what, 0

    def objective(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        if self.model.training:
            self.seen += 1
        if self.at is not None and self.seen == self.at:
            self.seen += 1
            if self.what == "nan":
                loss, count = super().objective(model, batch)
                return loss * torch.nan, count
            os.kill(os.getpid(), signal.SIGKILL if self.what == "kill" else signal.SIGTERM)
        return super().objective(model, batch)


def fresh(at: int | None = None, what: str = "kill") -> Struck:
    torch.manual_seed(3)
    return Struck(Steady(), at, what)


def digest(run: Path, settings: Settings = FOUR, task: Struck | None = None) -> list[Any]:
    outcome = run_training(run, settings, task or fresh())
    return [outcome.reason, outcome.step, outcome.digest]


def alone(folder: Path, settings: Settings = FOUR) -> list[Any]:
    (outcome,) = together(folder, 1, lambda _: digest(folder / "alone", settings))
    assert outcome[:2] == ["finished", settings.steps], outcome
    return outcome


@pytest.mark.parametrize(("batches", "sizes"), [pytest.param(4, [2, 4], marks=pytest.mark.slow), (7, [2, 3])])
def test_any_number_of_processes_gives_the_same_checkpoint(tmp_path: Path, batches: int, sizes: list[int]) -> None:
    settings = replace(FOUR, accumulate=batches)
    expected = alone(tmp_path, settings)
    for size in sizes:
        first, *others = together(tmp_path, size, lambda _, n=size: digest(tmp_path / f"run-{n}", settings))
        assert first == expected
        assert others == [[*expected[:2], ""]] * (size - 1)


@given(st.integers(1, 40), st.integers(1, 9))
def test_subtrees_of_any_parts_add_up_in_one_order(batches: int, size: int) -> None:
    vectors = [torch.rand(3, generator=torch.Generator().manual_seed(place)) - 0.5 for place in range(batches)]
    whole = Tree()
    for place, vector in enumerate(vectors):
        whole.add(Node(place, 0, [vector.clone()]))
    joint = Tree()
    for rank in range(size):
        part = Tree()
        for place in Processes(rank, size).part(batches):
            part.add(Node(place, 0, [vectors[place].clone()]))
        for node in part.nodes:
            joint.add(node)
    (expected,), (result,) = whole.total(), joint.total()
    assert torch.equal(expected, result)
    assert torch.allclose(result, torch.stack(vectors).sum(0), atol=1e-5)


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_processes_go_on_in_any_number_with_the_same_bits(tmp_path: Path, kills: int) -> None:
    """A process is killed at a batch of its own; the next ones are 4, 2, then 1."""
    settings = replace(FOUR, validate_every=2)
    expected, run, random = alone(tmp_path, settings), tmp_path / "run", Random(kills)
    killed = 0
    while killed < kills:
        size = (4, 2, 1)[killed % 3]
        victim, at = random.randrange(size), random.randint(1, 5 * 4 // size)
        results = together(
            tmp_path, size, lambda rank, v=victim, a=at: digest(run, settings, fresh(a if rank == v else None))
        )
        if results[victim] != "SIGKILL":  # all updates are done: begin again
            assert results[0] == expected
            shutil.rmtree(run)
            continue
        killed += 1
        others = [result for rank, result in enumerate(results) if rank != victim]
        assert [result[:2] for result in others] == [["LostProcessError", "processes"]] * (size - 1)
    for size in (4, 2, 1):
        assert together(tmp_path, size, lambda _: digest(run, settings))[0] == expected


def test_a_validation_may_take_longer_than_processes_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Struck):
        def validate(self, model: nn.Module) -> list[Figure]:
            time.sleep(4)
            return super().validate(model)

    monkeypatch.setattr(training_processes, "PATIENCE", timedelta(seconds=2))
    monkeypatch.setattr(training_processes, "ALIVE_EVERY", 0.2)
    settings = replace(FOUR, steps=2, validate_every=1)
    torch.manual_seed(3)
    results = together(tmp_path, 2, lambda _: digest(tmp_path / "run", settings, Slow(Steady())))
    assert [result[:2] for result in results] == [["finished", 2]] * 2


def test_a_signal_to_the_first_process_saves_and_ends_all(tmp_path: Path) -> None:
    expected, run = alone(tmp_path), tmp_path / "run"
    results = together(tmp_path, 2, lambda rank: digest(run, task=fresh(5 if rank == 0 else None, "stop")))
    assert [result[:2] for result in results] == [["interrupted", 3]] * 2
    assert together(tmp_path, 4, lambda _: digest(run))[0] == expected


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_in_one_process_is_that_of_the_first(tmp_path: Path, rank: int) -> None:
    results = together(tmp_path, 2, lambda own: digest(tmp_path / "run", task=fresh(3 if own == rank else None, "nan")))
    assert results[0] == ["TrainingError", "loss at step 2", "a finite number"]
    assert results[1][0] in {"TrainingError", "LostProcessError"}


@pytest.mark.parametrize(
    ("what", "named"),
    [("settings", "settings and data"), ("threads", "number of threads"), ("model", "settings and data")],
)
def test_processes_of_other_trainings_are_an_error_in_all_of_them(tmp_path: Path, what: str, named: str) -> None:
    def work(rank: int) -> list[Any]:
        other = what != "threads" and rank == 1
        config = {**CONFIG, **({"model": {"width": 9}} if other else {})}
        task = Struck(Steady(9 if other and what == "model" else 8))
        return [run_training(tmp_path / "run", FOUR, task, config=config).digest]

    results = together(tmp_path, 2, work, threads=lambda rank: 2 if what == "threads" and rank else 1)
    assert results == [["TrainingError", "processes", f"the same {named} in all of them"]] * 2


def test_weights_that_drift_apart_are_never_saved(tmp_path: Path) -> None:
    class Drifting(ShiftTask):
        def objective(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
            with torch.no_grad():
                self.model.hidden.weight[0, 0] += 1e-6
            return super().objective(model, batch)

    def work(rank: int) -> list[Any]:
        task = fresh() if rank == 0 else Drifting(Steady())
        return [run_training(tmp_path / "run", FOUR, task).digest]

    results = together(tmp_path, 2, work)
    assert results == [["TrainingError", "processes", "the same weights after the same updates in all of them"]] * 2
    assert latest_complete(tmp_path / "run", lambda _: None) is None


def test_a_batch_is_cut_into_parts_of_any_number_of_processes(tmp_path: Path) -> None:
    """Batches of four examples: of seven parts some are empty."""
    for accumulate, parts, sizes in ((1, 2, [2]), (2, 3, [4]), (1, 7, [3])):
        settings = replace(FOUR, accumulate=accumulate, parts=parts, steps=6, batch_tokens=24)
        folder = tmp_path / f"{parts}"
        expected = alone(folder, settings)
        for size in sizes:
            assert together(folder, size, lambda _, s=settings, n=size, f=folder: digest(f / f"{n}", s))[0] == expected


def test_parts_have_the_gradient_of_the_batch(tmp_path: Path) -> None:
    def losses(parts: int) -> list[float]:
        torch.manual_seed(3)
        task = Struck(Steady())
        task.model.dropout.p = 0.0
        settings = replace(SETTINGS, parts=parts, steps=3, log_every=1)
        run_training(tmp_path / f"{parts}", settings, task)
        return [line["loss"] for line in read_journal(tmp_path / f"{parts}" / JOURNAL) if line["kind"] == "train"]

    assert losses(3) == pytest.approx(losses(1), rel=1e-5)


def test_more_processes_than_parts_are_refused(tmp_path: Path) -> None:
    results = together(tmp_path, 2, lambda _: digest(tmp_path / "run", SETTINGS))
    expected = "at most 1, the number of parts of an update (accumulate times parts)"
    assert results == [["ConfigError", "processes", expected]] * 2
    assert not (tmp_path / "run").exists()


def test_a_run_of_an_older_version_goes_on_in_one_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"

    def older(task: Struck) -> list[Any]:
        with monkeypatch.context() as patch:
            patch.setattr(Settings, "parts_of_update", 1)
            return digest(run, task=task)

    (stopped,) = together(tmp_path, 1, lambda _: older(fresh(27, "stop")))
    assert stopped[:2] == ["interrupted", 6]
    assert load(latest_complete(run, lambda _: None)).trainer.numbers["sums"] == "sequence"
    shutil.copytree(run, tmp_path / "copy")
    results = together(tmp_path, 2, lambda _: digest(tmp_path / "copy"))
    assert results[0][:2] == ["ConfigError", "processes"]
    (resumed,) = together(tmp_path, 1, lambda _: digest(run))
    shutil.rmtree(run)
    (whole,) = together(tmp_path, 1, lambda _: older(fresh()))
    assert resumed == whole


def test_an_error_of_a_process_keeps_its_class_and_texts(tmp_path: Path) -> None:
    def work(rank: int) -> Sequence[object]:
        if rank:
            raise ConfigError("beam", "1", "2", "Omit it.")
        return current().receive(1)

    assert together(tmp_path, 2, work) == [["ConfigError", "beam", "1"]] * 2


def test_an_error_stays_the_reason_where_a_process_still_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has connected fails and ends before this one has connected to it."""
    monkeypatch.setattr(training_processes, "_CONNECTING", timedelta(milliseconds=200))
    store = dist.HashStore()
    store.set(f"{training_processes.ARRIVED}1", "")
    Processes(1, 2, store).fail(ConfigError("beam", "1", "2", "Omit it."))
    with pytest.raises(ConfigError, match="beam"):
        Processes(0, 2, store).connect()


def threads() -> set[str]:
    """The numbers of this process's threads, also those that Python does not know; where the system lists them."""
    return set(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not list threads there")
@pytest.mark.parametrize("what", ["finished", "error", "lost"])
def test_no_thread_of_the_connections_outlives_them(tmp_path: Path, what: str) -> None:
    """One that did would take Python's lock while the process ends, which aborts it.

    A module that is imported inside may hold PyTorch's default group from then on: `torch.distributed.nn` does.
    """

    def work(rank: int) -> bool:
        before, error = threads(), None
        try:
            processes = Processes(rank, 2, dist.FileStore(str(tmp_path / "store"), 2))
            with connected(processes):
                for name in [name for name in sys.modules if name.startswith("torch.distributed.nn")]:
                    del sys.modules[name]
                import_module("torch.distributed.nn")
                tree = Tree()
                for place in processes.part(2):
                    tree.add(Node(place, 0, [torch.ones(1)]))
                processes.total(tree, 2)
                if what == "error":
                    raise DataError("text", "text", "none")
                if what == "lost" and rank == 0:
                    processes.total(tree, 2)
        except QkvError as raised:
            error = raised  # its frames are alive until the end
        until = time.monotonic() + 60
        while not threads() <= before and time.monotonic() < until:  # the system lists a thread a moment longer
            time.sleep(0.01)
        assert (error is None) == (what == "finished" or (what == "lost" and rank == 1))
        return threads() <= before

    assert together(tmp_path, 2, work, connected=False) == [True, True]
