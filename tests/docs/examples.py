"""Running the examples of a page from top to bottom: each command and block of code, and what is right about it.

What an example prints or evaluates to is shown behind an arrow, `# → `, at its end or on the lines below it. All other
comments explain.
"""

import ast
import contextlib
import csv
import io
import math
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import run, succeeded
from tests.docs.corpora import LABELS, PLAY, TAGS, TRANSLATIONS, order, rent, sources_of

import qkv

ROOT = Path(__file__).parents[2]
ARROW = "→ "
ANSWERS = ("translate", "classify", "tag", "point", "regress", "generate", "align", "evaluate")
"""Commands that print what a trained model says."""


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    language: str
    text: str
    line: int


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the blocks of a page in some languages, "" for none."""
    text = page.read_text(encoding="utf-8")
    matches = re.finditer(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start()) + 2) for match in matches if match[1] in languages
    ]


@dataclass
class Command:
    """One command of a page, with what is piped into it and what the page shows of its output."""

    words: list[str]
    feed: str
    shown: list[str]


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a block in its order."""
    command = None
    for line in block.text.splitlines():
        code, shown = split_comment(line)
        if code.strip():
            if command is not None:
                yield command
            *before, words = _pipeline(code)
            command = Command(words, "".join(map(_echoed, before)), [])
        if shown.startswith(ARROW):
            assert command is not None, line
            command.shown.append(shown.removeprefix(ARROW).strip())
    if command is not None:
        yield command


def split_comment(line: str) -> tuple[str, str]:
    """Split a line of a shell into its code and its comment."""
    quote = None
    for index, character in enumerate(line):
        if quote is None and character == "#" and (index == 0 or line[index - 1].isspace()):
            return line[:index], line[index + 1 :].strip()
        if character in "'\"" and quote in (None, character):
            quote = None if quote else character
    return line, ""


def _pipeline(code: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in shlex.split(code):
        if word == "|":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _echoed(words: list[str]) -> str:
    assert words[0] in ("echo", "printf"), words
    return words[1].replace("\\t", "\t").replace("\\n", "\n") + "\n" * (words[0] == "echo")


_TRANSLATOR = ["--batch-tokens", "600", "--learning-rate", "0.01", "--warmup", "10", "--dropout", "0"]
SMALL: Mapping[str, Sequence[str]] = {
    "translate": ["--steps", "150", "--width", "32", "--encoder-layers", "1", "--decoder-layers", "1", *_TRANSLATOR],
    "generate": ["--steps", "120", "--width", "32", "--heads", "4", "--layers", "1", "--context", "64", *_TRANSLATOR],
    "classify": ["--steps", "80", "--width", "16", *_TRANSLATOR],
    "tag": ["--steps", "80", "--width", "16", *_TRANSLATOR],
    "point": ["--steps", "400", "--width", "32", *_TRANSLATOR],
}
"""Flags that make a small model of each task: it learns the files of `corpora` in seconds."""


def _small(task: str, words: Sequence[str]) -> list[str]:
    """Return the flags that make a small model; a monotonic alignment has one layer in any case, minutes no steps."""
    flags = SMALL[task]
    fixed = ["layers"] if any(word.startswith("monotonic") for word in words) else []
    fixed += ["steps"] if "--minutes" in words else []
    pairs = zip(flags[::2], flags[1::2], strict=True)
    return [part for pair in pairs if not pair[0].endswith(tuple(fixed)) for part in pair]


_train = qkv.train


def train_small(task: str, **settings: Any) -> Any:
    """Train as `qkv.train` does, but a small model where the page does not say how large it is."""
    if "width" not in settings:
        flags = SMALL[task]
        names = (flag[2:].replace("-", "_") for flag in flags[::2])
        settings |= dict(zip(names, map(ast.literal_eval, flags[1::2]), strict=True))
    return _train(task, **settings)  # type: ignore[call-overload]


@dataclass
class Shell:
    """Runs the commands of pages in the current folder, with small models, and judges what they print."""

    monkeypatch: pytest.MonkeyPatch
    trained: dict[str, list[str]] = field(default_factory=dict)
    """The command that trained each run."""

    def run(self, command: Command) -> None:
        """Run a command; raises if it fails or what it says is wrong.

        Raises:
            AssertionError: the output is not what the page shows, or not the answer.
        """
        words = [str(ROOT / word) if word.startswith("examples/") else word for word in command.words]
        match words:
            case ["qkv", "view", *_] if "--export" not in words:
                words = [*words, "--export", "page.html"]
            case ["qkv", "train", task, *_] if task in SMALL and "--print-config" not in words:
                words = [*words, *_small(task, words)]
            case ["qkv", "compare", task, *_]:
                words = [*words, *SMALL[task], "--steps", "2", *([] if "--folds" in words else ["--seeds", "1"])]
            case ["qkv", *_]:
                pass
            case _:
                self._run_other(words)
                return
        if words[1] == "train" and "--out" in words:
            self.trained[words[words.index("--out") + 1]] = words
        done = succeeded(run(*words[1:], feed=command.feed))
        for flag in ("--out", "--attention", "--export", "--picture"):
            if flag in words:
                made = Path(words[words.index(flag) + 1])
                assert any(made.iterdir()) if made.is_dir() else made.stat().st_size > 1000, made
        if command.shown:
            assert done.stdout.splitlines() == command.shown, words
        if words[1] in ANSWERS and "example" not in words:
            self.judge(words[1:], command.feed, done.stdout)

    def _run_other(self, words: Sequence[str]) -> None:
        match words:
            case ["python", "-m", module, *rest]:
                self._python(module, [part if part != "20000" else "2000" for part in rest], runpy.run_module)
            case ["python", script, *rest]:
                self._python(str(ROOT / script), rest, runpy.run_path)
            case _:
                assert words[0] in ("pip", "make", "head"), words

    def _python(self, name: str, arguments: Sequence[str], start: Callable[..., object]) -> None:
        self.monkeypatch.setattr(sys, "argv", [name, *arguments])
        self.monkeypatch.delitem(sys.modules, name, raising=False)
        start(name, run_name="__main__")

    def judge(self, words: Sequence[str], feed: str, output: str) -> None:
        """Compare what a command printed with the truth about the files of `corpora`."""
        lines, inputs = output.splitlines(), feed.splitlines()
        match words[0]:
            case "translate":
                assert lines == [TRANSLATIONS[line] for line in inputs]
            case "classify":
                truth = [{LABELS[word] for word in line.split() if word in LABELS} for line in inputs]
                assert [{line.split("\t")[0]} for line in lines] == truth
            case "tag":
                tagged = [f"{word}\t{TAGS.get(word, 'O')}" for line in inputs for word in (*line.split(), "")]
                assert lines == [line if line[0] != "\t" else "" for line in tagged]
            case "point":
                positions = [order(line.split()) for line in inputs]
                elements = [[line.split()[at - 1] for at in one] for line, one in zip(inputs, positions, strict=True)]
                truth_of = elements if "elements" in words else positions
                assert lines == [" ".join(map(str, row)) for row in truth_of]
            case "generate":
                prompt = words[words.index("--prompt") + 1]
                assert output.startswith(prompt)
                first, _, _ = output.partition("\n")
                assert f"{first}\n" in PLAY, output
            case "regress":
                _judge_rents(lines)
            case "align":
                _judge_links(words, lines)
            case "evaluate":
                _judge_figures(words, output)


def _judge_links(words: Sequence[str], lines: Sequence[str]) -> None:
    """Most of the links that the file decides lead to the right word."""
    pattern = r"\[(\d+), (\d+)\]" if "--json" in words else r"(\d+)-(\d+)"
    right = []
    for line, sources in zip(lines, sources_of(_file_of(words)), strict=True):
        links = [(int(source), int(target)) for source, target in re.findall(pattern, line)]
        right += [source in sources[target] for source, target in links if target < len(sources)]
    assert sum(right) > 0.6 * len(right) > 0, f"{sum(right)} of {len(right)}"


def _file_of(words: Sequence[str]) -> str:
    return next(after for flag, after in pairwise(words) if flag in ("--data", "--source"))


def _judge_rents(lines: Sequence[str]) -> None:
    rows = list(csv.DictReader(lines))
    assert rows
    for row in rows:
        area, age = float(row["area"]), float(row["age"]) if "age" in row else None
        predicted = float(row["rent"])
        assert math.isclose(predicted, rent(area, age), rel_tol=0.15), row
        assert float(row["low"]) < predicted < float(row["high"]), row


_FIGURES = {
    "bleu": 90,
    "chrf": 90,
    "exact_match": 90,
    "accuracy": 95,
    "f1": 95,
    "positions": 85,
    "exact": 70,
    "r2": 0.7,
}
"""The least figure of a model that has learned its file."""


def _judge_figures(words: Sequence[str], output: str) -> None:
    if "--json" in words:
        figures = {row["name"]: row["value"] for row in map(_as_row, output.splitlines())}
    else:
        lines = [line.split("\t") for line in output.splitlines() if "\t" in line]  # a report has none
        figures = {name: float(number) for name, number, *_ in lines}
    judged = _FIGURES.keys() & figures
    assert judged, figures
    assert all(figures[name] >= _FIGURES[name] for name in judged), figures


def _as_row(line: str) -> dict[str, Any]:
    import json

    return dict(json.loads(line))


def run_code(block: Block, page: Path, scope: dict[str, Any]) -> None:
    """Run a block of Python statement by statement, and compare each with what the page shows behind an arrow.

    Raises:
        AssertionError: a value or what is printed differs.
    """
    lines = block.text.splitlines()
    for statement in ast.parse(block.text).body:
        printed = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)  # commands write to its buffer
        module = ast.Module([statement], type_ignores=[])
        value = None
        with contextlib.redirect_stdout(printed):
            if isinstance(statement, ast.Expr):
                code = compile(ast.Expression(statement.value), f"<{page.name}>", "eval")
                value = eval(code, scope)  # noqa: S307
            else:
                exec(compile(module, f"<{page.name}>", "exec"), scope)
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                    value = scope[statement.targets[0].id]
        shown = shown_below(lines, statement)
        if not shown:
            continue
        where = f"{page.name}:{block.line + statement.lineno - 1}"
        output = printed.buffer.getvalue().decode()
        if output:
            assert [line.rstrip() for line in output.splitlines()] == [line.rstrip() for line in shown], where
        else:
            (text,) = shown
            expected = as_literal(text)
            assert same(value, expected), f"{where}: {value!r} is not {expected!r}"


def shown_below(lines: Sequence[str], statement: ast.stmt) -> list[str]:
    """Return what is shown of a statement: behind an arrow at its end, and on the lines below."""
    assert statement.end_lineno is not None
    assert statement.end_col_offset is not None
    last = lines[statement.end_lineno - 1].encode()[statement.end_col_offset :].decode()
    comments = [last, *lines[statement.end_lineno :]]
    shown = []
    for index, line in enumerate(comments):
        comment = line.strip().removeprefix("#").strip()
        if line.strip()[:1] == "#" and comment.startswith(ARROW):
            shown.append(comment.removeprefix(ARROW))
        elif index:
            break
    return shown


def as_literal(text: str) -> object:
    """Return the value at the start of a text, which words may follow behind a colon: "(1, 6): batch, words".

    Raises:
        ValueError: there is none.
    """
    for end in (len(text), *(match.start() for match in re.finditer(":", text))):
        with contextlib.suppress(ValueError, SyntaxError):
            return ast.literal_eval(text[:end].strip())
    raise ValueError(text)


def same(value: Any, expected: object) -> bool:
    """Whether a value is what a page shows: numbers to the digits shown, of a tensor or a map its shape."""
    if isinstance(expected, tuple) and hasattr(value, "shape"):
        return tuple(value.shape) == expected
    if isinstance(expected, float):
        digits = len(repr(expected).partition(".")[2])
        return math.isclose(float(value), expected, abs_tol=0.51 * 10**-digits)
    if isinstance(expected, list | tuple):
        return len(value) == len(expected) and all(map(same, value, expected))
    return bool(value == expected)
