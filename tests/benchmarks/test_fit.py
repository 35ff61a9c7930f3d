"""Tables of coefficients say what they come from, and claim the models that they were measured on."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.fit import RESULTS, SCALED, TABLES, completed, corrected, models_of

from benchmarks import fit
from qkv.planner import costs


def test_the_models_are_those_of_every_time() -> None:
    assert models_of([{"model": 17}, {"model": 1}, {"model": 17}]) == (1, 17)
    assert models_of([{"model": 1}, {}]) == ()
    assert models_of([{"model": -1}]) == ()


def test_algorithms_that_were_not_timed_take_a_similar_table_times_one_factor() -> None:
    similar = {"one": {"forward": {"call": 10.0, "pairs": 1.0}}, "other": {"forward": {"call": 4.0}}}
    rows: list[dict[str, Any]] = [
        {"algorithm": "one", "direction": "forward", "counts": {"pairs": pairs}, "us": 3 * (10 + pairs)}
        for pairs in (5.0, 50.0, 500.0)
    ]
    found, added = completed({"one": {"forward": {"call": 30.0, "pairs": 3.0}}}, similar, rows)
    assert found == {"one": {"forward": {"call": 30.0, "pairs": 3.0}}, "other": {"forward": {"call": 12.0}}}
    assert added == ["other, forward"]


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.json")), ids=lambda path: path.stem)
def test_a_table_names_the_models_of_its_times_and_what_it_was_measured_by(path: Path) -> None:
    table = json.loads(path.read_text(encoding="utf-8"))
    assert table["measured"]
    rows = fit.kept(RESULTS / f"fit-{table['name']}.json")
    assert tuple(table["processor"]["models"]) == (models_of(rows) if rows else ())


def test_a_corrected_algorithm_takes_what_was_measured_beside_another() -> None:
    table = next(each for each in costs.all_tables() if each.name == SCALED).coefficients
    row = {"mechanism": "scaled_dot", "mask": "all", "size": [[8, 8], 64, 64, 64, 64], "threads": 1}
    row |= {"direction": "forward", "algorithm": "sdpa.short", "against": "sdpa.flash", "times as fast": 0.5}
    found = corrected(table, [row])
    problem = fit.make(fit.Variant("scaled_dot"), fit.Size((8, 8), 64, 64, 64, 64), "forward").plan().problem
    times = {
        name: fit._predicted(fit._work(name, problem), found[name]["forward"]) for name in ("sdpa.flash", "sdpa.short")
    }
    assert times["sdpa.flash"] / times["sdpa.short"] == pytest.approx(0.5, rel=0.05)
    assert {name: own for name, own in found.items() if name != "sdpa.short"} == {
        name: own for name, own in table.items() if name != "sdpa.short"
    }


@pytest.mark.parametrize("table", costs.all_tables(), ids=lambda table: table.name)
def test_reading_memory_costs_no_more_than_memory_can(table: costs.CostTable) -> None:
    for directions in table.coefficients.values():
        for direction, own in directions.items():
            # A table made by a factor from another one inherits its limit times that factor.
            assert max(own.get(kind, 0.0) for kind in fit.IN_MEMORY) <= 3 * fit.MOST[direction]


def test_a_coefficient_at_its_limit_leaves_the_rest_to_other_work() -> None:
    most = fit.MOST["forward"]
    for each, expected in ((most / 2, most / 2), (10 * most, most)):
        rows: list[dict[str, Any]] = [
            {"us": 10.0 + each * n, "counts": {"numbers of keys in memory": n}, "parallel": 1} for n in (10.0, 1e3, 1e4)
        ]
        assert fit._least_squares(rows, {}, "forward")["numbers of keys in memory"] == pytest.approx(expected)


@pytest.mark.parametrize("direction", fit.DIRECTIONS)
def test_no_operation_is_free(direction: str) -> None:
    rows: list[dict[str, Any]] = [{"us": 10.0, "counts": {"operations": n}, "parallel": 1} for n in (1e3, 1e4, 1e5)]
    assert fit._least_squares(rows, {}, direction)["operations"] == pytest.approx(fit.LEAST[direction])


def test_times_that_are_measured_again_replace_those_of_the_same_problem(tmp_path: Path) -> None:
    path, rows = tmp_path / "fit.json", fit.kept(RESULTS / "fit-amd-zen3-avx2.json")
    fit.keep(path, rows)
    assert fit.kept(path) == rows
    place = [(row["mechanism"], row["mask"], row["size"], row["direction"]) for row in rows]
    again = [{**row, "us": 1.0} for row, at in zip(rows, place, strict=True) if at == place[0]]
    fit.keep(path, again)
    times = [row["us"] for row in fit.kept(path)]
    assert len(times) == len(rows)
    assert times.count(1.0) == len(again)
