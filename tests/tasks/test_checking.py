"""Messy files of every task: all that is wrong is reported at once, and what is advised leads to a run that works."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import run

import qkv
from qkv.data.choices import LineKind
from qkv.data.report import Report
from qkv.errors import DataError
from qkv.tasks.catalog import TASKS, recipe_of

NAMES = ["Ada", "Bob", "Eve", "Ida", "Max", "Tom", "Uli"]


def name(number: int) -> str:
    return f"{NAMES[number % 7]} {number}"


class Kind(NamedTuple):
    """How a line is spoiled, and what it is reported as."""

    kind: LineKind
    spoil: Callable[[str], bytes]
    refused: bool = True


def replaced(pattern: str, by: str) -> Callable[[str], bytes]:
    return lambda line: re.sub(pattern, by, line).encode()


ENCODING = Kind("encoding", lambda line: line.encode() + b"\xff")
NUL = Kind("encoding", lambda line: line.encode() + b"\0")
TEXTS = [
    Kind("entities", replaced("(fine|Hund)", r"\1 &amp; Co"), refused=False),
    Kind("script", replaced(r"\t.*", "\tСобака бежит"), refused=False),
]
SPOILED: dict[str, list[Kind]] = {
    "translate": [
        ENCODING,
        NUL,
        Kind("empty", lambda line: b""),
        Kind("empty", replaced(r"\t.*", "\t ")),
        Kind("columns", replaced(r"\t", " ")),
        Kind("columns", replaced(r"\t", "\tx\t")),
        Kind("long", replaced("Hund", "Hund " + "sehr " * 300)),
        Kind("identical", replaced(r"(.*)\t.*", r"\1\t\1"), refused=False),
        Kind(
            "ratio",
            replaced(r"\t", "\tand so on and on, as long as nobody minds, and then some more of the same, " * 1),
            False,
        ),
        *TEXTS,
    ],
    "classify": [
        ENCODING,
        NUL,
        Kind("empty", lambda line: b" "),
        Kind("empty", replaced(r"^\w+", "")),
        Kind("columns", replaced(r"\t", " ")),
        Kind("long", replaced("fine", "very " * 600)),
        *TEXTS,
    ],
    "tag": [
        Kind("encoding", lambda line: b"\xff" + line.encode()),
        Kind("columns", replaced(r"\tB", "\tx\tB")),
        Kind("empty", replaced(r"\tB-PER", "\t")),
        Kind("long", lambda line: ("".join(f"w{n}\tO\n" for n in range(600)) + line).encode()),
    ],
    "generate": [ENCODING, NUL, Kind("entities", replaced("question", "&quot;question&quot;"), refused=False)],
    "point": [
        ENCODING,
        Kind("empty", lambda line: b""),
        Kind("columns", replaced(r"\t", "\t1\t")),
        Kind("invalid", replaced(r"\t.*", "\t7 8")),
        Kind("invalid", replaced(r"^\d+", "x")),
    ],
    "regress": [
        Kind("columns", replaced(",", ",1,")),
        Kind("empty", replaced(",.*", ",")),
        Kind("invalid", replaced(",.*", ",12 km")),
    ],
}
LINES: dict[str, Callable[[int], str]] = {
    "translate": lambda n: f"der Hund {name(n)}\tthe dog {name(n)}",
    "classify": lambda n: f"{'good' if n % 2 else 'bad'}\ta fine film of {name(n)}",
    "tag": lambda n: f"{name(n).replace(' ', '')}\tB-PER\nsleeps\tO\n",
    "generate": lambda n: f"to be or not to be {name(n)}, that is the question",
    "point": lambda n: f"{30 + n} 10 20\t2 3 1",
    "regress": lambda n: f"{20 + n}.5,{300 + 8 * n}",
}
FILE = {"generate": "text"}
MORE: dict[str, dict[str, Any]] = {"regress": {"x": ["area"], "y": "rent"}}
COUNT = 60


def spoiled(task: str, kinds: list[Kind], seed: int) -> tuple[bytes, dict[int, Kind], list[str]]:
    """A file with one spoiled line of each kind, where they are, and the sound examples."""
    sound = [LINES[task](n) for n in range(COUNT)]
    chosen = dict(zip(Random(seed).sample(range(1, COUNT), len(kinds)), kinds, strict=True))
    head = ["area,rent"] if task == "regress" else []
    body, where = [line.encode() for line in head], {}
    line = 1 + len(head)
    for index, text in enumerate(sound):
        data = chosen[index].spoil(text) if index in chosen else text.encode()
        if index in chosen:
            where[line] = chosen[index]
        body.append(data)
        line += data.count(b"\n") + 1
    kept = [text for index, text in enumerate(sound) if index not in chosen]
    return b"\n".join(body) + b"\n", where, [*head, *kept]


def checked(task: str, path: Path, **more: Any) -> Report:
    return qkv.check(task, **{FILE.get(task, "data"): path}, **MORE.get(task, {}), **more)  # type: ignore[arg-type]


@st.composite
def messes(draw: st.DrawFn) -> tuple[str, list[Kind], int]:
    task = draw(st.sampled_from(list(SPOILED)))
    return task, draw(st.lists(st.sampled_from(SPOILED[task]), unique_by=id, max_size=5)), draw(st.integers(0, 9))


@given(mess=messes())
@settings(max_examples=40, deadline=None)
def test_everything_is_reported_at_once_and_the_advice_works(
    mess: tuple[str, list[Kind], int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    task, kinds, seed = mess
    path = tmp_path_factory.mktemp("messy") / "data"
    body, where, kept = spoiled(task, kinds, seed)
    path.write_bytes(body)
    report = checked(task, path)
    found = {(finding.kind, line) for finding in report.findings for line in finding.lines}
    assert {(kind.kind, line) for line, kind in where.items()} <= found
    refused = {line for finding in report.findings if finding.outcome == "refused" for line in finding.lines}
    assert refused == {line for line, kind in where.items() if kind.refused}
    if not refused:
        report.expect_usable()
        return
    with pytest.raises(DataError) as error:
        report.expect_usable()
    assert error.value.line in refused
    advice = re.search(r'skip="([a-z,]+)"', error.value.hint)
    assert advice is not None, error.value.hint
    skip = advice[1].split(",")
    after = checked(task, path, skip=skip)
    after.expect_usable()
    recipe, tables = recipe_of(task), {"data": {FILE.get(task, "data"): path, "skip": skip, **MORE.get(task, {})}}
    recipe.read(recipe.load_settings(tables), None)  # what was advised leads to a run that works
    everything = [kind.kind for kind in kinds]
    if {"long", "invalid"} & set(everything):
        return  # they are found by the tokenizer, or the kind of elements, of all that is trained on
    path.write_bytes(body)
    before = _read(recipe, task, path, everything).identity()
    path.write_text("\n".join(kept) + "\n")
    assert before == _read(recipe, task, path, []).identity()


def _read(recipe: Any, task: str, path: Path, skip: list[LineKind]) -> Any:
    used = recipe.load_settings({"data": {FILE.get(task, "data"): path, "skip": skip, **MORE.get(task, {})}})
    return recipe.read(used, None)


@pytest.mark.parametrize("task", SPOILED)
def test_the_command_says_what_python_says(task: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    body, _, _ = spoiled(task, SPOILED[task][:3], 0)
    path.write_bytes(body)
    report = checked(task, path)
    flags = [flag for key, value in MORE.get(task, {}).items() for flag in (f"--{key}", "".join(value))]
    done = run("check", task, f"--{FILE.get(task, 'data')}", str(path), *flags)
    assert done.exit_code == 2
    assert done.stdout == f"{report}\n"
    stored = json.loads(run("check", task, f"--{FILE.get(task, 'data')}", str(path), *flags, "--json").stdout)
    assert stored == json.loads(json.dumps(report.to_json_value()))
    assert not stored["usable"]


def test_every_task_can_be_checked_and_skips() -> None:
    for task in TASKS.values():
        assert "skip" in task.names_of_data


def test_a_training_begins_with_the_report_and_what_is_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_bytes(spoiled("translate", SPOILED["translate"], 3)[0])
    size: Any = {"model": "gru", "width": 8, "steps": 1, "batch_tokens": 2048, "minimum": 1}
    with pytest.raises(DataError) as error:
        qkv.train("translate", data=path, out=tmp_path / "run", **size)
    said = capsys.readouterr().err
    for kind in ("encoding", "columns", "empty", "long", "identical", "ratio", "entities", "script"):
        assert f": {kind}: " in said
    assert "held out to validate on: " in said
    skip: Any = error.value.hint.rpartition('skip="')[2].removesuffix('".').split(",")
    run_ = qkv.train("translate", data=path, out=tmp_path / "run", skip=skip, **size)
    assert run_.outcome.step == 1
    assert ": empty: 2 lines without text where some belongs, left out: " in capsys.readouterr().err
