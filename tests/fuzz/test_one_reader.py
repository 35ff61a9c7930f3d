"""Every file that a user names or a folder holds is opened by the one guarded reader."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qkv.checkpoint.folder import load
from qkv.checkpoint.rotation import locate
from qkv.checkpoint.run import read_config
from qkv.data.corpus import read_lines
from qkv.errors import QkvError
from qkv.files import open_file, read_file
from qkv.recording.trace_reader import read as read_trace
from qkv.settings import read_toml
from qkv.tasks.members import members_of
from qkv.tasks.viewing import scene_of_command
from qkv.training.journal import Journal, read_journal

NAMED: dict[str, Callable[[Path], object]] = {
    "text.txt": read_lines,
    "text.txt.gz": read_lines,
    "run.toml": read_toml,
    "trace.safetensors": read_trace,
    "view.txt": lambda path: scene_of_command(Path("run"), None, path, None, "cpu"),
}
HELD: dict[str, Callable[[Path], object]] = {
    "metrics.jsonl": read_journal,
    "ensemble.json": lambda path: members_of(path.parent),
    "run.json": lambda path: read_config(path.parent),
    "best": lambda path: locate(path.parent),
    "MANIFEST.json": lambda path: load(path.parent),
}


@pytest.mark.parametrize("name", [*NAMED, *HELD])
@pytest.mark.parametrize("kind", ["a named pipe", "a device", "a folder"])
def test_what_is_no_file_is_a_typed_error_at_once(name: str, kind: str, tmp_path: Path) -> None:
    """A pipe has no writer and /dev/zero no end: both would wait for ever."""
    path = tmp_path / name
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(QkvError) as raised:
        (NAMED | HELD)[name](path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("name", HELD)
def test_a_link_in_a_folder_shows_nothing_of_another_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"secret": "password"}\n')
    path = tmp_path / "run" / name
    path.parent.mkdir()
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(QkvError) as raised:
        HELD[name](path)
    assert "password" not in str(raised.value)


def test_going_on_with_a_journal_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(QkvError, match="a named pipe"):
        Journal(tmp_path, 0, 0)


def test_a_named_link_is_followed_and_a_limit_holds(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"text")
    (tmp_path / "link").symlink_to("real")
    assert read_file(tmp_path / "link", 4) == b"text"
    with open_file(tmp_path / "link") as stream:
        assert stream.read() == b"text"
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_file(tmp_path / "link", 3)
    with pytest.raises(OSError, match="symbolic link"):
        read_file(tmp_path / "link", 4, links=False)
