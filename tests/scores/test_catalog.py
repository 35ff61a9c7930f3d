"""The catalogs are complete, agree with the classes, and are all that a new mechanism needs."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract import mechanisms

import qkv
from qkv.normalizers.catalog import NORMALIZERS
from qkv.scores.base import Score
from qkv.scores.catalog import DISTANCES, KERNELS, SCORES
from qkv.scores.example import example
from qkv.values.catalog import Entry, Number

ENTRIES = [*SCORES.values(), *NORMALIZERS.values()]
each = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


def test_every_public_class_has_an_entry() -> None:
    named = {entry.kind for entry in ENTRIES}
    assert named == {*qkv.scores.__all__, *qkv.normalizers.__all__} - {"Score", "Normalizer"}


def test_no_name_means_two_mechanisms() -> None:
    names = [name for entry in ENTRIES for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))


@each
def test_ranges_of_numbers_hold_the_defaults_of_the_class(entry: Entry[Any]) -> None:
    defaults = {field.name: field.default for field in fields(entry.cls)}
    assert set(entry.fixed) <= set(defaults)
    for number in entry.numbers:
        assert defaults[number.name] == number.default
        assert number.above < number.low <= number.default <= number.high
        for value in (number.low, number.high):
            assert getattr(entry.make(**{number.name: value}), number.name) == value


LIMITS = [(entry, number) for entry in ENTRIES for number in entry.numbers if number.name != "scale"]


@pytest.mark.parametrize(("entry", "number"), LIMITS, ids=lambda one: one.name)
def test_the_class_refuses_what_lies_outside(entry: Entry[Any], number: Number) -> None:
    with pytest.raises(qkv.QkvError):
        entry.make(**{number.name: number.above})


def test_kernels_are_the_distances_that_are_never_negative() -> None:
    assert set(KERNELS) == {name for name in DISTANCES if SCORES[name].cls.non_negative}
    assert set(DISTANCES) == {name for name in SCORES if SCORES[name].cls.core == "distance"}


@pytest.mark.parametrize("name", [name for name in SCORES if name != "learned"])
def test_a_score_and_its_entry_find_each_other(name: str) -> None:
    score = example(name, 3)
    assert SCORES.of(score) is SCORES[name]
    assert {parameter.name for parameter in type(score).parameters} >= set(SCORES[name].tensors)
    query, key = torch.ones(2, 3), torch.ones(4, 3)
    assert score(query, key).shape == (2, 4)


def test_a_user_defined_class_of_the_same_name_is_not_ours() -> None:
    class Dot(Score):
        core = "tile"

        def __call__(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return query @ key.mT

        def prepare(self, query: torch.Tensor, key: torch.Tensor) -> Any:
            raise NotImplementedError

    assert SCORES.of(Dot()) is None
    assert SCORES.equation(Dot()) is None


EQUATIONS = {
    "q·k/√D": qkv.scores.ScaledDot(),
    "c·tanh(q·k/√D/c)": qkv.scores.ScaledDot(softcap=2.0),
    "g·q·k": qkv.scores.ScaledDot(0.5),
    "qᵀMk": qkv.scores.Bilinear(torch.eye(2)),
    "g·qᵀMk": qkv.scores.Bilinear(torch.eye(2), 0.5),
    "vᵀ tanh(q + W_k k)": qkv.scores.Additive(torch.ones(2), None, torch.eye(2)),
    "leaky_relu(w_q·q + w_k·k)": qkv.scores.Concat(torch.ones(2), torch.ones(2), "leaky_relu"),
    "max(0, 1 − ‖q−k‖/h)": qkv.scores.Epanechnikov(power=1),
    "max(0, 1 − (‖q−k‖/h)^3)": qkv.scores.Epanechnikov(power=3),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_an_equation_follows_the_fields(equation: str) -> None:
    assert str(SCORES.equation(EQUATIONS[equation])) == equation


def test_the_contract_judges_every_class() -> None:
    scores = (case.build(_ones(case.shapes(case.width, case.key_width))) for case in mechanisms.SCORES)
    normalizers = (case.build(_ones(case.shapes)) for case in mechanisms.NORMALIZERS)
    assert {type(score) for score in scores} == set(SCORES.classes)
    assert {type(normalizer) for normalizer in normalizers} == set(NORMALIZERS.classes)


def _ones(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    return {name: 2 * torch.ones(shape) for name, shape in shapes.items()}


def test_names_cost_no_import_of_pytorch() -> None:
    code = "import sys; from qkv.scores.catalog import SCORES; SCORES.described(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "False\n"


def test_a_new_score_is_found_on_every_surface() -> None:
    """In a process of its own, in which the new score is there before anything reads the catalog."""
    file = Path(__file__).with_name("added.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "tests.scores.laplace", str(file)]
    done = subprocess.run(command, capture_output=True, check=False, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout
