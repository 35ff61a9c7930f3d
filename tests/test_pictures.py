"""Exhausted memory that a drawing library reports under other names, and bugs, which stay what they are."""

import errno

import pytest

from qkv import pictures
from qkv.errors import ConfigError, OutOfMemoryError
from qkv.pictures import rendered


class Drawing:
    """Fails with the given errors, one after the other, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self) -> bytes:
        if self.errors:
            raise self.errors.pop(0)
        return b"picture"


@pytest.mark.parametrize("error", [TypeError("must be real number"), ValueError("shape"), AttributeError("NoneType")])
def test_one_unknown_error_that_does_not_return_was_a_refused_allocation(error: Exception) -> None:
    assert rendered(Drawing(error)) == b"picture"


@pytest.mark.parametrize("error", [MemoryError(), ValueError("std::bad_alloc"), SystemError("can't allocate lock")])
@pytest.mark.parametrize("before", [(), (TypeError("must be real number"),)])
def test_memory_is_said_at_once_or_after_an_unknown_error(before: tuple[Exception, ...], error: Exception) -> None:
    with pytest.raises(OutOfMemoryError, match="picture: expected enough memory"):
        rendered(Drawing(*before, error))


def test_a_bug_that_fails_twice_stays_what_it_is() -> None:
    with pytest.raises(TypeError, match="second"):
        rendered(Drawing(TypeError("first"), TypeError("second")))


def test_what_fails_twice_where_no_memory_is_left_is_said_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_RESERVE", 1 << 62)
    with pytest.raises(OutOfMemoryError, match="none left") as raised:
        rendered(Drawing(TypeError("first"), TypeError("second")))
    assert isinstance(raised.value.__cause__, TypeError)


@pytest.mark.parametrize("error", [ConfigError("alignments"), OSError(errno.ENOSPC, "No space left on device")])
def test_an_error_that_says_what_it_is_is_not_tried_again(error: Exception) -> None:
    drawing = Drawing(error)
    with pytest.raises(type(error)):
        rendered(drawing)
    assert rendered(drawing) == b"picture"
