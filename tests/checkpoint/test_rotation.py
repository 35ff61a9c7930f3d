import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.parts import same, small

from qkv.checkpoint.folder import load, save
from qkv.checkpoint.rotation import (
    best,
    best_step,
    latest_complete,
    locate,
    mark_best,
    present,
    save_step,
    step_folder,
    steps,
    surplus,
)
from qkv.errors import CheckpointError

STEPS = st.lists(st.integers(0, 10**9), max_size=12)


@given(STEPS, st.integers(1, 5), st.none() | st.integers(0, 10**9), st.data())
def test_the_newest_and_the_best_always_stay(present_, keep, best_, data):
    if present_ and data.draw(st.booleans()):
        best_ = data.draw(st.sampled_from(present_))
    gone = set(surplus(present_, keep, best_))
    left = set(present_) - gone
    newest = set(sorted(set(present_))[-keep:])
    assert newest <= left
    assert best_ not in gone
    assert len(left) <= keep + 1
    assert left == newest | ({best_} & set(present_))


@given(STEPS, st.integers(-3, 0))
def test_at_least_the_newest_stays(present_, keep):
    assert set(present_) - set(surplus(present_, keep, None)) == set(sorted(present_)[-1:])


def test_the_last_and_the_best_are_kept(tmp_path):
    for step in range(1, 7):
        save_step(tmp_path, step * 100, small(step), keep=2, best=step == 2)
    assert steps(tmp_path) == [200, 500, 600]
    assert best(tmp_path) == step_folder(tmp_path, 200)
    assert latest_complete(tmp_path) == step_folder(tmp_path, 600)
    assert present(tmp_path) == [step_folder(tmp_path, step) for step in (200, 500, 600)]
    assert sorted(os.listdir(tmp_path)) == ["best", "step-00000200", "step-00000500", "step-00000600"]


def test_a_new_best_lets_the_old_one_go(tmp_path):
    for step in (1, 2, 3):
        save_step(tmp_path, step, small(step), keep=1, best=True)
    assert steps(tmp_path) == [3]
    assert best_step(tmp_path) == 3


def test_a_step_saved_again_replaces_itself(tmp_path):
    save_step(tmp_path, 5, small(1))
    save_step(tmp_path, 5, small(2))
    assert same(load(step_folder(tmp_path, 5)), small(2))
    assert steps(tmp_path) == [5]


def test_a_damaged_newest_is_passed_over_aloud(tmp_path, capsys):
    for step in (1, 2, 3):
        save_step(tmp_path, step, small(step))
    (step_folder(tmp_path, 3) / "config.json").unlink()
    (step_folder(tmp_path, 2) / "model.safetensors").write_bytes(b"")
    said: list[str] = []
    assert latest_complete(tmp_path, said.append) == step_folder(tmp_path, 1)
    assert ["config.json" in said[0], "model.safetensors" in said[1], len(said)] == [True, True, 2]
    latest_complete(tmp_path)
    assert "Skipping a damaged checkpoint" in capsys.readouterr().err


def test_no_checkpoint_is_none_and_no_complete_one_is_an_error(tmp_path):
    assert latest_complete(tmp_path) is None
    (tmp_path / "step-00000001").mkdir()
    with pytest.raises(CheckpointError, match=r"step-00000001/MANIFEST\.json"):
        latest_complete(tmp_path, lambda _: None)


def test_other_names_are_no_checkpoints(tmp_path):
    for name in ("step-1", "step-0000001x", "xstep-00000001", "step-00000001.damaged", ".step-00000002.saving-0"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000003").write_text("a file")
    (tmp_path / "step-00000004").symlink_to(tmp_path)
    assert steps(tmp_path) == []


def test_a_replacement_cut_short_still_counts(tmp_path):
    save_step(tmp_path, 7, small(), best=True)
    step_folder(tmp_path, 7).rename(tmp_path / ".step-00000007.replaced")
    assert steps(tmp_path) == [7]
    assert same(load(latest_complete(tmp_path)), small())
    assert same(load(best(tmp_path)), small())
    save_step(tmp_path, 8, small(8), keep=1, best=True)
    assert sorted(os.listdir(tmp_path)) == ["best", "step-00000008"]


def test_steps_of_many_digits_are_in_order(tmp_path):
    for step in (99_999_999, 100_000_000):
        save_step(tmp_path, step, small())
    assert steps(tmp_path) == [99_999_999, 100_000_000]


@pytest.mark.parametrize("data", [b"", b"{}", b'{"checkpoint": "../x"}', b'{"checkpoint": "step-1"}', b"x" * 5000])
def test_a_damaged_pointer_is_said(tmp_path, data):
    save_step(tmp_path, 1, small(), best=True)
    (tmp_path / "best").write_bytes(data)
    with pytest.raises(CheckpointError, match="best"):
        best(tmp_path)


def test_a_pointer_to_nowhere_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="Train until the first validation"):
        best(tmp_path)
    mark_best(tmp_path, 9)
    with pytest.raises(CheckpointError, match="expected a checkpoint step-00000009"):
        best(tmp_path)


def test_a_user_may_give_a_checkpoint_a_run_or_the_pointer(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    save_step(run, 1, small(1), best=True)
    save_step(run, 2, small(2))
    assert locate(run / "step-00000002") == run / "step-00000002"
    assert locate(run) == run / "step-00000001"
    assert locate(run / "best") == run / "step-00000001"
    (run / "best").unlink()
    assert locate(run) == run / "step-00000002"
    save(tmp_path / "single", small())
    assert locate(tmp_path / "single") == tmp_path / "single"


def test_a_user_who_gives_anything_else_is_told(tmp_path):
    (tmp_path / "file").write_text("x")
    for name, got in (("none", "no such folder"), ("file", "a file"), (".", "a folder without checkpoints")):
        with pytest.raises(CheckpointError, match=f"got {got}. Give the run folder"):
            locate(tmp_path / name)


@pytest.mark.parametrize("inside", [True, False])
def test_a_best_checkpoint_that_is_a_link_is_refused_unless_it_stays_in_the_run(tmp_path, inside):
    run = tmp_path / "run"
    run.mkdir()
    save_step(run, 1, small(1), best=True)
    step_folder(run, 1).rename((run if inside else tmp_path) / "elsewhere")
    step_folder(run, 1).symlink_to((run if inside else tmp_path) / "elsewhere")
    if inside:
        load(best(run))
    else:
        with pytest.raises(CheckpointError, match=r"expected a folder in this one; got a link to .*elsewhere"):
            locate(run)


@pytest.mark.parametrize("name", ["x" * 5000, "a/" * 3000, "a\0b", "\udcff"])
def test_a_path_that_no_system_takes_is_a_typed_error(tmp_path, name):
    with pytest.raises(CheckpointError, match="a checkpoint or a run folder"):
        locate(tmp_path / name)
