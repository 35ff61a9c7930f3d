import os
import signal

import pytest
from tests.checkpoint.parts import small, tree

from qkv.checkpoint.folder import save
from qkv.checkpoint.rotation import save_step
from qkv.checkpoint.run import locked, open_run, read_config
from qkv.errors import CheckpointError, ConfigError

CONFIG = {"model": {"kind": "gru", "width": 256}, "training": {"steps": 100, "seed": 1}}


def test_a_run_keeps_its_configuration(tmp_path):
    for _ in range(2):
        with open_run(tmp_path / "run", CONFIG) as run:
            assert read_config(run) == CONFIG


def test_another_configuration_is_refused_with_every_field_and_both_values(tmp_path):
    with open_run(tmp_path / "run", CONFIG):
        pass
    before = tree(tmp_path)
    other = {"model": {"kind": "lstm", "width": 512}, "training": {"steps": 100, "seed": 1, "clip": 1.0}}
    expected = (
        r"out=.*run.: expected the configuration this run was started with; got kind lstm \(it was gru\), "
        r"width 512 \(it was 256\), clip 1\.0 \(it was null\)\. Give another out"
    )
    with pytest.raises(ConfigError, match=expected), open_run(tmp_path / "run", other):
        pass
    assert tree(tmp_path) == before


def test_another_text_is_said_in_words(tmp_path):
    with open_run(tmp_path / "run", {"text": {"train": "0" * 64}}):
        pass
    expected = r"text\.train a{16}… \(it was 0{16}…\)\. A different sha256 means that the contents of a file"
    with pytest.raises(ConfigError, match=expected), open_run(tmp_path / "run", {"text": {"train": "a" * 64}}):
        pass


def test_many_and_long_differences_are_cut(tmp_path):
    with open_run(tmp_path / "run", {str(n): "x" * 100 for n in range(20)}):
        pass
    with (
        pytest.raises(ConfigError, match="and 8 more") as caught,
        open_run(tmp_path / "run", {str(n): "y" * 100 for n in range(20)}),
    ):
        pass
    assert len(str(caught.value)) < 2500


def test_free_fields_may_change_and_are_remembered(tmp_path):
    with open_run(tmp_path / "run", CONFIG, free=["training.steps"]):
        pass
    longer = CONFIG | {"training": {"steps": 200, "seed": 1}}
    with open_run(tmp_path / "run", longer, free=["training.steps"]):
        assert read_config(tmp_path / "run") == longer
    with pytest.raises(ConfigError, match=r"steps 100 \(it was 200\)"), open_run(tmp_path / "run", CONFIG):
        pass


def test_a_run_begun_before_a_field_was_added_goes_on_with_what_it_had(tmp_path):
    new = {**CONFIG, "model": {**CONFIG["model"], "residual": False}}
    with open_run(tmp_path / "run", CONFIG):
        pass
    other = {**CONFIG, "model": {**CONFIG["model"], "residual": True}}
    added = {"model.residual": False}
    expected = r"got residual true \(it was null\)\. Give"
    with pytest.raises(ConfigError, match=expected), open_run(tmp_path / "run", other, added=added):
        pass
    with open_run(tmp_path / "run", new, added=added) as run:
        assert read_config(run) == new
    with pytest.raises(ConfigError, match=r"residual true \(it was false\)"), open_run(run, other, added=added):
        pass


def test_what_a_crash_left_is_cleaned_and_finished(tmp_path):
    with open_run(tmp_path / "run", CONFIG) as run:
        save_step(run, 1, small(1))
        save_step(run, 2, small(2))
    os.rename(run / "step-00000002", run / ".step-00000002.replaced")
    for name in (".step-00000003.saving-0123456789ab", ".step-00000001.removing-0123456789ab"):
        (run / name).mkdir()
    with open_run(run, CONFIG):
        assert sorted(os.listdir(run)) == [".lock", "run.json", "step-00000001", "step-00000002"]


@pytest.mark.parametrize("kind", ["other", "checkpoint"])
def test_a_folder_of_another_kind_is_refused_untouched(tmp_path, kind):
    if kind == "checkpoint":
        save(tmp_path / "run", small())
        got = "got one checkpoint"
    else:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "thesis.tex").write_text("x")
        got = r"got a folder that contains 'thesis\.tex'"
    before = tree(tmp_path)
    with pytest.raises(CheckpointError, match=got), open_run(tmp_path / "run", CONFIG):
        pass
    assert tree(tmp_path) == before


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format": "qkv run", "version": 2, "config": {}}', b'{"format": 1}'])
def test_a_damaged_run_file_is_said(tmp_path, data):
    (tmp_path / "run.json").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"run\.json"), open_run(tmp_path, CONFIG):
        pass


def test_a_run_in_the_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="It exists as a file"), open_run(tmp_path / "file", CONFIG):
        pass


def test_another_process_is_kept_out_until_this_one_ends_however_it_ends(tmp_path):
    with open_run(tmp_path / "run", CONFIG):
        pass
    ready, held = os.pipe()
    holder = os.fork()
    if holder == 0:
        try:
            with locked(tmp_path / "run"):
                os.write(held, b"held")
                signal.pause()
        finally:  # nothing may let the child go on with the other tests
            os._exit(1)
    os.close(held)
    try:
        assert os.read(ready, 4) == b"held"
        with pytest.raises(CheckpointError, match="got one in use"), open_run(tmp_path / "run", CONFIG):
            pass
    finally:
        os.close(ready)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
    with open_run(tmp_path / "run", CONFIG):
        pass


@pytest.mark.parametrize("version", ["true", "1.0", '"1"', "2", "null"])
def test_a_version_that_is_not_the_number_is_refused(tmp_path, version):
    with open_run(tmp_path / "run", CONFIG):
        pass
    path = tmp_path / "run" / "run.json"
    path.write_text(path.read_text().replace('"version": 1', f'"version": {version}'))
    with pytest.raises(CheckpointError, match='"version": 1'):
        read_config(tmp_path / "run")
