"""The engine benchmark: ratios pair neighbors, finished rows stay, pages keep hand-written text."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.engine import __main__ as command
from benchmarks.engine import findings, page, rows, store
from benchmarks.engine.cases import BOTH, FORWARD, by_chunks, difference, make
from benchmarks.engine.comparison import Comparison
from benchmarks.engine.growth import exponent
from benchmarks.engine.mechanisms import MECHANISMS, Size
from benchmarks.engine.timing import Patience, Ratio, Watch, by_turns, ratio

from qkv.planner.registry import BACKENDS

SMALL = Size((1, 2), 12, 14, 8, 6)


@pytest.fixture(autouse=True)
def _threads_and_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run sets both for its process."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def quiet(_: str) -> None:
    return None


class Clock:
    """A clock that only the contenders advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def contender(self, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds

        return run


def test_ratios_pair_neighbors_in_time() -> None:
    # The machine is ten times slower in the second half; the ratio of medians would be 5.5 or 20.
    ours, theirs = [1.0, 1.0, 10.0, 10.0], [2.0, 2.0, 20.0, 20.0]
    assert ratio(theirs, ours) == Ratio(2.0, 2.0, 2.0)
    assert ratio([2.0, 4.0], [1.0, 1.0, 1.0]) == Ratio(3.0, 2.0, 4.0)


def test_slow_contenders_get_fewer_turns_and_fast_ones_several_calls() -> None:
    clock = Clock()
    runs = {"fast": clock.contender(1e-4), "slow": clock.contender(2.0)}
    times = by_turns(runs, dict.fromkeys(runs, Patience(seconds=1.0, least=2, most=5)), clock)
    assert [len(own) for own in times.values()] == [5, 2]
    assert times["fast"] == pytest.approx([0.1] * 5)
    assert times["slow"] == pytest.approx([2000.0] * 2)


def test_growth_is_the_slope_in_a_double_logarithmic_plot() -> None:
    assert exponent({n: 0.1 * n for n in (10, 20, 40, 80)}) == pytest.approx(1.0)
    assert exponent({n: 3.0 * n**2 for n in (10, 20, 40, 80)}) == pytest.approx(2.0)


@pytest.mark.parametrize("what", [FORWARD, BOTH])
@pytest.mark.parametrize("name", MECHANISMS)
def test_the_full_tensor_and_qkv_agree(name: str, what: str) -> None:
    size = SMALL._replace(width=1) if name.endswith("line") else SMALL
    case = make(name, size._replace(leading=(2,)) if name == "projected" else size)
    ours = case.run(case.ours(), what)()
    assert len(ours) == (1 if what == FORWARD else 1 + len(case.leaves))
    assert difference(case.run(case.full()[0], what)(), ours) < 1e-4


def test_chunks_of_queries_are_the_whole() -> None:
    case = make("additive", SMALL)
    chunked = by_chunks(case.mechanism.full, 5)
    for what in (FORWARD, BOTH):
        assert difference(case.run(chunked, what)(), case.run(case.full()[0], what)()) < 1e-5


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = MECHANISMS["mean"]
    monkeypatch.setitem(MECHANISMS, "mean", type(wrong)(lambda q, k, v: 2 * wrong.full(q, k, v), wrong.given))
    kept = Comparison("mean", "mean", SMALL, passes=(FORWARD,)).measure(quiet, Watch(seconds=0.1))["passes"][FORWARD]
    assert "full tensor" not in kept["times"]
    assert "its result differs" in kept["skipped"]["full tensor"]


def test_a_row_measures_what_it_names_end_to_end(tmp_path: Path) -> None:
    kept = tmp_path / "engine.json"
    command.measure(["mean_16"], command.How(cpu=True, seconds=0.05), kept)
    row = store.read(kept)["mean_16"]
    assert set(row["passes"]) == {FORWARD, BOTH}
    for figures in row["passes"].values():
        assert figures["backend"] in BACKENDS
        assert figures["times"]["full tensor"]["low"] <= figures["times"]["full tensor"]["high"]
        others = {f"qkv, {name}" for name in ("linear", "reference", "blocked") if name != figures["backend"]}
        assert {"qkv", "full tensor", *others} <= set(figures["times"])
        assert max(figures["apart"].values()) < 1e-4
    target = tmp_path / "performance.md"
    page.write(store.read(kept), target, tmp_path / "engine.svg")
    assert f"| mean | 16 | {row['passes'][FORWARD]['backend']} |" in target.read_text(encoding="utf-8")
    assert (tmp_path / "engine.svg").stat().st_size > 1000


def test_finished_rows_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, measured = tmp_path / "engine.json", []

    class Fake:
        name = "fake"

        def measure(self, say: Callable[[str], None], watch: Watch) -> dict[str, Any]:
            measured.append(self.name)
            return {"kind": "comparison"}

    monkeypatch.setitem(rows.ROWS, "fake", Fake())
    store.keep("other", {"kind": "comparison"}, kept)
    for again in (False, False, True):
        command.measure(["fake"], command.How(again=again), kept)
    assert measured == ["fake", "fake"]
    assert set(store.read(kept)) == {"fake", "other"}
    assert list(tmp_path.iterdir()) == [kept], "no half-written file is left"


def test_a_row_without_its_data_is_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.measure(["translation_rnn"], command.How(), tmp_path / "engine.json")
    assert "needs --data" in capsys.readouterr().out
    assert not store.read(tmp_path / "engine.json")


def record(middle: float, other: float) -> dict[str, Any]:
    figures = {"ms": 1.0, "turns": 3, "low": middle, "high": middle}
    times = {
        "qkv": {"ms": 1.0, "turns": 3},
        "full tensor": {**figures, "middle": middle, "asked": 4.0},
        "qkv, blocked": {**figures, "middle": other, "low": other, "high": other},
    }
    kept = {"backend": "fused", "skipped": {"SDPA": "no such score"}, "apart": {}, "times": times}
    return {
        "kind": "comparison", "size": SMALL._asdict(), "outlier": False, "day": "2026-01-01",
        "clock": "two threads", "torch": "2", "machine": "two cores", "passes": {FORWARD: kept, BOTH: kept},
    }  # fmt: skip


def test_defects_are_found() -> None:
    kept = {"gaussian_4096": record(0.9, 0.5), "mean_4096": record(5.0, 1.1), "mean_16": record(0.5, 2.0)}
    assert {cell.row for cell in findings.slow(kept)} == {"gaussian_4096"}, "above n = 16 only"
    assert {cell.row for cell in findings.missed(kept)} == {"gaussian_4096", "mean_16"}
    assert {cell.row for cell in findings.wrongly_chosen(kept)} == {"gaussian_4096"}


@pytest.mark.slow
def test_the_page_keeps_what_people_wrote(tmp_path: Path) -> None:
    kept, target = tmp_path / "engine.json", tmp_path / "performance.md"
    kept.write_text(json.dumps({"gaussian_4096": record(0.9, 0.5)}), encoding="utf-8")
    target.write_text("# Performance\n\nFloors.\n", encoding="utf-8")
    for _ in range(2):
        page.write(store.read(kept), target, tmp_path / "engine.svg")
    text = target.read_text(encoding="utf-8")
    assert text.startswith("# Performance\n\nFloors.\n\n## Table\n")
    assert text.count("| gaussian | 4,096 (2 heads) | fused | 0.90 [0.90, 0.90] **✗** |") == 1
    target.write_text(text.replace("Floors.", "Other floors.") + "\nAfter.\n", encoding="utf-8")
    page.write(store.read(kept), target, tmp_path / "engine.svg")
    assert target.read_text(encoding="utf-8") == text.replace("Floors.", "Other floors.") + "\nAfter.\n"


def test_every_row_of_the_table_is_a_row() -> None:
    assert {f"{name}_{n}" for name in rows.TABLE for n in rows.TABLE_SIZES} <= set(rows.ROWS)
    assert set(rows.ASKED) <= set(rows.ROWS)
    assert all(name == row.name for name, row in rows.ROWS.items())
