"""Exports that are killed: under the name that was given there is never a part of one."""

import json

import pytest
from tests.programs_in_forks import run_program


@pytest.mark.parametrize(
    ("kills", "names"),
    [(2, ["transformers", "trace.safetensors", "sentences.html"]), pytest.param(25, [], marks=pytest.mark.slow)],
)
def test_no_killed_export_leaves_a_part_under_its_name(kills: int, names: list[str]) -> None:
    done = run_program("tests.reliability.exports", "--kills", kills, "--names", *names)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert set(outcomes) >= set(names)
    assert {name: outcome["faults"] for name, outcome in outcomes.items() if outcome["faults"]} == {}
    assert all(sum(outcome["moments"].values()) == kills for outcome in outcomes.values())
