"""A flag that would change nothing is refused by its name, and nothing is written."""

import re
from pathlib import Path

import pytest
from tests.cli.command import refused, run, succeeded
from tests.cli.shelf import TRAININGS, Shelf

IDLE = [
    *((f"translate translate {flag}", flag) for flag in ("--length-penalty 0.5", "--normalization wu", "--coverage 1")),
    ("translate translate --stop filled", "--stop"),
    ("translate translate --mean log_probability", "--mean"),
    ("translate translate --sample --length-penalty 0.5", "--length-penalty"),
    *((f"translate translate {flag}", flag) for flag in ("--temperature 1", "--top-k 2", "--top-p 0.5", "--seed 0")),
    ("evaluate translate --data DATA --length-penalty 0.5", "--length-penalty"),
    ("evaluate translate --data DATA --mean log_probability", "--mean"),
    *(
        (f"evaluate {task} --data DATA {flag}", flag)
        for task in ("classify", "tag", "regress")
        for flag in ("--beam 2", "--max-tokens 3", "--mean log_probability", "--source-col 1")
    ),
    ("evaluate point --data DATA --max-tokens 3", "--max-tokens"),
    ("evaluate point --data DATA --beam 2 --length-penalty 0.5", "--length-penalty"),
    *(
        (f"evaluate generate --text DATA {flag}", flag)
        for flag in ("--out OUT", "--beam 2", "--max-tokens 3", "--mean log_probability")
    ),
    *(
        (f"generate generate --prompt KING --tokens 3 --beam 2 {flag}", flag)
        for flag in ("--temperature 0.5", "--top-k 2", "--top-p 0.5", "--seed 1")
    ),
    ("align translate --data DATA --symmetrize union", "--symmetrize"),
    ("align translate --data DATA --gold-from 1", "--gold-from"),
    ("regress regress --seed 1", "--seed"),
    ("regress regress --interval none --seed 1", "--seed"),
    ("regress regress --interval none --level 0.5", "--level"),
    ("regress regress --curve 3 --decimal comma", "--decimal"),
    ("prepare translate --out OUT --pairs --field a", "--field"),
    ("prepare translate --out OUT --pairs --source-field a", "--source-field"),
    ("prepare translate --out OUT --pairs --target-field a", "--target-field"),
    *((f"prepare generate --out OUT {flag}", flag) for flag in ("--field a", "--longest 9", "--too-long skip")),
]


@pytest.fixture(autouse=True)
def in_the_folder(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shelf.folder)


@pytest.mark.parametrize(("words", "flag"), IDLE, ids=[words for words, _ in IDLE])
def test_a_flag_without_effect_is_refused(words: str, flag: str, shelf: Shelf, tmp_path: Path) -> None:
    command, task, *rest = words.split()
    known = {"DATA": shelf.folder / TRAININGS[task][1], "OUT": tmp_path / "out"}
    first = known["DATA"] if command == "prepare" else shelf.run(task)
    done = run(command, first, *(known.get(word, word) for word in rest), feed="25\n")
    refused(done)
    name = flag.split(maxsplit=1)[0]
    known_flag = rf"qkv: {name}( \(.*\))?: expected"
    # What the task of a run has no use for is no flag of its command.
    assert re.match(known_flag, done.stderr) or f"No such option: {name}" in done.stderr, done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        "translate translate --beam 2 --length-penalty 0.5 --normalization wu --stop filled",
        "generate generate --prompt KING --tokens 3 --beam 2 --temperature 0",
        "evaluate point --data DATA --beam 2",
        "regress regress --interval bootstrap --seed 1 --level 0.5",
    ],
)
def test_the_same_flags_are_taken_where_they_have_an_effect(words: str, shelf: Shelf) -> None:
    command, task, *rest = words.split()
    arguments = (shelf.folder / TRAININGS[task][1] if word == "DATA" else word for word in rest)
    succeeded(run(command, shelf.run(task), *arguments, feed="25\n" if task == "regress" else "a b\n"))
