"""Numbers of another kind than a method of a trained model takes end in typed errors, whatever the method."""

import inspect
from collections.abc import Callable, Iterator
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch

from qkv.decode.beam import Beam, Ranking
from qkv.decode.sampling import Sampling
from qkv.errors import ArgumentError, ConfigError, DataError
from qkv.models.smoother import KernelSmoother
from qkv.tasks.answerers import ANSWERERS
from qkv.tasks.regress.predict import Regressor
from qkv.tasks.translate.aligner import Aligner
from qkv.tasks.translate.decoding import Decoding
from qkv.view.live import LiveModel
from qkv.view.scene import Scene

NAN = float("nan")
BAD = {int: (2.5, NAN, "3", None, True, [1], np.float64(2)), float: ("3", None, 1j, [1.0]), bool: ("no", None, 1, 0.0)}
KINDS = (*(answerer() for answerer in ANSWERERS.values()), Aligner)


def numbers(function: Callable[..., Any]) -> Iterator[tuple[str, type, bool]]:
    """Yield name and type of each number among the arguments, and whether it may be None."""
    for name, hint in get_type_hints(function, localns={"Scene": Scene, "LiveModel": LiveModel}).items():
        parts = [part for part in (get_args(hint) if isinstance(hint, UnionType) else (hint,)) if part is not NoneType]
        if name != "return" and len(parts) == 1 and parts[0] in BAD:
            yield name, parts[0], NoneType in get_args(hint)


def methods() -> Iterator[Any]:
    for kind in KINDS:
        for name, method in inspect.getmembers(kind, callable):
            if not name.startswith("_"):
                yield from (
                    pytest.param(method, *number, id=f"{kind.__name__}.{name}({number[0]})")
                    for number in numbers(method)
                )


@pytest.mark.parametrize(("method", "name", "kind", "optional"), list(methods()))
def test_a_number_of_another_kind_is_named(method: Any, name: str, kind: type, optional: bool) -> None:
    parameters = inspect.signature(method).parameters.values()
    required = {each.name: object() for each in parameters if each.default is each.empty and each.name != name}
    for bad in BAD[kind]:
        if bad is None and optional:
            continue
        with pytest.raises(ArgumentError) as raised:
            method(**required, **{name: bad})
        assert raised.value.argument == name


@pytest.mark.parametrize("kind", [Decoding, Sampling, Beam, Ranking])
def test_settings_of_decoding_refuse_numbers_of_another_kind(kind: Callable[..., Any]) -> None:
    for name, number, optional in numbers(kind.__init__):  # type: ignore[misc]
        for bad in BAD[number]:
            if bad is not None or not optional:
                with pytest.raises(ConfigError) as raised:
                    kind(**{name: bad})
                assert raised.value.argument == name
        if number is float:
            for infinite in (NAN, float("inf")):
                with pytest.raises(ConfigError):
                    kind(**{name: infinite})


def test_numbers_of_numpy_are_numbers() -> None:
    assert Decoding(beam=np.int64(5), length_penalty=np.float32(0.5)).search.width == 5  # type: ignore[arg-type]
    assert Sampling(top_k=np.int64(3), temperature=np.float32(0.5)).top_k == 3  # type: ignore[arg-type]


@pytest.fixture(name="regressor")
def _regressor() -> Regressor:
    x = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None]
    model = KernelSmoother(x, x**2, "gaussian", torch.ones(1, dtype=torch.float64)).eval()
    return Regressor(model, ("x",), "y", "point", "nearest")


@pytest.mark.parametrize(
    "rows", ["3", ["3"], [["3"]], [["a"]], 3, [3], [[1, 2]], [[1], [1, 2]], [[NAN]], [[np.inf]], [[1j]], None, [[None]]]
)
def test_rows_of_a_regression_are_finite_numbers(regressor: Regressor, rows: Any) -> None:
    for answer in (regressor.predict, regressor.predict_fully, regressor.alignments):
        with pytest.raises(DataError) as raised:
            answer(rows)
        assert raised.value.argument == "rows"


def test_rows_of_a_regression_can_be_tensors_or_whole_numbers(regressor: Regressor) -> None:
    expected = regressor.predict([[1.0]]).tolist()
    for rows in ([[1]], torch.ones(1, 1), np.ones((1, 1), dtype=np.float32), np.array([[1]], dtype=object)):
        assert regressor.predict(rows).tolist() == expected
    for level in (NAN, 0.0, 1.0, float("inf")):
        with pytest.raises(ConfigError):
            regressor.predict_fully([[1.0]], level=level)
    for most in (0, -1):
        with pytest.raises(ConfigError):
            regressor.alignments([[1.0]], most)
