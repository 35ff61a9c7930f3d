"""The list of an ensemble's members comes from a folder that anybody may have written."""

import json
from pathlib import Path

import pytest

import qkv
from qkv.errors import CheckpointError
from qkv.tasks.members import members_of


def ensemble(folder: Path, names: list[str]) -> Path:
    folder.mkdir()
    (folder / "ensemble.json").write_text(json.dumps({"format": "qkv ensemble 1", "members": names}))
    return folder


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 256, "..", "", "a/b", "a\\b", "C:x", "a\0b"])
def test_a_name_that_no_folder_has_is_a_typed_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a list of an ensemble's members"):
        qkv.load(ensemble(tmp_path / "run", [name, name]))


@pytest.mark.parametrize("target", ["elsewhere", "missing"])
def test_a_member_that_is_a_link_to_elsewhere_is_not_followed(target: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    run = ensemble(tmp_path / "run", ["0-ahead", "1-ahead"])
    (run / "0-ahead").mkdir()
    (run / "1-ahead").symlink_to(tmp_path / target)
    with pytest.raises(CheckpointError, match=r"1-ahead: expected a folder in this one; got a link to "):
        qkv.load(run)


def test_members_in_the_folder_may_be_reached_through_a_link_that_the_user_gave(tmp_path: Path) -> None:
    run = ensemble(tmp_path / "run", ["0-ahead"])
    (run / "0-ahead").mkdir()
    (tmp_path / "link").symlink_to(run)
    assert members_of(tmp_path / "link") == [tmp_path / "link" / "0-ahead"]
