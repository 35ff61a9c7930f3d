"""How long a translation may become by default, and that a cut is said."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv.errors import CheckpointError
from qkv.tasks.translate.limits import STORED, LengthLimit
from qkv.tasks.translate.predict import Translator

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 300)), max_size=30)


def limit_of(pairs: list[tuple[int, int]]) -> LengthLimit:
    return LengthLimit.of([tuple(np.array(pairs or [(1, 0)], dtype=np.int64).T)])


@given(LENGTHS, st.integers(0, 30))
def test_every_target_trained_on_fits_and_parts_change_nothing(pairs: list[tuple[int, int]], cut: int) -> None:
    limit = limit_of(pairs)
    for source, target in pairs:
        assert limit(torch.tensor([source])) >= target + 1
    parts = [tuple(np.array(part, dtype=np.int64).reshape(-1, 2).T) for part in (pairs[:cut], pairs[cut:])]
    assert LengthLimit.of(parts) == limit
    assert LengthLimit.stored(json.loads(json.dumps(limit.to_json_value())), "run") == limit
    assert LengthLimit.all([limit_of(pairs[:cut]), limit_of(pairs[cut:])]) == limit
    sources = torch.arange(1, 60)
    assert (limit(sources).diff() >= 0).all()
    assert (limit(sources) >= 3 * sources + 16).all()


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 15)), max_size=9))
def test_ordinary_pairs_keep_the_usual_limit(pairs: list[tuple[int, int]]) -> None:
    assert limit_of([(source, 3 * source + more) for source, more in pairs]) == LengthLimit()


@pytest.mark.parametrize("bad", ["x", [[1]], [[1, "2"]], [[0, 3]], [[True, 3]], [3], {"a": 1}])
def test_a_damaged_limit_is_named(bad: object) -> None:
    with pytest.raises(CheckpointError, match=STORED):
        LengthLimit.stored(bad, "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of short sources with long targets, hardly trained."""
    folder, random = tmp_path_factory.mktemp("limits"), Random(0)
    words = {letter: letter * 9 for letter in "abcd"}
    sources = {"".join(random.choices("abcd", k=random.randint(4, 7))) for _ in range(60)}
    pairs = [(source, " ".join(words[letter] for letter in source)) for source in sorted(sources)]
    sizes = {"model": "gru", "width": 16, "dropout": 0.0, "batch_tokens": 512, "holdout": 8}
    qkv.train("translate", data=pairs, out=folder / "run", tokenizer="char", steps=2, validate_every=1, **sizes)
    return folder / "run"


def test_a_run_stores_how_long_its_targets_were(run: Path) -> None:
    translator = Translator.load(run)
    assert translator.limit.longest[-1][1] >= 50
    assert json.loads((run / "run.json").read_text())["config"][STORED] == translator.limit.to_json_value()
    (text,) = translator.translate_fully(["abcdabc"])
    assert text.finished or len(text.target_tokens) > 7 * 3 + 16


def test_a_training_says_how_many_translations_were_cut(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    cut = [row.get("cut", 0.0) for row in rows if row["kind"] == "validation"]
    found = Translator.load(run / "step-00000002").translate_fully(["abcd", "dcba"])
    assert cut[-1] == 100.0
    assert not any(translation.finished for translation in found)
