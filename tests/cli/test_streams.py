"""Standard streams that are closed, full, a terminal or in another encoding; names with control characters."""

import io
import os
import sys
from pathlib import Path

import pytest
from tests.cli.command import refused, run

from qkv.cli.main import main
from qkv.errors import DataError, error_message, harmless
from qkv.tasks.settings import read_toml, to_toml
from qkv.tasks.streams import read_stdin, write_lines, write_text

RED = "\x1b[31m"


def test_a_full_disk_is_one_message_and_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(DataError, match=r"standard output.*No space left"):
            write_lines(["a dog"])
        full.flush()


@pytest.mark.parametrize("name", ["stdin", "stdout"])
def test_a_closed_stream_is_one_message(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, name, None)
    with pytest.raises(DataError, match=r"standard (input|output): expected .* got a closed one"):
        read_stdin() if name == "stdin" else write_lines([""])


def test_a_reader_who_has_enough_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    stream = os.fdopen(theirs, "w")
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(BrokenPipeError):
        write_text(["a dog"])
    with pytest.raises(BrokenPipeError):
        stream.close()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_gets_nothing_that_it_would_obey(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    write_lines([f"{RED}ein\tHund läuft"])
    written = stream.buffer.getvalue().decode()
    assert written == (r"\x1b[31m" if terminal else RED) + "ein\tHund läuft\n"


def test_a_name_that_is_no_text_comes_out_as_it_came_in(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", stream)
    write_text([os.fsdecode(b"\xff.de")])
    assert stream.buffer.getvalue() == b"\xff.de"


@pytest.mark.parametrize("code", [0, 7, 8, 13, 27, 127, 0x9B, 0x202E, 0x2066])
def test_messages_show_what_a_terminal_would_obey(code: int) -> None:
    told = error_message(f"a{chr(code)}b", "a", "b", "c")
    assert chr(code) not in told
    assert f"{code:x}" in told
    assert harmless(told) == told


def test_a_name_with_commands_is_shown(tmp_path: Path) -> None:
    done = run("train", "classify", "--data", tmp_path / f"{RED}x", "--out", tmp_path / "out")
    refused(done, "\\x1b[31mx")
    assert "\x1b" not in done.stderr


def test_settings_are_written_as_toml_has_them(tmp_path: Path) -> None:
    tables = {"data": {"source": 'a\x7f\x01"\\ü'}}
    (tmp_path / "run.toml").write_text(to_toml(tables), encoding="utf-8")
    assert read_toml(tmp_path / "run.toml") == tables


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_help_is_shown_in_any_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "argv", ["qkv", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "--version" in stream.buffer.getvalue().decode(encoding)
