"""Labeled text rows: what is scored and what the page says."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from results.labels import ROWS, divide, judge

from qkv.data.labeled import read_labeled
from qkv.tasks.classify.predict import Classifier
from results import labels


class _Stubborn:
    """A model that gives every text the same label."""

    def __init__(self, label: str) -> None:
        self.label = label

    def classify(self, texts: Sequence[str]) -> list[str]:
        return [self.label] * len(texts)


def test_accuracy_is_the_mean_over_models(tmp_path: Path) -> None:
    test = tmp_path / "dev.tsv"
    test.write_text("1\tgood\n1\tfine\n1\tgrand\n0\tbad\n", encoding="utf-8")
    found = judge([cast("Classifier", _Stubborn(label)) for label in ("1", "0")], test)
    assert found == {"each": [75, 25], "mean": 50, "spread": 25}


def test_held_out_texts_are_not_trained_on_and_nothing_is_lost(tmp_path: Path) -> None:
    whole, train, valid = (tmp_path / name for name in ("whole.tsv", "train.tsv", "valid.tsv"))
    whole.write_text("".join(f"{line % 2}\ttext {line}\n" for line in range(50)), encoding="utf-8")
    divide(whole, (train, valid), 7, 0)
    parts = [{(each.label, each.text) for each in read_labeled(path)} for path in (train, valid)]
    assert list(map(len, parts)) == [43, 7]
    assert parts[0] | parts[1] == {(each.label, each.text) for each in read_labeled(whole)}
    divide(whole, (train, valid), 7, 1)
    assert {(each.label, each.text) for each in read_labeled(valid)} != parts[1]


def test_the_page_says_mean_and_each_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.row.ROOT", tmp_path)
    assert "| not run |" in labels.section()
    record = {
        "figures": {"each": [79.0, 80.0, 81.0], "mean": 80.0, "spread": 0.82},
        "usage": {"wall_seconds": 600, "processor_seconds": 90, "threads": 1, "load": [1, 2, 3], "cores": 2},
        "parameters": 1_000_000,
        "commands": ["qkv train classify"],
        "machine": "a machine",
    }
    ROWS[0].kept.mkdir(parents=True)
    ROWS[0].record.write_text(json.dumps(record), encoding="utf-8")
    page = labels.section()
    assert "| **80.00** ± 0.82 |" in page
    assert "- seeds 0, 1, 2: 79.00, 80.00, 81.00\n" in page
