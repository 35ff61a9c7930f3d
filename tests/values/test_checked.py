"""Which argument is blamed after a function failed, and which is not."""

from collections.abc import Iterator, Sequence

import pytest
import torch

from qkv.errors import ArgumentError
from qkv.values.checked import checked


@checked
def answer(lines: Sequence[str], error: object = None) -> list[str]:
    if isinstance(error, Exception):
        raise error
    return [line.upper() for line in lines]


def stream() -> Iterator[str]:
    yield "a line"


@pytest.mark.parametrize("lines", [["a"], ("a",), stream(), {"a": 1}], ids=["list", "tuple", "iterator", "dict"])
@pytest.mark.parametrize("error", [KeyError("inside"), RuntimeError("inside"), ZeroDivisionError("inside")], ids=repr)
def test_what_can_be_iterated_over_is_a_sequence(lines: Sequence[str], error: Exception) -> None:
    with pytest.raises(type(error), match="inside"):
        answer(lines, error)


def test_a_text_is_no_sequence_of_lines() -> None:
    with pytest.raises(ArgumentError) as raised:
        answer("a line", RuntimeError("inside"))
    assert raised.value.argument == "lines"


def test_lack_of_memory_blames_no_argument() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60)
    with pytest.raises(type(raised.value)) as again:
        answer(7, raised.value)  # type: ignore[arg-type]
    assert again.value is raised.value
