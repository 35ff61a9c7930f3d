"""The stored table of launches keeps to its limits."""

import json
from typing import Any

import pytest
from benchmarks.launches.__main__ import CASES, RESULTS

ROWS: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
TILES = {"tiled.blocked": 4, "tiled.lookup": 4, "tiled.user_scores": 25}
"""How many tiles 8 × 2,048² scores have; others have one."""
CHUNKS = 32
"""How many parts 64 hidden features of each score have."""


def test_every_case_is_in_the_table() -> None:
    assert list(ROWS) == list(CASES)


@pytest.mark.parametrize("name", ROWS)
def test_a_tile_launches_at_most_twice_what_the_equation_does(name: str) -> None:
    row = ROWS[name]
    hidden = "additive" in name or name == "projected"
    tiles = CHUNKS if hidden else TILES.get(row["algorithm"], 1)
    forward, backward = row["composed"]
    assert row["forward"] <= 2 * forward * tiles
    assert row["backward"] <= 2 * (forward + backward) * tiles  # a tile is computed again


def test_nothing_waits_for_the_gpu() -> None:
    waits = [f"{direction} {kind}" for direction in ("forward", "backward") for kind in ("reads", "copies")]
    assert {row[wait] for row in ROWS.values() for wait in waits} == {0}


def test_the_causal_softcap_keeps_to_its_limits() -> None:
    row = ROWS["causal softcap"]
    assert row["algorithm"] == "tiled.blocked"
    assert row["forward"] <= 90
    assert row["backward"] <= 160
