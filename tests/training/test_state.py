import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.checkpoint.json_values import decode_mapping, encode
from qkv.errors import CheckpointError, ConfigError
from qkv.metrics.figure import Figure
from qkv.training.state import State, read_fingerprint, read_state

BLEU, LOSS = Figure("bleu", 30.0, "s"), Figure("loss", 2.0, "", False)
GOOD = State(step=8, ranked=(BLEU,), best_step=6, window_loss=1.5).to_json_value("abc")


@given(
    st.builds(
        State,
        *[st.integers(0, 9)] * 6,
        st.sampled_from([(), (LOSS,), (LOSS, BLEU)]),
        st.integers(0, 9),
        st.floats(0, 1e9),
    )
)
def test_a_state_comes_back_through_json(state):
    assert read_state(decode_mapping(encode(state.to_json_value("x"), "trainer"), "trainer.json")) == state


def test_the_fingerprint_is_kept():
    assert read_fingerprint(GOOD) == "abc"


@pytest.mark.parametrize("name", list(GOOD))
@pytest.mark.parametrize("bad", [None, True, -1, "x", [], 2**60, 0.5])
def test_a_damaged_field_is_named(name, bad):
    if (name, bad) in [("best", None), ("ties", []), ("window_loss", 0.5), ("batches", "x"), ("arithmetic", "x")]:
        return
    with pytest.raises(CheckpointError, match=rf"trainer\.json: {name}: expected"):
        read_fingerprint(GOOD | {name: bad}) if name == "batches" else read_state(GOOD | {name: bad})


def judge(values: list[float], figure: Figure, monitor: str | None = None) -> list[tuple[bool, int, int]]:
    state, seen = State(), []
    for step, value in enumerate(values, start=1):
        state.step = step
        figures = (Figure(figure.name, value, "", figure.higher_is_better), Figure("other", -value, ""))
        seen.append((state.judge(figures, monitor), state.best_step, state.waited))
        assert state.validated == step
    return seen


def test_the_direction_of_the_figure_decides():
    assert judge([1, 3, 3, 2], BLEU) == [(True, 1, 0), (True, 2, 0), (False, 2, 1), (False, 2, 2)]
    assert judge([3, 1, 1, 2], LOSS) == [(True, 1, 0), (True, 2, 0), (False, 2, 1), (False, 2, 2)]


def test_the_monitor_decides():
    assert [better for better, _, _ in judge([3, 1, 2], BLEU, "other")] == [True, True, False]


def rows(*values: tuple[float, ...]) -> list[tuple[Figure, ...]]:
    names = (("bleu", True), ("chrf", True), ("loss", False))
    return [tuple(Figure(name, x, "", up) for x, (name, up) in zip(row, names, strict=True)) for row in values]


def test_a_figure_that_does_not_move_leaves_the_choice_to_the_next_one():
    state, seen = State(), []
    for step, row in enumerate(rows((0, 8, 3), (0, 92, 2), (0, 92, 1), (0, 91, 0.5), (1, 3, 9), (1, 3, 9)), start=1):
        state.step = step
        seen.append((state.judge(row, "bleu"), state.best_step, state.waited))
    assert seen == [(True, 1, 0), (True, 2, 0), (True, 3, 0), (False, 3, 1), (True, 5, 0), (False, 5, 1)]


@given(st.permutations(range(3)), st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1))
def test_the_best_validation_is_the_first_of_the_largest_in_order(order, values):
    state, rank = State(), list(order)
    for step, row in enumerate(values, start=1):
        state.step = step
        state.judge(tuple(Figure(str(i), float(row[i]), "") for i in rank), None)
    keys = [tuple(row[i] for i in rank) for row in values]
    assert state.best_step == 1 + keys.index(max(keys))


def test_a_state_of_an_earlier_version_has_no_ties():
    old = {name: value for name, value in GOOD.items() if name != "ties"}
    state = read_state(old)
    assert state.best == BLEU
    assert not state.judge((BLEU, LOSS), "bleu")


def test_what_is_no_number_is_never_better():
    values = [math.nan, math.inf, 1, math.nan]
    assert judge(values, BLEU) == [(False, 0, 1), (False, 0, 2), (True, 3, 0), (False, 3, 1)]


def test_without_figures_the_newest_is_the_best():
    state = State(step=5)
    assert state.judge((), None)
    assert (state.best_step, state.best, state.waited) == (5, None, 0)


def test_an_unknown_monitor_gives_the_nearest_name():
    with pytest.raises(
        ConfigError, match=r'monitor: expected one of the figures bleu; got "blue"\. Did you mean "bleu"'
    ):
        State().judge((BLEU,), "blue")
