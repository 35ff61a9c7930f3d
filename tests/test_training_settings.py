import math

import pytest

from qkv.errors import ConfigError
from qkv.settings import options_of
from qkv.training_settings import Settings


@pytest.mark.parametrize("name", ["steps", "batch_tokens", "accumulate", "validate_every", "log_every", "keep"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8", None])
def test_counts_are_whole_and_positive(name, value):
    with pytest.raises(ConfigError, match=f"^{name}: expected an integer, at least 1; got"):
        Settings(**{name: value})


@pytest.mark.parametrize("name", ["warmup", "patience", "seed"])
def test_counts_that_may_be_zero(name):
    assert getattr(Settings(**{name: 0}), name) == 0
    with pytest.raises(ConfigError, match=f"^{name}: expected an integer, at least 0; got -1"):
        Settings(**{name: -1})


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("learning_rate", [0, -1e-3, math.inf, math.nan, "x", None, True]),
        ("weight_decay", [-1, math.inf, math.nan, None]),
        ("label_smoothing", [-0.1, 1.0, math.nan]),
        ("clip", [-1, math.inf, math.nan, None]),
        ("betas", [(0.9, 1.0), (-0.1, 0.9), (0.9,), (0.9, 0.9, 0.9), (0.9, None)]),
        ("schedule", ["cosin", "", None]),
        ("precision", ["float16", "bf16"]),
    ],
)
def test_values_outside_their_range_are_refused_by_name(name, bad):
    for value in bad:
        with pytest.raises(ConfigError, match=f"^{name}: expected"):
            Settings(**{name: value})


def test_limits_themselves_are_accepted():
    Settings(weight_decay=0, label_smoothing=0, clip=0, betas=(0.0, 0.0), learning_rate=1, warmup=0)


def test_every_field_is_explained():
    assert all(known.help for known in options_of(Settings).values())
