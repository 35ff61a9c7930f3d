"""Copying beyond the lengths of training: strings, scores and the section of the page."""

import json
from pathlib import Path

import pytest
import torch
from results.long_copying import LONGEST, MECHANISMS, TIMES, section, strings
from results.transduction_data import write

from qkv.data.corpus import read_tsv
from qkv.tasks.run import train_run
from qkv.tasks.translate.recipe import RECIPE
from results import long_copying


def test_strings_are_copied_and_tests_are_as_long_as_they_say() -> None:
    pairs = strings(20, 3, TIMES * LONGEST, TIMES * LONGEST)
    assert {len(pair.source) for pair in pairs} == {10 * LONGEST}
    assert all(pair.source == pair.target for pair in pairs)


@pytest.mark.parametrize("flags", MECHANISMS.values(), ids=MECHANISMS)
def test_each_mechanism_trains_from_its_flags_and_is_scored(flags: tuple[str, str], tmp_path: Path) -> None:
    write(strings(60, 0, 1, 4), tmp_path / "train.tsv")
    name, value = flags
    tables = {
        "data": {"data": tmp_path / "train.tsv", "valid_data": tmp_path / "train.tsv"},
        "tokenizer": {"tokenizer": "char", "minimum": 1},
        "model": {"model": "gru", "embedding": 8, "hidden": 8, "attention": 8, name.strip("-"): value},
        "training": {"steps": 2, "batch_tokens": 256, "validate_every": 2, "warmup": 1},
    }
    train_run(RECIPE, RECIPE.load_settings(tables), tmp_path / "run")
    found = long_copying.score(tmp_path / "run", {"short": read_tsv(tmp_path / "train.tsv")[:5]})
    assert set(found["short"]) == {"exact", "letter_errors"}
    assert torch.tensor(list(found["short"].values())).isfinite().all()


def test_the_section_shows_mean_and_range_of_the_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cell(errors: float) -> dict[str, object]:
        figures = {"letter_errors": errors, "exact": 100 - errors}
        return {
            "figures": {"as in training": figures, "ten times as long": figures},
            "usage": {"processor_seconds": 90.0, "threads": 1},
            "command": "qkv train translate",
        }

    record = {"machine": "two cores", **{name: {"0": cell(1.0), "1": cell(3.0)} for name in MECHANISMS}}
    monkeypatch.setattr("results.row.ROOT", tmp_path)
    place = tmp_path / "results" / "runs" / "long_copying" / "figures.json"
    assert section() == "", "not run yet"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(record))
    page = section()
    assert (
        page.count("| 2.0 (1.0 to 3.0) | 98.0 (97.0 to 99.0) | 2.0 (1.0 to 3.0) | 98.0 (97.0 to 99.0) | 1.5 min |") == 4
    )
