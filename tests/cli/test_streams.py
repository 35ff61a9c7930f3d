"""Standard streams that are closed, full, a terminal or in another encoding; names with control characters."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli.command import QKV, refused, run, succeeded
from tests.pairs import in_turn
from typer.main import get_command

import qkv
from qkv.cli.app import app
from qkv.cli.main import main
from qkv.errors import DataError, QkvError, harmless
from qkv.settings import read_toml, to_toml
from qkv.tasks.streams import stream_stdin, write_lines, write_text
from qkv.tasks.translate.decoding import Decoding

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
        next(stream_stdin()) if name == "stdin" else write_lines([""])


TRAIN = ["train", "classify", "--data", "films.tsv", "--width", "8", "--steps", "2", "--out"]
PREPARE = ["prepare", "films.tsv", "--vocabulary", "260", "--out"]


@pytest.mark.parametrize(
    ("how", "words", "made"),
    [
        # Training imports PyTorch's compiler, which takes seconds.
        ("2>/dev/full", PREPARE, "run"),
        ("0<&- 2>&-", PREPARE, "run"),
        pytest.param("2>/dev/full", TRAIN, "run/step-00000002", marks=pytest.mark.slow),
        pytest.param("0<&- 2>&-", TRAIN, "run/step-00000002", marks=pytest.mark.slow),
        pytest.param("2>&-", TRAIN, "run/step-00000002", marks=pytest.mark.slow),
    ],
)
def test_messages_that_cannot_be_told_end_nothing_and_are_no_output(
    how: str, words: list[str], made: str, tmp_path: Path
) -> None:
    """Nor does a file that a command opens become what libraries take for standard error."""
    (tmp_path / "films.tsv").write_text("good\ta funny film\nbad\ta dull film\n" * 8)
    words = [*words, "run"]
    done = subprocess.run(
        ["bash", "-c", f'"$@" {how}', "bash", QKV, *words], cwd=tmp_path, capture_output=True, check=False, timeout=180
    )
    assert (done.returncode, done.stdout) == (0, b"")
    assert (tmp_path / made / "MANIFEST.json").is_file()


def test_no_file_takes_the_number_of_a_closed_stream() -> None:
    program = """
import os, sys
os.closerange(0, 3)
from qkv.system import open_standard_streams
open_standard_streams()
sys.exit(os.open(os.devnull, os.O_RDONLY) + 10 * os.get_inheritable(2))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 13


def test_a_reader_who_has_enough_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    stream = os.fdopen(theirs, "w")
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(BrokenPipeError):
        write_text(["a dog"])
    with pytest.raises(BrokenPipeError):
        stream.close()


class Closed(io.RawIOBase):
    """A pipe on Windows whose reader has closed it."""

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def test_a_reader_who_has_enough_is_no_fault_on_windows_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=Closed(), isatty=lambda: False))
    with pytest.raises(BrokenPipeError):
        write_text(["a dog"])


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
    told = str(QkvError(f"a{chr(code)}b", "a", "b", "c"))
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


_ENTRY = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Tell:
    def find_spec(self, name, path=None, target=None):
        if name in ("typer", "torch"):
            print(name, flush=True)
sys.meta_path.insert(0, Tell())
from qkv.cli.main import main
sys.argv = ["qkv", "explain"]
main()
"""


@pytest.mark.parametrize(("library", "delay"), in_turn(["typer", "torch"], [0.0, 0.1, 0.4]))
def test_an_interruption_while_libraries_are_imported_is_one_line(library: str, delay: float) -> None:
    process = subprocess.Popen([sys.executable, "-c", _ENTRY], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    while process.stdout.readline().decode().strip() != library:
        assert process.poll() is None
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode in (0, 130), told  # it may have been faster
    assert told in (b"qkv: interrupted\n", b"")


def test_quiet_verbose_and_json_are_flags_of_every_command() -> None:
    def leaves(group: Any) -> Iterator[Any]:
        for command in group.commands.values():
            yield from leaves(command) if hasattr(command, "commands") else [command]

    found = list(leaves(get_command(app)))
    assert len(found) > 12
    for command in found:
        assert {"--quiet", "--verbose", "--json"} <= {name for each in command.params for name in each.opts}, (
            command.name
        )


def test_explain_as_json() -> None:
    (line,) = succeeded(run("explain", "--json", "--queries", "64")).stdout.splitlines()
    found = json.loads(line)
    assert found["operations"] > 0
    assert "tiled.blocked" in {found["algorithm"], *found["refusals"]}


def test_verbose_says_versions_and_shows_where_an_error_came_from() -> None:
    assert "PyTorch" in succeeded(run("explain", "--verbose")).stderr
    done = run("explain", "--verbose", "--score", "dott")
    assert done.exit_code == 2
    assert "Traceback" in done.stderr
    both = run("explain", "--quiet", "--verbose")
    assert (both.exit_code, "--quiet: expected no --verbose beside it" in both.stderr) == (2, True)


def test_no_name_of_a_file_looks_like_a_message_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "a\nqkv: all is well"
    folder.mkdir()
    for run_folder in (folder, folder / "none", tmp_path / "a\nqkv: all is wel"):
        done = run("translate", str(run_folder))
        assert done.exit_code == 2
        assert [line for line in done.stderr.splitlines() if line.startswith("qkv:")] == [done.stderr.rstrip("\n")]


def test_where_an_error_came_from_is_shown_without_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise DataError("not a usual message \x1b[31m") from ValueError("another library's \x1b]0;words\x07")

    monkeypatch.setattr("qkv.tasks.runs.locate", fail)
    done = run("translate", str(tmp_path), "--verbose")
    assert done.exit_code == 2
    assert "another library's \\x1b]0;words\\x07" in done.stderr
    assert harmless(done.stderr) == done.stderr


def test_quiet_leaves_errors() -> None:
    refused(run("explain", "--quiet", "--score", "dott"), 'Did you mean "dot"')


class Fed(io.RawIOBase):
    """Standard input that gives a line only after the answer to the one before."""

    def __init__(self, lines: list[bytes], answered: Callable[[], int]) -> None:
        self._lines, self._given, self._answered = lines, 0, answered

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._given == len(self._lines):
            return 0
        assert self._answered() == self._given, "the line before is answered"
        line = self._lines[self._given]
        self._given += 1
        buffer[: len(line)] = line
        return len(line)


@pytest.mark.parametrize("as_json", [True, False])
def test_translate_answers_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    pairs = [(a + b, b + a) for a in "abcd" for b in "abcd"]
    how = {"tokenizer": "char", "model": "gru", "width": 8, "steps": 1, "quiet": True}
    trained = qkv.train("translate", data=pairs, out=tmp_path / "run", **how)  # type: ignore[arg-type]
    out = io.TextIOWrapper(io.BytesIO())
    given = Fed([b"ab\n", b"\n", b"cd\n"], lambda: out.buffer.getvalue().count(b"\n"))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(given)))
    arguments = [str(trained.folder), "--line-buffered", "--max-tokens", "3", *(["--json"] if as_json else [])]
    app(["translate", *arguments], standalone_mode=False)
    lines = out.buffer.getvalue().decode().splitlines()
    assert len(lines) == 3
    if as_json:
        assert [json.loads(line)["line"] for line in lines] == [1, 2, 3]
        assert json.loads(lines[1])["translations"][0]["text"] == ""
    else:
        assert lines == [each.text for each in trained.load().translate_fully(["ab", "", "cd"], Decoding(max_tokens=3))]


ROOT = Path(__file__).parents[2]


def shell(text: str) -> subprocess.CompletedProcess[str]:
    command = f'set -o pipefail; qkv() {{ {sys.executable} -m qkv "$@"; }}; {text}'
    return subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("words", ["--help", "train translate --help", "--version"])
def test_help_on_a_full_disk_is_one_message(words: str) -> None:
    done = shell(f"qkv {words} >/dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("qkv: standard output: expected enough space")


@pytest.mark.parametrize(
    ("words", "reader"),
    in_turn(("--help", "train translate --help", "--version"), ("head -1", "true", "sleep 1"), every=3),
)
def test_a_reader_that_has_enough_is_success(words: str, reader: str) -> None:
    """Whichever of the two processes is faster: "true" reads nothing, and ends before or after the writing."""
    done = shell(f"qkv {words} | {reader}")
    assert (done.returncode, done.stderr) == (0, "")
