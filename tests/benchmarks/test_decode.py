"""The contenders of `benchmarks.decode` share weights: their answers agree, and the floor holds every product."""

from pathlib import Path

import pytest
import torch

from benchmarks import decode

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("width", [1, 5])
def test_every_contender_answers_with_the_same_ids(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "BATCH", 3)
    monkeypatch.setattr(decode, "STEPS", 4)
    answers = {}
    for name in decode.NAMES:
        torch.manual_seed(0)
        folder = tmp_path / name.replace(" ", "").replace(",", "")
        answers[name] = decode.contender(name, width, 1, str(folder))()
    floor = answers.pop("floor")
    assert floor == []
    assert all(answer == answers["qkv"] for answer in answers.values())
