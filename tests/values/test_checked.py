"""Which argument is blamed after a function failed, and which is not."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

import qkv
from qkv.decode.walk import as_never
from qkv.errors import ArgumentError, QkvError
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


def _total(ids: Sequence[int], rows: Sequence[Sequence[int]] | None = None) -> int:
    return torch.tensor(ids).sum().item() + sum(map(sum, rows or ()))  # type: ignore[return-value]


@pytest.mark.parametrize("wrong", ["a", None, [1], {}])
def test_the_wrong_element_of_a_sequence_is_named(wrong: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        checked(_total)([1, wrong])
    assert caught.value.argument == "ids[1]"
    with pytest.raises(ArgumentError) as caught:
        checked(_total)([1], rows=[[1, 2], [3, wrong]])
    assert caught.value.argument == "rows[1][1]"


@pytest.mark.parametrize("starts", [[0, 2.5], [0, "a"], [0, None], [0, True], [0, -1]])
def test_positions_of_merged_parts_are_whole_numbers(starts: Any) -> None:
    query, key = torch.zeros(2, 3, 4), torch.zeros(2, 5, 4)
    part = qkv.attention_with_state(query, key, key, normalizer=qkv.normalizers.Hard())
    with pytest.raises(ArgumentError) as caught:
        qkv.merge([part, part], starts)
    assert caught.value.argument == "starts"


@pytest.mark.parametrize("never", [[2.5], ["a"], [None], [True], [[1]], "ab", 3])
def test_ids_that_are_never_chosen_are_whole_numbers(never: Any) -> None:
    with pytest.raises(QkvError) as caught:
        as_never(never, 2)
    assert caught.value.argument.startswith("never")
