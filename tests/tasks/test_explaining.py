"""`qkv explain` takes every name of a score that `qkv train` takes."""

import re

import pytest

from qkv.errors import ConfigError
from qkv.scores.catalog import SCORES
from qkv.tasks.explaining import Question, answer


@pytest.mark.parametrize("name", [*SCORES, *SCORES.aliases])
def test_every_score_is_explained_in_any_spelling(name: str) -> None:
    small = {"queries": 8, "keys": 8, "width": 4}
    plan = answer(Question(score=name.replace("_", "-"), **small))
    assert plan == answer(Question(score=name, **small))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("aditive", "score: expected the name of a score; got 'aditive'. Did you mean \"additive\"?"),
        ("concat", 'score: expected additive or nonlocal-concat; got "concat".'),
        ("softmax", 'It is a normalizer: normalizer="softmax".'),
        ("none", 'score: expected a score of queries and keys; got "none".'),
    ],
)
def test_another_name_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        answer(Question(score=name))
