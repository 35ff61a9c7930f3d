"""The checker accepts every right answer, accepts no wrong one, and names most mistakes."""

import math
from itertools import combinations

import pytest
import torch
from tests.contract.calls import by_part
from tests.course.more_answers import RIGHT, WRONG
from tests.course.wrong_answers import ANSWERS

from qkv.course import EXERCISES, check
from qkv.errors import ConfigError

LEAST = 6
"""How many of eight wrong answers must be named."""


def test_every_exercise_has_answers() -> None:
    assert set(ANSWERS) == set(EXERCISES)
    assert all(len(answers["wrong"]) == 8 and len(answers["right"]) >= 2 for answers in ANSWERS.values())


@pytest.mark.parametrize("exercise", ANSWERS)
def test_right_answers_are_accepted(exercise: str) -> None:
    for number, answer in enumerate(ANSWERS[exercise]["right"]):
        verdict = check(exercise, answer)
        assert verdict.right, (number, verdict)
        assert repr(verdict).startswith("✓")


@pytest.mark.parametrize("exercise", ANSWERS)
def test_wrong_answers_are_refused_and_most_are_named(exercise: str) -> None:
    verdicts = [check(exercise, answer) for answer in ANSWERS[exercise]["wrong"]]
    assert not any(verdict.right for verdict in verdicts), verdicts
    assert sum(verdict.named for verdict in verdicts) >= LEAST, verdicts


@pytest.mark.parametrize("exercise", EXERCISES)
def test_answers_from_the_text_alone_are_judged_too(exercise: str) -> None:
    assert len(RIGHT[exercise]) >= 3
    assert [answer.__name__ for answer in RIGHT[exercise] if not check(exercise, answer).right] == []
    verdicts = [check(exercise, answer) for answer in WRONG[exercise]]
    assert len(verdicts) == 8
    assert not any(verdict.right for verdict in verdicts), verdicts
    assert sum(verdict.named for verdict in verdicts) >= LEAST, verdicts


def test_a_function_that_makes_no_known_mistake_is_probed() -> None:
    root = 8**0.5
    halved = check("attention", lambda query, key, value: (query @ key.mT / root).sigmoid() @ value / 2)
    assert "sum to 1" in halved.message
    after = check("attention", lambda query, key, value: ((query @ key.mT).softmax(-1) @ value).sin())
    assert "value" in after.message
    alone = check("kernel_regression", lambda query, key, value, bandwidth: (query[:, None] * key).cos() @ value)
    assert "`bandwidth` is not used" in alone.message
    assert all(verdict.named for verdict in (halved, after, alone))


def test_what_is_certain_is_said_before_what_gives_the_same_numbers() -> None:
    """NaN equals NaN, and a softmax forgets what is the same for all keys: other mistakes look like these."""

    def times_infinity(query, key, value, mask):  # type: ignore[no-untyped-def]
        return (query @ key.mT / query.shape[-1] ** 0.5 + ~mask * -math.inf).softmax(-1) @ value

    assert "do not multiply a mask by ∞" in check("masked_attention", times_infinity).message

    def row(state, keys, annotations, vector):  # type: ignore[no-untyped-def]
        return (torch.tanh(state + keys) @ vector).softmax(0)[None] @ annotations

    assert "of size 1 too many, with the right numbers: (1, 4)" in check("context", row).message
    blind = check("context", lambda state, keys, annotations, vector: (keys.tanh() @ vector).softmax(0) @ annotations)
    assert "the state changes nothing: it is not used, or tanh" in blind.message
    written = check("copying", lambda words, positions, ids: words.softmax(-1))
    assert "`positions` is not used" in written.message


def test_a_query_that_reads_the_wrong_keys_is_named() -> None:
    """Whatever mask an answer uses in place of the right one, the first wrong pair is named."""

    def under(change):  # type: ignore[no-untyped-def]
        def answer(query, key, value, mask):  # type: ignore[no-untyped-def]
            scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~change(mask), -math.inf)
            return scores.softmax(-1).nan_to_num(0.0) @ value

        return answer

    causal = check("masked_attention", under(lambda mask: torch.ones_like(mask).tril()))
    assert "may not see" in causal.message
    fewer = check("masked_attention", under(lambda mask: mask & (torch.arange(mask.shape[-1]) > 0)))
    assert "query 1 of item 0 does not read key 0" in fewer.message
    blind = check("attention", lambda query, key, value: query @ key.mT.softmax(-1)[..., :-1] @ value[..., :-1, :])
    assert "does not read key 4" in blind.message
    assert all(verdict.named for verdict in (causal, fewer, blind))


def test_the_first_wrong_entry_of_a_mask_is_said() -> None:
    def corner(new, past):  # type: ignore[no-untyped-def]
        mask = torch.ones(new, past + new, dtype=torch.bool).tril(past)
        mask[0, 0] = False
        return mask

    assert (
        "new = 3, past = 4, row 0, column 0 is False and should be True; 1 of 21"
        in check("causal_mask", corner).message
    )


def test_the_rounding_of_large_angles_hides_no_mistake() -> None:
    def times(length, width):  # type: ignore[no-untyped-def]
        angle = torch.arange(length)[:, None] * 10000 ** (torch.arange(0, width, 2) / width)
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)

    assert "it is multiplied" in check("positions", times).message


@pytest.mark.parametrize("exercise", EXERCISES)
def test_every_wrong_form_is_refused_and_named(exercise: str) -> None:
    """Each form by itself: its own message, unless another form gives the same numbers."""
    task = EXERCISES[exercise]
    for step, forms in task.mistakes.items():
        for form, message in forms.items():
            verdict = check(exercise, lambda *inputs, step=step, form=form: task.solve(*inputs, **{step: form}))
            assert not verdict.right, (step, form)
            assert verdict.named, (step, form, verdict)
            assert message in verdict.message or verdict.message in _messages(exercise), (step, form, verdict)


def _messages(exercise: str) -> set[str]:
    return {message for forms in EXERCISES[exercise].mistakes.values() for message in forms.values()}


@by_part
@pytest.mark.parametrize("exercise", EXERCISES)
def test_two_mistakes_at_once_are_both_named(exercise: str, whole: bool) -> None:
    """In the fast suite a third of the pairs."""
    task = EXERCISES[exercise]
    steps = [(step, next(iter(forms))) for step, forms in task.mistakes.items()]
    named, two = 0, list(combinations(steps, 2))[:: 1 if whole else 3]
    for (one, form), (other, second) in two:
        switches = {one: form, other: second}
        verdict = check(exercise, lambda *inputs, switches=switches: task.solve(*inputs, **switches))
        named += verdict.named
        assert not verdict.right, switches
    assert named == len(two)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda query, key, value: None, "nothing"),
        (lambda query, key, value: (value, query), "2 things"),
        (lambda query, key, value: 3.0, "float"),
        (lambda query, key, value: query.mul_(2.0), "changes its arguments"),
        (lambda query, key: query, "TypeError"),
        (lambda query, key, value: query @ key @ value, "transpose one?"),
        (lambda query, key, value: (query @ key.transpose(0, 1)).softmax(-1) @ value, "leading dimensions"),
        (lambda query, key, value: 2 * torch.nn.functional.scaled_dot_product_attention(query, key, value), "2 times"),
    ],
)
def test_what_is_no_answer_is_said(answer, words: str) -> None:  # type: ignore[no-untyped-def]
    verdict = check("attention", answer)
    assert not verdict.right
    assert words in verdict.message


def test_an_unknown_exercise_is_an_error() -> None:
    with pytest.raises(ConfigError, match='"attention"'):
        check("atention", lambda: None)


def test_a_verdict_is_shown_in_a_notebook() -> None:
    shown = check("attention", lambda query, key, value: (query @ key.mT).softmax(-1) @ value)._repr_html_()
    assert "√d" in shown
    assert shown.startswith("<p")
    code = check("causal_mask", lambda new, past: torch.ones(new, past + new, dtype=torch.bool).tril())._repr_html_()
    assert "<code>past</code>" in code


def test_the_nearest_mistake_is_named() -> None:
    """−10⁹ for −∞ is wrong only where nothing is seen; −10 comes within the tolerance of it, and is another mistake."""

    def very_small(query, key, value, mask):  # type: ignore[no-untyped-def]
        return (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~mask, -1e9).softmax(-1) @ value

    assert "average of all values" in check("masked_attention", very_small).message
