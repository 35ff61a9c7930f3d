import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.training.parts import CONFIG, ShiftTask, fresh

from qkv.errors import CheckpointError, DataError
from qkv.training.batches import batches_of, expect_same_batches, first_batches
from qkv.training.trainer import Trainer
from qkv.training_settings import Settings

SETTINGS = Settings(batch_tokens=24)


def at(epoch: int = 0, position: int = 0, task: ShiftTask | None = None) -> Trainer:
    """A trainer at a position of the data."""
    task = task or fresh()
    trainer = Trainer(task, task.model, SETTINGS, CONFIG)
    trainer.go_to(epoch, position)
    return trainer


@given(st.integers(0, 60), st.integers(1, 7))
def test_beginning_at_a_position_gives_what_would_have_come(before, count):
    first = at()
    first.take(before)
    again = at(first.state.epoch, first.state.position)
    assert again.take(count) == first.take(count)
    assert (again.state.epoch, again.state.position) == (first.state.epoch, first.state.position)


def test_every_epoch_gives_every_example_once_in_another_order():
    trainer = at()
    epochs = [[index for batch in trainer.take(10) for index in batch] for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(40))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    assert (trainer.state.epoch, trainer.state.position) == (2, 10)


def test_batches_may_be_of_several_epochs():
    trainer = at()
    assert len(trainer.take(25)) == 25
    assert (trainer.state.epoch, trainer.state.position) == (2, 5)


def test_the_first_batches_begin_again_where_there_are_few():
    first = first_batches(fresh(), SETTINGS, 12)
    assert first[:10] == at().take(10)
    assert first[10:] == first[:2]


def test_other_data_are_noticed():
    batches = batches_of(fresh(), SETTINGS, 0)
    other = fresh()
    other.examples = other.examples[:39]
    with pytest.raises(CheckpointError, match="the batches of epoch 0 that this run was trained on; got others"):
        expect_same_batches(batches_of(other, SETTINGS, 0), 0, 0, batches.fingerprint())
    with pytest.raises(CheckpointError, match="training data"):
        expect_same_batches(batches, 0, 11, batches.fingerprint())


def test_no_data_is_said():
    task = fresh()
    task.examples = []
    with pytest.raises(DataError, match="at least one batch; got none"):
        at(task=task)
