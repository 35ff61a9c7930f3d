import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.training.parts import fresh

from qkv.errors import CheckpointError, DataError
from qkv.training.feed import Feed
from qkv.training.settings import Settings

SETTINGS = Settings(batch_tokens=24)


@given(st.integers(0, 60), st.integers(1, 7))
def test_beginning_at_a_place_gives_what_would_have_come(before, count):
    task = fresh()
    feed = Feed(task, SETTINGS)
    feed.take(before) if before else None
    again = Feed(task, SETTINGS, feed.epoch, feed.position)
    again.check(feed.fingerprint())
    assert again.take(count) == feed.take(count)
    assert (again.epoch, again.position) == (feed.epoch, feed.position)


def test_every_epoch_gives_every_example_once_in_another_order():
    task = fresh()
    feed = Feed(task, SETTINGS)
    epochs = [[place for batch in feed.take(10) for place in batch] for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(40))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    assert (feed.epoch, feed.position) == (2, 10)


def test_one_take_may_span_epochs():
    feed = Feed(fresh(), SETTINGS)
    assert len(feed.take(25)) == 25
    assert (feed.epoch, feed.position) == (2, 5)


def test_other_data_are_noticed():
    feed = Feed(fresh(), SETTINGS)
    other = fresh()
    other.examples = other.examples[:39]
    with pytest.raises(CheckpointError, match="the batches of epoch 0 that this run was trained on; got others"):
        Feed(other, SETTINGS).check(feed.fingerprint())
    with pytest.raises(CheckpointError, match="training data"):
        Feed(fresh(), SETTINGS, 0, 11).check(feed.fingerprint())


def test_no_data_is_said():
    task = fresh()
    task.examples = []
    with pytest.raises(DataError, match="at least one batch; got none"):
        Feed(task, SETTINGS)
