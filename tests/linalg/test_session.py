"""A session keeps what it made for each owner until it is closed, and nothing outside of it."""

import gc
import weakref

import pytest
import torch

from qkv.linalg.session import DecodingSession, opened


class Thing:
    """Something that can be told apart and be seen to end."""


def test_each_owner_gets_one_thing_until_the_session_ends() -> None:
    first, second = Thing(), Thing()
    with DecodingSession() as session:
        found = session.keep(first, Thing)
        assert session.keep(first, Thing) is found
        assert session.keep(second, Thing) is not found
        assert session.keep((first, "part"), Thing) is not found
    assert session.keep(first, Thing) is not found


def test_two_sessions_share_nothing() -> None:
    owner = Thing()
    with DecodingSession() as one, DecodingSession() as other:
        assert one.keep(owner, Thing) is not other.keep(owner, Thing)
        assert one.memory is not other.memory


def test_an_owner_is_held_so_that_no_other_object_takes_its_identity() -> None:
    with DecodingSession() as session:
        found = session.keep(Thing(), Thing)
        assert all(session.keep(Thing(), Thing) is not found for _ in range(100))


def test_a_given_session_stays_open_and_a_new_one_is_closed() -> None:
    owner = Thing()
    with DecodingSession() as session:
        with opened(session) as same:
            found = same.keep(owner, Thing)
        assert session.keep(owner, Thing) is found
    with opened(None) as own:
        found = own.keep(owner, Thing)
    assert own.keep(owner, Thing) is not found


def test_what_was_kept_ends_with_the_session_even_after_an_error() -> None:
    kept: list[weakref.ref[Thing]] = []

    def fail() -> None:
        with DecodingSession() as session:
            kept.append(weakref.ref(session.keep("owner", Thing)))
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    gc.collect()
    assert kept[0]() is None


def test_tensors_outlive_the_session() -> None:
    with DecodingSession() as session:
        tensor = session.memory.tensor((4, 5)).fill_(3.0)
    with DecodingSession() as other:
        other.memory.tensor((4, 5)).zero_()
    assert torch.equal(tensor, torch.full((4, 5), 3.0))
