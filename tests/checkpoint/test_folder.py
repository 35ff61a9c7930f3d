import os
import resource
from dataclasses import replace

import pytest
import torch
from tests.checkpoint.parts import same, small, tree

from qkv.checkpoint.contents import Contents, decode_figures
from qkv.checkpoint.folder import current_folder, is_checkpoint, load, recover, save, verify
from qkv.checkpoint.manifest import LIMITS, NAME
from qkv.errors import CheckpointError
from qkv.metrics.figure import Figure


def test_everything_comes_back(tmp_path):
    contents = small()
    manifest = save(tmp_path / "a", contents)
    assert same(load(tmp_path / "a"), contents)
    assert verify(tmp_path / "a") == manifest


def test_only_what_there_is_is_written(tmp_path):
    contents = Contents({"w": torch.ones(1)}, {})
    save(tmp_path / "a", contents)
    assert sorted(tree(tmp_path / "a")) == ["MANIFEST.json", "config.json", "model.safetensors"]
    assert same(load(tmp_path / "a"), contents)


def test_the_same_contents_give_the_same_bytes(tmp_path):
    first, second = save(tmp_path / "a", small()), save(tmp_path / "b", small())
    assert first.digest == second.digest
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_the_digest_stands_for_every_part(tmp_path):
    whole = small()
    others = [
        replace(whole, model=whole.model | {"half": whole.model["half"] + 1}),
        replace(whole, config={"task": "classify"}),
        replace(whole, tokenizer=None),
        replace(whole, trainer=None),
        replace(whole, figures=()),
        replace(whole, model=whole.model | {"output.weight": whole.model["output.weight"].clone()}),
    ]
    digests = {save(tmp_path / str(index), contents).digest for index, contents in enumerate([whole, *others])}
    assert len(digests) == 7


def test_nothing_is_left_beside_a_checkpoint_and_its_permissions_are_ordinary(tmp_path):
    save(tmp_path / "a", small())
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    assert sorted(os.listdir(tmp_path)) == ["a", "file", "folder"]
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "folder").stat().st_mode
    assert (tmp_path / "a" / NAME).stat().st_mode == (tmp_path / "file").stat().st_mode


def test_the_trainers_state_can_be_left_out_when_reading(tmp_path):
    save(tmp_path / "a", small())
    read = load(tmp_path / "a", trainer=False)
    assert read.trainer is None
    assert same(read, replace(small(), trainer=None))


@pytest.mark.parametrize("name", [*LIMITS, NAME])
@pytest.mark.parametrize("trainer", [True, False])
def test_a_missing_file_is_named_with_the_mend(tmp_path, name, trainer):
    save(tmp_path / "a", small())
    (tmp_path / "a" / name).unlink()
    with pytest.raises(CheckpointError, match=rf"a/{name}: expected .*; got no such file\. \w+"):
        load(tmp_path / "a", trainer=trainer)
    with pytest.raises(CheckpointError, match=rf"a/{name}: .*no such file"):
        verify(tmp_path / "a")


@pytest.mark.parametrize("name", list(LIMITS))
@pytest.mark.parametrize("trainer", [True, False])
@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda _: b""])
def test_an_altered_file_is_named_with_the_mend(tmp_path, name, trainer, change):
    save(tmp_path / "a", small())
    path = tmp_path / "a" / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CheckpointError, match=rf"a/{name}: expected .* as saved; got an altered file.*Use another"):
        load(tmp_path / "a", trainer=trainer)
    with pytest.raises(CheckpointError, match=rf"a/{name}: .*altered"):
        verify(tmp_path / "a")


@pytest.mark.parametrize("name", list(LIMITS))
def test_a_longer_file_is_refused_before_it_is_read(tmp_path, name):
    save(tmp_path / "a", small())
    with (tmp_path / "a" / name).open("ab") as stream:
        stream.truncate(1 << 36)
    with pytest.raises(CheckpointError, match=rf"a/{name}: expected at most [\d,]+ bytes; got more"):
        load(tmp_path / "a")


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_every_flipped_bit_of_a_checkpoint_is_caught(tmp_path, step):
    save(tmp_path / "a", Contents({"w": torch.ones(2)}, {"n": 1}, '{"v":1}'))
    for name, good in tree(tmp_path / "a").items():
        for bit in range(0, len(good) * 8, step):
            with (tmp_path / "a" / name).open("r+b") as stream:
                stream.seek(bit // 8)
                stream.write(bytes([good[bit // 8] ^ 1 << bit % 8]))
                stream.flush()
                with pytest.raises(CheckpointError, match=name):
                    verify(tmp_path / "a")
                stream.seek(bit // 8)
                stream.write(good[bit // 8 : bit // 8 + 1])
    verify(tmp_path / "a")


def test_swapped_files_of_two_checkpoints_are_caught(tmp_path):
    save(tmp_path / "a", small(0))
    save(tmp_path / "b", small(1))
    (tmp_path / "a" / "model.safetensors").write_bytes((tmp_path / "b" / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match=r"a/model\.safetensors.*altered"):
        load(tmp_path / "a")


def test_a_link_out_of_the_folder_is_not_followed_even_to_the_same_bytes(tmp_path):
    save(tmp_path / "a", small())
    (tmp_path / "a" / "config.json").rename(tmp_path / "outside.json")
    (tmp_path / "a" / "config.json").symlink_to(tmp_path / "outside.json")
    with pytest.raises(CheckpointError, match=r"config\.json: .*It is a symbolic link"):
        load(tmp_path / "a")


def test_unlisted_files_are_not_opened(tmp_path):
    save(tmp_path / "a", small())
    os.mkfifo(tmp_path / "a" / "notes.txt")
    assert same(load(tmp_path / "a"), small())


@pytest.mark.parametrize("name", ["none", "file", "file/below", "x" * 300])
def test_what_is_no_folder_is_a_typed_error(tmp_path, name):
    (tmp_path / "file").write_text("x")
    for read in (load, verify):
        with pytest.raises(CheckpointError, match="expected a readable checkpoint folder"):
            read(tmp_path / name)
    assert not is_checkpoint(tmp_path / name)


def test_an_empty_folder_may_become_a_checkpoint(tmp_path):
    (tmp_path / "a").mkdir()
    save(tmp_path / "a", small())
    assert is_checkpoint(tmp_path / "a")


def test_missing_parents_are_made(tmp_path):
    save(tmp_path / "b" / "c" / "a", small())
    assert is_checkpoint(tmp_path / "b" / "c" / "a")


@pytest.mark.parametrize("replace_", [True, False])
def test_a_folder_of_another_kind_is_refused_untouched(tmp_path, replace_):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.tex").write_text("x")
    with pytest.raises(CheckpointError, match=r"got a folder that contains 'thesis\.tex'"):
        save(tmp_path / "a", small(), replace=replace_)
    assert tree(tmp_path) == {"a/thesis.tex": b"x"}


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_or_link_in_the_way_is_refused_untouched(tmp_path, kind):
    (tmp_path / "real").mkdir()
    if kind == "link":
        (tmp_path / "a").symlink_to(tmp_path / "real")
    else:
        (tmp_path / "a").write_text("x")
    with pytest.raises(CheckpointError, match="a file or link"):
        save(tmp_path / "a", small(), replace=True)
    assert sorted(os.listdir(tmp_path)) == ["a", "real"]
    assert os.listdir(tmp_path / "real") == []


def test_a_checkpoint_gives_way_only_where_asked(tmp_path):
    save(tmp_path / "a", small(0))
    with pytest.raises(CheckpointError, match="a folder that already contains a checkpoint"):
        save(tmp_path / "a", small(1))
    assert same(load(tmp_path / "a"), small(0))
    save(tmp_path / "a", small(1), replace=True)
    assert same(load(tmp_path / "a"), small(1))
    assert os.listdir(tmp_path) == ["a"]


def test_a_damaged_checkpoint_can_be_replaced(tmp_path):
    save(tmp_path / "a", small(0))
    (tmp_path / "a" / "model.safetensors").unlink()
    save(tmp_path / "a", small(1), replace=True)
    assert same(load(tmp_path / "a"), small(1))


def test_a_replacement_cut_between_its_renames_loses_nothing(tmp_path):
    save(tmp_path / "a", small(0))
    (tmp_path / "a").rename(tmp_path / ".a.replaced")
    assert same(load(tmp_path / "a"), small(0))
    assert is_checkpoint(tmp_path / "a")
    recover(tmp_path / "a")
    assert os.listdir(tmp_path) == ["a"]
    assert current_folder(tmp_path / "a") == tmp_path / "a"


def test_a_replacement_cut_after_its_renames_is_finished(tmp_path):
    save(tmp_path / "a", small(0))
    (tmp_path / "a").rename(tmp_path / ".a.replaced")
    os.rename(tmp_path / ".a.replaced", tmp_path / "keep")
    save(tmp_path / "a", small(1))
    os.rename(tmp_path / "keep", tmp_path / ".a.replaced")
    assert same(load(tmp_path / "a"), small(1))
    recover(tmp_path / "a")
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("limit", [0, 100, 500, 1000])
def test_a_write_that_fails_leaves_the_old_checkpoint_and_no_litter(tmp_path, limit):
    """A real limit on file sizes simulates a full disk."""
    save(tmp_path / "a", small(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(CheckpointError, match="File too large"):
            save(tmp_path / "a", replace(small(1), tokenizer="x" * 2000), replace=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["a"]
    assert same(load(tmp_path / "a"), small(0))


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="file: expected a folder that can be created"):
        save(tmp_path / "file" / "a", small())
    with pytest.raises(CheckpointError, match="/proc/self/a: expected a writable folder"):
        save(type(tmp_path)("/proc/self/a"), small())


def test_leftovers_of_an_earlier_crash_are_cleaned(tmp_path):
    (tmp_path / ".a.saving-0123456789ab").mkdir()
    save(tmp_path / "a", small())
    assert os.listdir(tmp_path) == ["a"]


def test_what_cannot_be_stored_is_refused_before_anything_is_written(tmp_path):
    for bad in (
        replace(small(), config={"f": print}),
        replace(small(), tokenizer="\ud800"),
        replace(small(), tokenizer="x" * (LIMITS["tokenizer.json"] + 1)),
        replace(small(), model={"c": torch.ones(1, dtype=torch.complex64)}),
    ):
        with pytest.raises(CheckpointError):
            save(tmp_path / "deep" / "a", bad)
    assert os.listdir(tmp_path) == []


def test_a_relative_path_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = (tmp_path / "a").relative_to(tmp_path)
    save(path, small())
    assert same(load(path), small())


@pytest.mark.parametrize("data", [b"{}", b"[1]", b'[{"name": "x"}]', b'[{"name": "x", "value": "1e9"}]'])
def test_figures_that_are_none_are_refused(data):
    with pytest.raises(CheckpointError, match=r"figures\.json"):
        decode_figures(data, "figures.json")


def test_figures_come_back_in_order(tmp_path):
    figures = (Figure("b", 1.0, ""), Figure("a", float("-inf"), "s", False))
    save(tmp_path / "a", replace(small(), figures=figures))
    assert load(tmp_path / "a").figures == figures
