"""Check an answer to an exercise on random inputs, and name the mistake in a wrong one.

Each exercise is one function whose steps can be swapped for the usual mistakes. An answer that differs from the right
one is compared with every wrong form and every pair of them; the first that gives the same numbers names what is wrong.
"""

import html
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations, product
from typing import Any, final

import torch
from torch import Tensor

from qkv.course.exercises import EXERCISES, Exercise
from qkv.errors import expect_name

Form = Callable[..., Tensor]
"""A right or wrong function of an exercise's inputs."""

_TRIALS = 6
_LARGE = 1e4
_NEAR = 1e-4
_ROUNDING = 3e-6
_ROUGHLY = 0.03
"""How far an answer may be from a wrong form whose own rounding is large: the sine of a large angle, in float32."""


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
        color = "#2a8a45" if self.right else "#d9463c"  # readable on white and on black
        text = html.escape(self.message).replace("\n", "<br>")
        text = re.sub(r"`([^`]+)`", r"<code>\1</code>", re.sub(r"\*(may attend)\*", r"<em>\1</em>", text))
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
    task = EXERCISES[expect_name("exercise", exercise, EXERCISES, "a known exercise")]
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
    return _judge(task, answer, trials, answers)


def _judge(task: Exercise, form: Form, trials: list[tuple[Any, ...]], answers: list[Tensor]) -> Verdict:
    expected = [task.solve(*inputs) for inputs in trials]
    if all(map(_same, answers, expected)):
        return Verdict(True, f"right, for {len(trials)} random inputs")
    if (message := _other_shape(answers, expected)) is not None:
        return Verdict(False, message)
    if all(bool(answer.isnan().all()) for answer in answers):
        return Verdict(False, _ALL_NAN)
    if (message := _nearest_mistake(task, form, trials, answers, expected)) is not None:
        return Verdict(False, message)
    if (factor := _common_factor(answers, expected)) is not None:
        return Verdict(False, f"all numbers are {factor:.4g} times what they should be")
    for answer, right, inputs in zip(answers, expected, trials, strict=True):
        if not _same(answer, right):
            verdict = _difference(task, answer, right, inputs)
            probed = None if verdict.named else _probe(task, form, trials)
            return verdict if probed is None else Verdict(False, probed)
    raise AssertionError("one of them differs")


_ALL_NAN = (
    "every number of the result is NaN. 0 times ∞ is NaN too: do not multiply a mask by ∞, use `masked_fill` or "
    "`torch.where`; and 0/0 is NaN"
)


def _other_shape(answers: list[Tensor], expected: list[Tensor]) -> str | None:
    """Return a message if all numbers are right but the result has extra dimensions of size 1."""
    pairs = list(zip(answers, expected, strict=True))
    if all(answer.shape == right.shape for answer, right in pairs) or not all(
        answer.ndim > right.ndim and answer.numel() == right.numel() and _same(answer.reshape(right.shape), right)
        for answer, right in pairs
    ):
        return None
    sizes = f"{tuple(answers[0].shape)}, expected {tuple(expected[0].shape)}"
    return f"it has a dimension of size 1 too many, with the right numbers: {sizes}"


def _nearest_mistake(
    task: Exercise, form: Form, trials: list[tuple[Any, ...]], answers: list[Tensor], expected: list[Tensor]
) -> str | None:
    """Return the name of the mistake that explains these answers; of several, the first of the closest.

    That an argument is not used is certain, and said before two mistakes at once, which may only look like it.
    """
    levels = [_ROUNDING, _NEAR, _ROUGHLY]
    best = None
    for forms in (_one_mistake(task, trials[0]), _two_mistakes(task)):
        for message, wrong in forms:
            while (
                levels
                and _gives(wrong, trials, answers, levels[-1])
                and not _gives(wrong, trials, expected, levels[-1])
            ):
                best = message
                levels.pop()
            if not levels:
                return best
        if best is None and (unused := _unused(task, form, trials)) is not None:
            return unused
    return best


def _gives(form: Form, trials: list[tuple[Any, ...]], answers: list[Tensor], tolerance: float) -> bool:
    """Return whether a form gives these answers; some cannot be computed with inputs of these sizes."""
    try:
        return all(_same(answer, form(*inputs), tolerance) for inputs, answer in zip(trials, answers, strict=True))
    except (RuntimeError, IndexError, KeyError):
        return False


def _switches(task: Exercise) -> list[tuple[str, str, dict[str, str]]]:
    return [(step, message, {step: form}) for step, forms in task.mistakes.items() for form, message in forms.items()]


def _one_mistake(task: Exercise, inputs: tuple[Any, ...]) -> Iterator[tuple[str, Form]]:
    """Yield the forms with one mistake: a wrong step, arguments mixed up, or a change of the result."""
    for _, message, switches in _switches(task):
        yield message, partial(task.solve, **switches)
    yield from _mixed_up(task, inputs)
    for message, change in _CHANGED_RESULTS.items():
        yield message, partial(_then, change, task.solve)


def _two_mistakes(task: Exercise) -> Iterator[tuple[str, Form]]:
    single = _switches(task)
    for (step, one, first), (other, two, second) in combinations(single, 2):
        if step != other:
            yield f"two things: {one}; and {two}", partial(task.solve, **first, **second)
    for (_, one, switches), (two, change) in product(single, _CHANGED_RESULTS.items()):
        yield f"two things: {one}; and {two}", partial(_then, change, partial(task.solve, **switches))


def _mixed_up(task: Exercise, inputs: tuple[Any, ...]) -> Iterator[tuple[str, Form]]:
    """Yield forms with one argument in place of another, two of them swapped, or one added to the result."""
    names = task.signature.strip("()").split(", ")

    def reordered(order: tuple[int, ...]) -> Form:
        return lambda *inputs: task.solve(*(inputs[at] for at in order))

    def added(at: int) -> Form:
        return lambda *inputs: task.solve(*inputs) + inputs[at]

    places = tuple(range(len(names)))
    kinds = [item.dtype if isinstance(item, Tensor) else type(item) for item in inputs]
    alike = [(one, other) for one, other in permutations(places, 2) if kinds[one] == kinds[other]]
    for one, other in alike:
        order = tuple(other if at == one else at for at in places)
        yield f"`{names[other]}` stands where `{names[one]}` belongs", reordered(order)
    for one, other in (pair for pair in alike if pair[0] < pair[1]):
        order = tuple({one: other, other: one}.get(at, at) for at in places)
        yield f"`{names[one]}` and `{names[other]}` are swapped", reordered(order)
    for at in (at for at in places if isinstance(inputs[at], Tensor)):
        yield f"`{names[at]}` is added to the result", added(at)


def _then(change: Callable[[Tensor], Tensor], form: Form, *inputs: Any) -> Tensor:
    return change(form(*inputs))


_CHANGED_RESULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "a softmax is taken of the result": lambda result: result.softmax(-1),
    "the result is divided by its sum": lambda result: result / result.sum(-1, keepdim=True),
    "these are logarithms of the result": lambda result: result.log(),
    "exp is taken of the result": lambda result: result.exp(),
    "the result is squared": lambda result: result.square(),
    "a square root is taken of the result": lambda result: result.sqrt(),
    "tanh is taken of the result": lambda result: result.tanh(),
    "the negative numbers of the result are set to 0": lambda result: result.relu(),
    "the result is subtracted from 1": lambda result: 1 - result,
    "the result is summed over its last dimension": lambda result: result.sum(-1),
    "the result is averaged over its last dimension": lambda result: result.mean(-1),
    "the order of the rows is reversed": lambda result: result.flip(0),
}
"""What may be done to a result by mistake, and what is said about it."""


def _same(answer: Tensor, right: Tensor, tolerance: float = _NEAR) -> bool:
    if answer.shape != right.shape or (answer.dtype == torch.bool) != (right.dtype == torch.bool):
        return False
    if right.dtype == torch.bool:
        return torch.equal(answer, right)
    scale = max(1.0, float(right.nan_to_num(0.0, 0.0, 0.0).abs().max()))
    return torch.allclose(answer.double(), right.double(), rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _unusable(result: object) -> str | None:
    if result is None:
        return "it returns nothing: does its last line start with `return`?"
    if isinstance(result, tuple):
        return f"it returns {len(result)} things; return the one tensor that is asked for"
    if not isinstance(result, Tensor):
        return f"it returns a {type(result).__name__}; return a tensor (`torch.tensor(...)` makes one)"
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
        hint = "\nIn a matrix product the last size of the first must be the first of the second: transpose one?"
    if "must match" in text and any(isinstance(item, Tensor) and item.ndim > 2 for item in inputs):
        hint = (
            "\nThere may be leading dimensions: x.mT transposes the last two, x.T and transpose(0, 1) move the leading."
        )
    return f"it stops with {type(error).__name__}: {text}\nThe arguments: {', '.join(sizes)}{hint}"


def _unused(task: Exercise, form: Form, trials: list[tuple[Any, ...]]) -> str | None:
    """Name an argument that a function does not depend on."""
    try:
        usual = [form(*inputs) for inputs in trials]
        for at, name in enumerate(task.signature.strip("()").split(", ")):
            if _can_change(trials[0][at]) and all(map(_same, _with(form, trials, at, _changed), usual)):
                return f"`{name}` is not used: another one gives the same result"
    except Exception:  # a function may refuse what the exercise never asks of it
        pass
    return None


def _probe(task: Exercise, form: Form, trials: list[tuple[Any, ...]]) -> str | None:
    """Ask a function that makes no known mistake whether it mixes values."""
    names = task.signature.strip("()").split(", ")
    try:
        usual = [form(*inputs) for inputs in trials]
        values = [at for at, name in enumerate(names) if name in ("value", "annotations")]
        problems = (_mixing_problem(task, form, trials, usual, at) for at in values)
        return next((problem for problem in problems if problem is not None), None)
    except Exception:  # a function may refuse what the exercise never asks of it
        return None


def _with(form: Form, trials: list[tuple[Any, ...]], at: int, change: Callable[[Any], Any]) -> list[Tensor]:
    """Return the results with argument number `at` changed."""
    return [form(*inputs[:at], change(inputs[at]), *inputs[at + 1 :]) for inputs in trials]


def _mixing_problem(
    task: Exercise, form: Form, trials: list[tuple[Any, ...]], usual: list[Tensor], at: int
) -> str | None:
    """Describe how the result fails to be a weighted sum of the values, argument number `at`; None if it is one."""
    sums, right = (_with(sides, trials, at, torch.ones_like) for sides in (form, task.solve))
    if not all(_same(value, torch.ones_like(value)) for value in right if bool((value != 0).all())):
        return None  # values are not mixed here
    wrong_pairs = (_wrong_pair(task, form, inputs, at) for inputs in trials)
    if (problem := next((pair for pair in wrong_pairs if pair is not None), None)) is not None:
        return problem
    if not all(map(_same, sums, right)):
        off = torch.cat([one[(one - other).abs() > _NEAR] for one, other in zip(sums, right, strict=True)])
        return (
            f"the weights of a query do not sum to 1: where every value is 1, the result is {float(off.min()):.3g} to "
            f"{float(off.max()):.3g}, not 1"
        )
    doubled = _with(form, trials, at, lambda values: 2 * values)
    if not all(_same(value, 2 * once) for value, once in zip(doubled, usual, strict=True)):
        return "twice the values do not give twice the result: nothing follows the weighted sum of values"
    return None


def _wrong_pair(task: Exercise, form: Form, inputs: tuple[Any, ...], at: int) -> str | None:
    """Name a query that reads a key that it may not see, or does not read one that it may see: change its value."""
    values = inputs[at]
    keys = max(values.ndim - 2, 0)  # the dimension of the keys
    for number in range(values.shape[keys]):
        change = torch.zeros_like(values).index_fill_(keys, torch.tensor(number, device="cpu"), _LARGE)
        moved, expected = (
            (function(*inputs[:at], values + change, *inputs[at + 1 :]) - function(*inputs)).abs()
            for function in (form, task.solve)
        )
        for differs, what in (
            ((moved > 1) & (expected == 0), "reads key {}, which it may not see"),
            ((moved == 0) & (expected > 1), "does not read key {}, which it may see"),
        ):
            if bool(differs.any()):
                row = differs.nonzero()[0, : differs.ndim - (values.ndim > 1)].tolist()
                query = f"query {row[-1]}" if row else "the query"
                leading = f" of item {row[0]}" if len(row) > 1 else ""
                return f"{query}{leading} {what.format(number)} (both counted from 0)"
    return None


def _can_change(item: object) -> bool:
    return isinstance(item, float) or (isinstance(item, Tensor) and item.dtype.is_floating_point)


def _changed(item: Any) -> Any:
    """Return other numbers of the same kind and size."""
    return (
        2 * item
        if isinstance(item, float)
        else item.roll(1, 0) + torch.linspace(0, 1, item.numel(), device="cpu").view_as(item)
    )


def _difference(task: Exercise, answer: Tensor, right: Tensor, inputs: tuple[Any, ...]) -> Verdict:
    """Describe a difference that no known mistake explains."""
    if right.dtype == torch.bool and answer.dtype != torch.bool:
        hint = "a bool tensor says who may attend; 0 and −∞ would be a bias, which is added to scores"
        return Verdict(False, f"it returns {answer.dtype}, expected torch.bool: {hint}")
    if answer.shape != right.shape:
        if answer.ndim > 1 and answer.mT.shape == right.shape:
            same = "" if not _same(answer.mT, right) else ", with the right numbers"
            return Verdict(False, f"it is transposed{same}: {tuple(answer.shape)}, expected {tuple(right.shape)}")
        if answer.squeeze().shape == right.shape:
            sizes = f"{tuple(answer.shape)}, expected {tuple(right.shape)}"
            return Verdict(False, f"it has a dimension of size 1 too many: {sizes}")
        shape = f"shape {tuple(answer.shape)}, expected {tuple(right.shape)}: {task.shape}"
        return Verdict(False, shape, named=False)
    return Verdict(False, _numbers_differ(task, answer, right, inputs), named=False)


def _numbers_differ(task: Exercise, answer: Tensor, right: Tensor, inputs: tuple[Any, ...]) -> str:
    if right.dtype == torch.bool:
        row, column = (answer != right).nonzero()[0].tolist()
        return (
            f"with {_numbers(task, inputs)}, row {row}, column {column} is {bool(answer[row, column])} and should be "
            f"{bool(right[row, column])}; {int((answer != right).sum())} of {right.numel()} entries differ"
        )
    if bool(answer.isnan().any()):
        where = int(answer.isnan().flatten(1).any(1).nonzero()[0]) if answer.ndim > 1 else 0
        return f"it has NaN, first in item {where}: 0/0, or −∞ in every score of a row"
    worst = float((answer.double() - right.double()).abs().max())
    return f"it differs by up to {worst:.3g}, by no mistake that this check knows"


def _common_factor(answers: list[Tensor], expected: list[Tensor]) -> float | None:
    """Return by what all answers differ, in every trial."""
    factors = [_factor(answer, right) for answer, right in zip(answers, expected, strict=True)]
    first = factors[0]
    same = first is not None and all(
        factor is not None and math.isclose(factor, first, rel_tol=1e-3) for factor in factors
    )
    return first if same else None


def _factor(answer: Tensor, right: Tensor) -> float | None:
    if answer.shape != right.shape or right.dtype == torch.bool:
        return None
    ratios = (answer.double() / right.double())[right.abs() > 1e-3]
    if ratios.numel() < 2 or not bool(ratios.isfinite().all()):
        return None
    middle = float(ratios.median())
    return middle if torch.allclose(ratios, torch.full_like(ratios, middle), rtol=1e-3) else None


def _numbers(task: Exercise, inputs: tuple[Any, ...]) -> str:
    names = task.signature.strip("()").split(", ")
    return ", ".join(f"{name} = {item}" for name, item in zip(names, inputs, strict=True) if isinstance(item, int))
