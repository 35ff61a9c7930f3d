import os
import stat

import pytest
import torch

from qkv.errors import ConfigError
from qkv.view.alignment import Alignment
from qkv.view.export import save

ONE = Alignment(("ein", "Hund"), ("a", "dog"), torch.eye(2))


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.html", b"<!doctype html>"), ("a.HTML", b"<!doctype"), ("a.svg", b"<?xml"), ("a.png", b"\x89PNG")],
)
def test_the_suffix_chooses_the_format(tmp_path, name, start):
    save(tmp_path / name, [ONE, ONE])
    assert (tmp_path / name).read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_one_alignment_needs_no_list_and_a_path_may_be_a_string(tmp_path):
    save(str(tmp_path / "a.svg"), ONE)
    assert (tmp_path / "a.svg").exists()


def test_the_file_can_be_read_by_whom_the_umask_allows(tmp_path):
    before = os.umask(0o022)
    try:
        save(tmp_path / "a.html", ONE)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.html").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("name", "hint"),
    [("a.htm", '"\\.html"'), ("a.pngg", '"\\.png"'), ("a", "Valid: .html, .svg, .png"), ("a.gif", "Valid|mean")],
)
def test_another_suffix_names_the_nearest_valid_one(tmp_path, name, hint):
    with pytest.raises(ConfigError, match=hint):
        save(tmp_path / name, ONE)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_said_and_leaves_nothing(tmp_path):
    with pytest.raises(ConfigError, match=r"missing/a\.html"):
        save(tmp_path / "missing" / "a.html", ONE)
    (tmp_path / "a.html").mkdir()
    with pytest.raises(ConfigError, match=r"a\.html"):
        save(tmp_path / "a.html", ONE)
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_a_picture_that_fails_leaves_the_old_file(tmp_path):
    save(tmp_path / "a.png", ONE)
    before = (tmp_path / "a.png").read_bytes()
    with pytest.raises(ConfigError):
        save(tmp_path / "a.png", [])
    assert (tmp_path / "a.png").read_bytes() == before
