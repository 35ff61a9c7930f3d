"""What scores do whatever surrounds them: under autocast, and where an example of one is asked for."""

import pytest
import torch

from qkv.errors import ConfigError
from qkv.scores.base import without_autocast
from qkv.scores.catalog import SCORES
from qkv.scores.example import example


def test_nothing_is_narrowed_inside_autocast() -> None:
    x = torch.ones(2, 2)
    with torch.autocast("cpu"):
        assert (x @ x).dtype == torch.bfloat16
        with without_autocast(x):
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16


@pytest.mark.parametrize("name", SCORES)
def test_every_score_has_an_example_or_says_that_it_takes_a_function(name: str) -> None:
    if SCORES[name].only_numbers or SCORES[name].tensors:
        assert type(example(name, 4)).__name__ == SCORES[name].kind
    else:
        with pytest.raises(ConfigError) as raised:
            example(name, 4)
        assert raised.value.argument == "score"
