"""Commands that answer standard input: early, in memory that does not grow with it, and the same as all at once."""

import gc
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from tests.cli.command import QKV, commands, refused, run, succeeded
from tests.cli.shelf import Shelf

import qkv.data.corpus
import qkv.tasks.drawing
from qkv.cli.app import app
from qkv.data.corpus import in_parts
from qkv.data.table import parse_table, parse_table_in_parts
from qkv.errors import DataError
from qkv.tasks.classify.predict import Classification
from qkv.tasks.point.predict import Pointing
from qkv.tasks.regress.predict import Prediction
from qkv.tasks.tag.predict import Tagging
from qkv.tasks.translate.predict import Translation
from qkv.view.alignment import Alignment

TASKS = {
    "translate": (["translate"], "a b", Translation, 1),
    "classify": (["classify"], "a funny film", Classification, 1),
    "tag": (["tag"], "Ada sleeps", Tagging, 3),
    "point": (["point"], "3 1 2", Pointing, 1),
    "regress": (["regress"], "25.5", Prediction, 1),
}
"""Of each task: its command, a line, the type of an answer, and how many lines one takes."""
DRAWN = {("translate", False), ("classify", True), ("regress", True)}
"""Tasks whose drawings the fast suite makes, which takes seconds, some of them in the terminal too."""


@pytest.fixture(autouse=True)
def in_the_folder(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shelf.folder)


class Feed:
    """Standard input that calls a function before each line."""

    def __init__(self, lines: list[str], before: Callable[[int], None]) -> None:
        self._lines, self._before, self._place = lines, before, 0

    def readline(self, _: int) -> bytes:
        self._before(self._place)
        self._place += 1
        return f"{self._lines[self._place - 1]}\n".encode() if self._place <= len(self._lines) else b""


def answers() -> int:
    """Lines written to standard output so far."""
    return bytes(sys.stdout.buffer.getvalue()).count(b"\n")  # type: ignore[attr-defined]


def made(kind: type) -> int:
    """The objects of a class since `gc.freeze`: to look at all earlier ones takes a tenth of a second."""
    return sum(type(each) is kind for each in gc.get_objects())


def feed(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], lines: list[str], before: Callable[[int], None]
) -> None:
    """Run a command on lines that come one by one."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Feed(lines, before), isatty=lambda: False))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    commands(app).main(arguments, "qkv", standalone_mode=False)


@pytest.mark.parametrize("task", TASKS)
def test_the_first_answer_comes_before_the_second_line_is_read(
    task: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, line, _, size = TASKS[task]
    header = 1 if task == "regress" else 0
    seen = []

    def before(place: int) -> None:
        seen.append(answers())

    feed(monkeypatch, [*command, shelf.run(task)], [line] * 9, before)
    written = [max(0, count - header) // size for count in seen]
    assert written == [0, 1, 1, 3, 3, 3, 3, 7, 7, 7]
    seen.clear()
    feed(monkeypatch, [*command, shelf.run(task), "--line-buffered"], [line] * 4, before)
    assert [max(0, count - header) // size for count in seen] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_not_collected(task: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qkv.data.corpus, "_LARGEST_PART", 4)
    command, line, kind, _ = TASKS[task]
    held = []

    def before(place: int) -> None:
        if place % 10 == 0:
            held.append(made(kind))

    arguments = [*command, shelf.run(task)]
    gc.freeze()
    feed(monkeypatch, arguments, [line] * 50, before)
    assert max(held) <= 10


@pytest.mark.parametrize(
    ("task", "show"),
    [
        pytest.param(task, show, marks=[] if (task, show) in DRAWN else pytest.mark.slow)
        for task in TASKS
        for show in (False, True)
    ],
)
def test_a_file_of_drawings_holds_the_first_answers_alone(
    task: str,
    show: bool,
    shelf: Shelf,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Each answer here counts as 1,024 weights, the least; the terminal keeps none."""
    monkeypatch.setattr(qkv.data.corpus, "_LARGEST_PART", 4)
    monkeypatch.setattr(qkv.tasks.drawing, "MOST_WEIGHTS", 6 * 1024 + 1023)
    command, line, _, _ = TASKS[task]
    held = []

    def before(place: int) -> None:
        if place % 10 == 0:
            held.append(made(Alignment))

    arguments = [*command, shelf.run(task), "--attention", str(tmp_path / "a.svg"), *(["--show"] if show else [])]
    gc.freeze()
    feed(monkeypatch, arguments, [line] * 40, before)
    assert max(held) <= 6 + 4
    assert "the first 6 of 40 answers" in capsys.readouterr().err
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").count("<image") >= 6


@pytest.mark.parametrize("task", TASKS)
def test_parts_change_no_answer(task: str, shelf: Shelf) -> None:
    random = Random(0)
    words = {"translate": "abcd", "classify": ["funny", "dull", "film", "a"], "tag": ["Ada", "wrote", "Bonn", "the"]}
    lines = [
        f"{random.uniform(18, 42):.2f}"
        if task == "regress"
        else " ".join(
            random.sample("123456789", random.randint(1, 5))
            if task == "point"
            else random.choices(words[task], k=random.randint(0, 6))
        )
        for _ in range(20)
    ]
    command = TASKS[task][0]
    text = "".join(f"{line}\n" for line in lines)
    together, single = (
        succeeded(run(*command, shelf.run(task), *flags, feed=text)).stdout for flags in ((), ("--line-buffered",))
    )
    assert together == single
    if task != "regress":
        objects = succeeded(run(*command, shelf.run(task), "--json", feed=text)).stdout.splitlines()
        assert [f'"line": {number},' in one for number, one in enumerate(objects, start=1)] == [True] * 20


def test_equal_lines_get_samples_of_their_own_in_any_part(shelf: Shelf) -> None:
    flags = ("--sample", "--temperature", "3", "--seed", "1", "--max-tokens", "6")
    text = "a b\n" * 12
    outputs = [
        succeeded(run("translate", shelf.run("translate"), *flags, *more, feed=text)).stdout
        for more in ((), ("--line-buffered",))
    ]
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0].splitlines())) > 6


@pytest.mark.parametrize(
    ("task", "word"), [("translate", "a "), ("classify", "film "), ("tag", "Ada "), ("point", "x")]
)
def test_what_is_wrong_is_named_by_its_line(task: str, word: str, shelf: Shelf) -> None:
    bad = word * 600
    line = TASKS[task][1]
    done = run(task, shelf.run(task), feed=f"{line}\n" * 6 + f"{bad}\n" + f"{line}\n")
    refused(done, "standard input:7: expected")
    assert done.stdout.splitlines()[0]


@pytest.mark.parametrize("task", ["translate", "classify", "tag", "point"])
def test_tabs_in_lines_are_reported_once(task: str, shelf: Shelf, tmp_path: Path) -> None:
    line = TASKS[task][1]
    plain = succeeded(run(task, shelf.run(task), feed=f"{line}\n" * 9))
    assert ": a tab" not in plain.stderr
    lines = f"{line}\n{line}\t\n" + f"{line.replace(' ', chr(9), 1)}\n" * 9
    done = succeeded(run(task, shelf.run(task), feed=lines))
    assert re.findall(r"standard input:(\d+): a tab", done.stderr) == ["3"]
    if task != "point":
        (tmp_path / "a.txt").write_text(lines)
        shards = ["--shards", str(tmp_path / "*.txt"), "--out", tmp_path / "out"]
        done = succeeded(run(task, shelf.run(task), *shards))
        assert re.findall(r"a.txt:(\d+): a tab", done.stderr) == ["3"]


def test_rows_of_a_table_are_named_by_their_lines(shelf: Shelf) -> None:
    done = run("regress", shelf.run("regress"), feed="area,x\n" + "25,1\n" * 9 + "many,2\n")
    refused(done, "standard input:11", "many")
    assert len(done.stdout.splitlines()) == 1 + 7
    done = run("regress", shelf.run("regress"), feed="area,x\n" + "25,1\n" * 5 + "26\n")
    refused(done, "standard input:7", "expected 2 fields")
    refused(run("regress", shelf.run("regress"), feed="area\n"), "no rows")
    refused(run("regress", shelf.run("regress"), feed=""), "expected lines with columns")


TABLES = [
    ["a,b", "1,2", "", '3,"4"', '"5', '",6'],
    ["1;2,5", "3;4"],
    ["living area", "75", "80"],
    ["", "area  price", " 75   900", "80 1000 "],
    ["75 900", "80 1000"],
    ['"x, y"', "1", "2"],
    ["1"],
]


@pytest.mark.parametrize("lines", TABLES)
def test_a_table_in_parts_is_the_table(lines: list[str]) -> None:
    whole = parse_table(lines, "f")
    for line_buffered in (False, True):
        parts = list(parse_table_in_parts(iter(lines), "f", line_buffered=line_buffered))
        assert {(part.columns, part.header, part.name) for part in parts} == {(whole.columns, whole.header, "f")}
        assert sum((part.rows for part in parts), ()) == whole.rows


def test_a_table_in_parts_without_lines_is_refused() -> None:
    with pytest.raises(DataError, match="expected lines with columns"):
        list(parse_table_in_parts([], "f"))
    assert [len(part) for part in parse_table_in_parts(["a,b"], "f")] == [0]


def test_parts_end_after_a_million_characters() -> None:
    lines = ["x" * 400_000] * 12
    assert max(map(len, in_parts(lines, size=len))) == 3
    assert [len(part) for part in in_parts(range(5000), size=lambda _: 1)][-4:] == [1024, 1024, 1024, 905]


def test_a_pipe_that_waits_for_the_first_answer_gets_it(shelf: Shelf) -> None:
    with subprocess.Popen(
        [QKV, "classify", shelf.run("classify")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"a funny film\n")
        process.stdin.flush()
        first = process.stdout.readline()
        process.stdin.write(b"a dull film\n" * 3)
        process.stdin.close()
        assert len([first, *process.stdout.readlines()]) == 4


_PEAKS = """
import runpy, sys
from pathlib import Path
from types import SimpleNamespace


class Feed:
    def __init__(self, few, pipe):
        self.few, self.pipe, self.lines = few, pipe, 0

    def readline(self, size=-1):
        self.lines += 1
        if self.lines == self.few:
            report()
        return self.pipe.readline(size)


def report():
    print(Path("/proc/self/status").read_text(), file=sys.stderr)


_, few, *sys.argv = sys.argv
sys.stdin = SimpleNamespace(buffer=Feed(int(few), sys.stdin.buffer), isatty=lambda: False)
try:
    runpy.run_module("qkv", run_name="__main__", alter_sys=False)
finally:
    report()
"""
"""A program that runs the command, and says how much memory it has taken at most after few lines and after all."""


def peaks_of(command: list[str], line: str, few: int, many: int) -> tuple[int, list[int]]:
    """Answer equal lines in a process of its own; return the lines written, and its peaks in MiB."""
    pipe = f'yes "$0" | head -n {many} | "$@" | wc -l'
    program = [sys.executable, "-c", _PEAKS, str(few), "qkv", *command]
    done = subprocess.run(["bash", "-c", pipe, line, *program], capture_output=True, text=True, check=True)
    return int(done.stdout), [int(peak) >> 10 for peak in re.findall(r"VmHWM:\s*(\d+) kB", done.stderr)]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
@pytest.mark.parametrize(
    ("few", "many"), [(4_000, 14_000), pytest.param(20_000, 1_000_000, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize(
    "task",
    [pytest.param(task, marks=[] if task == "regress" else pytest.mark.slow) for task in TASKS],
)
def test_memory_does_not_grow_with_the_lines(task: str, few: int, many: int, shelf: Shelf) -> None:
    """An answer that stays would take at least a KiB; 10,000 of them 10 MiB.

    In the fast suite the task that reads a table, which begins as lines do.
    """
    command, line, _, size = TASKS[task]
    arguments = [*command, shelf.run(task), *(["--max-tokens", "3"] if task == "translate" else [])]
    written, peaks = peaks_of(arguments, line, few, many)
    assert written == size * many + (task == "regress")
    before, after = peaks
    assert after - before < 9 + many / 50_000, peaks
