"""Text of which a tokenizer knows little is reported, or refused, before a model is trained on it."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

import qkv
from qkv.errors import DataError

RANDOM = Random(0)
JOINED = ["".join(RANDOM.choices("天地玄黄宇宙洪荒日月盈昃", k=9)) for _ in range(60)]
SPACED = [" ".join(line) for line in JOINED]
HALF = [f"{line} 天 。" if number % 3 else line for number, line in enumerate(JOINED)]
TINY = {"steps": 1, "model": "gru"}

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("translate", {"source": JOINED, "target": SPACED}, "training sources"),
    ("translate", {"source": SPACED, "target": JOINED}, "training targets"),
    (
        "translate",
        {"source": SPACED, "target": SPACED, "valid_source": SPACED[:9], "valid_target": JOINED[:9]},
        "validation targets",
    ),
    ("generate", {"text": JOINED, "context": 4, "holdout": 0.2, "minimum": 2}, "training text"),
    ("generate", {"text": SPACED, "valid_text": JOINED[:9], "context": 4}, "validation text"),
    ("classify", {"data": [("天地"[number % 2], line) for number, line in enumerate(JOINED)]}, "training texts"),
    ("tag", {"data": [[(line, "天地"[number % 2])] for number, line in enumerate(JOINED)]}, "training texts"),
]


@pytest.mark.parametrize(("task", "data", "part"), REFUSED, ids=[f"{task} {part}" for task, _, part in REFUSED])
def test_text_that_the_tokenizer_does_not_know_is_refused(
    task: Any, data: dict[str, Any], part: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as raised:
        qkv.train(task, **data, **TINY, tokenizer="word", out=tmp_path / "run", quiet=True)
    assert raised.value.argument == part
    assert "bpe" in raised.value.hint
    assert "char" in raised.value.hint


@pytest.mark.parametrize("side", ["source", "target"])
def test_many_unknown_tokens_are_reported_with_their_side(
    side: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sides: dict[str, Any] = {"source": SPACED, "target": SPACED, side: HALF}
    qkv.train("translate", **sides, **TINY, tokenizer="word", out=tmp_path / "run")
    said = capfd.readouterr().err
    assert f"training {side}s: " in said
    assert f"validation {side}s: " in said
    assert "tokens are unknown. --tokenizer bpe" in said
    other = "source" if side == "target" else "target"
    assert f"training {other}s: " not in said


def test_text_that_is_known_is_trained_on_without_a_word(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for tokenizer in ("char", "bpe"):
        qkv.train("translate", source=JOINED, target=JOINED, **TINY, tokenizer=tokenizer, out=tmp_path / tokenizer)
    assert "unknown" not in capfd.readouterr().err
