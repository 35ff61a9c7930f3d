"""Models with NaN or infinite weights: every task says so, and none invents an answer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fuzz.models import families

from qkv.checkpoint.folder import save
from qkv.data.corpus import Pair
from qkv.errors import QkvError
from qkv.tasks.load import load
from qkv.tasks.translate.aligner import Aligner

TOLD = r"model: expected scores that are numbers; got NaN for {}\. The parameters hold NaN or Inf"


@pytest.mark.parametrize(
    ("name", "use", "where"),
    [
        ("gru", lambda model: model.translate(["the cat"]), "row 0 at step 0"),
        ("transformer", lambda model: model.translate(["the cat"], beam=3), "row 0 at step 0"),
        ("gru", lambda model: Aligner(model).align([Pair("the cat", "mat", 1)]), "the attention attention"),
        ("language", lambda model: model.generate(["the"], tokens=2), "token 1 after the prompt"),
        ("language", lambda model: next(model.stream("the", temperature=0)), "token 1 after the prompt"),
        ("language", lambda model: model.evaluate("the cat sat"), "this text"),
        ("classifier", lambda model: model.classify(["the cat", "mat"]), "one of the texts 1 to 2"),
        ("tagger", lambda model: model.tag([["the", "cat"]]), "one of the texts 1 to 1"),
    ],
)
def test_scores_that_are_not_numbers_are_an_error(
    name: str, use: Callable[[Any], object], where: str, tmp_path: Path
) -> None:
    contents = families()[name]
    broken = {key: torch.full_like(tensor, torch.nan) for key, tensor in contents.model.items()}
    save(tmp_path / "run", replace(contents, model=broken))
    with pytest.raises(QkvError, match=TOLD.format(where)):
        use(load(tmp_path / "run"))
