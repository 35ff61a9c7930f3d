"""Check an answer to an exercise on random inputs, and name the mistake in a wrong one.

Each exercise is one function whose steps can be swapped for the usual mistakes. An answer that differs from the right
one is compared with every wrong form and every pair of them; the first that gives the same numbers names what is wrong.
"""

import html
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, final

import torch
from torch import Tensor

from qkv.course.exercises import EXERCISES, Exercise
from qkv.errors import ConfigError, nearest

_TRIALS = 6
_NEAR = 1e-4


@final
@dataclass(frozen=True, repr=False)
class Verdict:
    """What a check says about an answer.

    Args:
        right: whether the answer is right for every input.
        message: what is wrong, or that nothing is.
        named: whether the mistake is known; otherwise the message only says where the numbers differ.
    """

    right: bool
    message: str
    named: bool = True

    def __repr__(self) -> str:
        return f"{'✓' if self.right else '✗'} {self.message}"

    def _repr_html_(self) -> str:
        color = "#1a7f37" if self.right else "#b42318"
        text = html.escape(self.message).replace("\n", "<br>")
        return f'<p style="color: {color}; font-weight: 600">{"✓" if self.right else "✗"} {text}</p>'


def check(exercise: str, answer: Callable[..., Any]) -> Verdict:
    """Run an answer on random inputs, and say whether it is right, or what the mistake is.

    Args:
        exercise: its name, see `EXERCISES`.
        answer: the function; its arguments are those of the exercise.

    Returns:
        The verdict; a cell of a notebook that ends in it shows it.

    Raises:
        ConfigError: there is no such exercise.

    Example:
        >>> import torch
        >>> check("causal_mask", lambda new, past: torch.ones(new, past + new, dtype=torch.bool).tril())
        ✗ the diagonal starts at the first key: the new tokens come after `past` older ones, which all of them may see
        >>> check("causal_mask", lambda new, past: torch.ones(new, past + new, dtype=torch.bool).tril(past)).right
        True
    """
    if exercise not in EXERCISES:
        raise ConfigError("exercise", "a known exercise", f'"{exercise}"', nearest(exercise, list(EXERCISES)))
    task = EXERCISES[exercise]
    trials = [task.draw(torch.Generator().manual_seed(seed), seed) for seed in range(_TRIALS)]
    answers = []
    for inputs in trials:
        copies = tuple(item.clone() if isinstance(item, Tensor) else item for item in inputs)
        try:
            result = answer(*copies)
        except Exception as error:  # whatever a learner's function raises is the answer
            return Verdict(False, _raised(error, task, inputs))
        if (problem := _unusable(result)) is not None:
            return Verdict(False, problem)
        if any(isinstance(new, Tensor) and not torch.equal(new, old) for new, old in zip(copies, inputs, strict=True)):
            return Verdict(False, "it changes its arguments: work on new tensors, without `x[...] = ...` or `x += ...`")
        answers.append(result.detach())
    return _judge(task, trials, answers)


def _judge(task: Exercise, trials: list[tuple[Any, ...]], answers: list[Tensor]) -> Verdict:
    expected = [task.solve(*inputs) for inputs in trials]
    if all(map(_same, answers, expected)):
        return Verdict(True, f"right, for {len(trials)} random inputs")
    for message, switches in _wrong_forms(task):
        wrong = [task.solve(*inputs, **switches) for inputs in trials]
        if all(map(_same, answers, wrong)) and not all(map(_same, wrong, expected)):
            return Verdict(False, message)
    for answer, right, inputs in zip(answers, expected, trials, strict=True):
        if not _same(answer, right):
            return _difference(task, answer, right, inputs)
    raise AssertionError("one of them differs")


def _wrong_forms(task: Exercise) -> Iterator[tuple[str, dict[str, str]]]:
    """Every single mistake, then every two of them in different steps."""
    wrong = {step: list(forms.items()) for step, forms in task.mistakes.items()}
    for step, forms in wrong.items():
        for form, message in forms:
            yield message, {step: form}
    for (one, forms), (other, others) in combinations(wrong.items(), 2):
        for (form, message), (second, more) in product(forms, others):
            yield f"two things: {message}; and {more}", {one: form, other: second}


def _same(answer: Tensor, right: Tensor) -> bool:
    if answer.shape != right.shape or (answer.dtype == torch.bool) != (right.dtype == torch.bool):
        return False
    if right.dtype == torch.bool:
        return torch.equal(answer, right)
    scale = max(1.0, float(right.nan_to_num(0.0, 0.0, 0.0).abs().max()))
    return torch.allclose(answer.double(), right.double(), rtol=_NEAR, atol=_NEAR * scale, equal_nan=True)


def _unusable(result: object) -> str | None:
    if result is None:
        return "it returns nothing: does its last line start with `return`?"
    if isinstance(result, tuple):
        return f"it returns {len(result)} things; return the one tensor that is asked for"
    if not isinstance(result, Tensor):
        return f"it returns a {type(result).__name__}; return a tensor"
    return None


def _raised(error: Exception, task: Exercise, inputs: tuple[Any, ...]) -> str:
    names = task.signature.strip("()").split(", ")
    sizes = [
        f"{name} {tuple(item.shape) if isinstance(item, Tensor) else item}"
        for name, item in zip(names, inputs, strict=True)
    ]
    text = str(error).partition("\n")[0]
    hint = ""
    if "cannot be multiplied" in text or "batch1 and batch2" in text or "Expected size" in text:
        hint = (
            "\nIn a matrix product the last size of the first must be the first of the second: is one to be transposed?"
        )
    return f"it stops with {type(error).__name__}: {text}\nThe arguments: {', '.join(sizes)}{hint}"


def _difference(task: Exercise, answer: Tensor, right: Tensor, inputs: tuple[Any, ...]) -> Verdict:
    """Describe a difference that no known mistake explains."""
    if right.dtype == torch.bool and answer.dtype != torch.bool:
        hint = "a bool tensor says who may attend; 0 and −∞ would be a bias, which is added to scores"
        return Verdict(False, f"it returns {answer.dtype}, expected torch.bool: {hint}")
    if answer.shape != right.shape:
        if answer.ndim > 1 and answer.mT.shape == right.shape:
            same = "" if not _same(answer.mT, right) else ", with the right numbers"
            return Verdict(False, f"it is transposed{same}: {tuple(answer.shape)}, expected {tuple(right.shape)}")
        shape = f"shape {tuple(answer.shape)}, expected {tuple(right.shape)}: {task.shape}"
        return Verdict(False, shape, named=False)
    return Verdict(False, _numbers_differ(answer, right, inputs), named=False)


def _numbers_differ(answer: Tensor, right: Tensor, inputs: tuple[Any, ...]) -> str:
    if right.dtype == torch.bool:
        count = int((answer != right).sum())
        return f"{count} of {right.numel()} entries differ, for {_numbers(inputs)}"
    if bool(answer.isnan().any()):
        where = int(answer.isnan().flatten(1).any(1).nonzero()[0]) if answer.ndim > 1 else 0
        return f"it has NaN, first in item {where}: 0/0, or −∞ in every score of a row"
    if (factor := _factor(answer, right)) is not None:
        return f"all numbers are {factor:.4g} times what they should be"
    worst = float((answer.double() - right.double()).abs().max())
    return f"it differs by up to {worst:.3g}, by no mistake that this check knows"


def _factor(answer: Tensor, right: Tensor) -> float | None:
    ratios = (answer.double() / right.double())[right.abs() > 1e-3]
    if ratios.numel() < 2 or not bool(ratios.isfinite().all()):
        return None
    middle = float(ratios.median())
    return middle if torch.allclose(ratios, torch.full_like(ratios, middle), rtol=1e-3) else None


def _numbers(inputs: tuple[Any, ...]) -> str:
    return ", ".join(str(item) for item in inputs if isinstance(item, int))
