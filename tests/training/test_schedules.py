import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.training.schedules import factor, learning_rate
from qkv.training_settings import Settings

NAMES = st.sampled_from(["constant", "inverse-sqrt", "linear", "cosine"])
WARMUP = st.integers(0, 500)
STEPS = st.integers(1, 2000)


@given(NAMES, WARMUP, STEPS)
def test_the_rate_rises_to_the_peak_then_never_rises_again(name, warmup, steps):
    rates = [factor(name, step, warmup, steps) for step in range(1, steps + 1)]
    before, after = rates[: max(0, warmup - 1)], rates[max(0, warmup - 1) :]
    assert all(0 < rate <= 1 for rate in rates)
    assert before == sorted(before)
    assert after == sorted(after, reverse=True)
    if 0 < warmup <= steps:
        assert rates[warmup - 1] == 1


@given(NAMES, st.integers(1, 500), STEPS)
def test_warm_up_is_a_straight_line(name, warmup, steps):
    for step in range(1, warmup):
        assert factor(name, step, warmup, steps) == step / warmup


@given(WARMUP, STEPS)
def test_after_warm_up_each_follows_its_formula(warmup, steps):
    for step in range(max(1, warmup), steps + 1):
        part = (step - warmup) / (steps - warmup + 1)
        assert factor("constant", step, warmup, steps) == 1
        assert factor("linear", step, warmup, steps) == pytest.approx(1 - part)
        assert factor("cosine", step, warmup, steps) == pytest.approx(0.5 + 0.5 * math.cos(math.pi * part))
        assert factor("inverse-sqrt", step, warmup, steps) == pytest.approx((max(1, warmup) / step) ** 0.5)


def test_inverse_sqrt_is_the_one_of_vaswani_et_al():
    width, warmup = 512, 4000
    settings = Settings(learning_rate=(width * warmup) ** -0.5, warmup=warmup, steps=100_000)
    for step in (1, 100, 4000, 4001, 100_000):
        assert learning_rate(settings, step) == pytest.approx(width**-0.5 * min(step**-0.5, step * warmup**-1.5))


@given(NAMES, WARMUP, st.integers(1, 60), st.integers(0, 60))
def test_past_its_end_a_schedule_keeps_its_last_rate(name, warmup, length, more):
    ended = Settings(schedule=name, warmup=warmup, steps=length)
    longer = Settings(schedule=name, warmup=warmup, steps=length + more, schedule_steps=length)
    rates = [learning_rate(ended, step) for step in range(1, length + 1)]
    assert [learning_rate(longer, step) for step in range(1, length + more + 1)] == rates + [rates[-1]] * more
