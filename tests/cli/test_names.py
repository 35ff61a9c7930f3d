"""Messages name what exists: flags, positional arguments, settings, devices."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.command import commands, refused, run, succeeded
from tests.cli.shelf import Shelf
from tests.cli.test_defaults import COMMANDS

import qkv
from qkv.checkpoint.former_names import FORMER_NAMES
from qkv.cli.app import app
from qkv.errors import on_command_line
from qkv.tasks import notes
from qkv.tasks.catalog import TASKS

SOURCES = Path(qkv.__file__).parent


@pytest.fixture(autouse=True)
def in_the_folder(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shelf.folder)


def flags_of(command: Any) -> set[str]:
    own = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    return own.union(*map(flags_of, getattr(command, "commands", {}).values()))


def texts_of(tree: ast.Module) -> list[str]:
    """The strings of a module, without its docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and node.body]
    docs = {id(each.value) for each in first if isinstance(each, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs]
    return [node.value for node in constants if isinstance(node.value, str)]


def test_every_flag_in_a_message_exists() -> None:
    known = flags_of(commands(app)) | {"--help"}
    for path in sorted({*SOURCES.rglob("*.py")} - {SOURCES / "compiled/build.py"}):  # a program with flags of its own
        source = path.read_text(encoding="utf-8")
        if "--" not in source and "setting(" not in source:  # to parse all files takes seconds
            continue
        tree = ast.parse(source)
        named = {flag for text in texts_of(tree) for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
        named |= {on_command_line(name) for name in settings_in(tree)}
        assert named <= known, (path, named - known)
        formatted = [value for text in ast.walk(tree) if isinstance(text, ast.JoinedStr) for value in text.values]
        assert not any(map(settings_in, formatted)), (path, "an f-string forgets that a text is a setting: add them")


def settings_in(tree: ast.AST) -> set[str]:
    """The settings that errors of a module name."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [call.args[0] for call in calls if getattr(call.func, "id", "") == "setting" and call.args]
    return {name.value for name in names if isinstance(name, ast.Constant)}


def test_a_device_that_is_none_names_those_of_this_machine(shelf: Shelf) -> None:
    done = run("classify", shelf.run("classify"), "--device", "gpu", feed="a film\n")
    refused(done, "--device", '"gpu"', '"cpu"')
    assert ("cuda" in done.stderr.partition(". ")[0]) == torch.cuda.is_available()
    assert len(done.stderr) < 250


def test_a_positional_argument_is_no_option(shelf: Shelf) -> None:
    done = run("translate", shelf.run("translate"), shelf.run("classify"), feed="a b\n")
    assert done.exit_code == 2
    assert "--run" not in done.stderr
    assert "--runs" not in done.stderr


def test_other_settings_are_refused_by_their_flags_before_data_are_read(shelf: Shelf) -> None:
    out = shelf.run("classify")
    flags = ("--data", "no such file", "--out", out, "--steps", "9", "--width", "8")
    done = run("train", "classify", *flags, "--learning-rate", "0.5", "--dropout", "0.3")
    refused(done, "--learning-rate 0.5 (it was 0.003)", "--dropout 0.3", out)
    refused(run("train", "classify", *flags), "no such file")


def test_a_hint_names_no_flag_that_the_command_lacks(shelf: Shelf, tmp_path: Path) -> None:
    run_folder = shelf.run("regress")
    for field in ("NA", "", "inf", "#REF!", "1,5", "1,234", "2e200", "x"):
        rows = f'area,rent\n25,1\n"{field}",2\n'
        (tmp_path / "rows.csv").write_text(rows)
        for command, done in (
            ("regress", run("regress", run_folder, feed=rows)),
            ("evaluate regress", run("evaluate", run_folder, "--data", tmp_path / "rows.csv")),
        ):
            refused(done, ":3: expected")
            known = {name for option in COMMANDS[command].params for name in option.opts}
            assert set(re.findall(r"--[a-z-]+", done.stderr)) <= known, done.stderr


def test_settings_of_another_preparation_are_refused_by_their_flags(shelf: Shelf, tmp_path: Path) -> None:
    prepare = ["prepare", shelf.folder / "plays.txt", "--out", tmp_path / "out"]
    succeeded(run(*prepare, "--tokenizer", "char"))
    refused(done := run(*prepare, "--tokenizer", "word"), "--tokenizer", "word (it was char)")
    assert len(done.stderr.splitlines()) == 1
    assert "settings." not in done.stderr


def test_lists_of_another_run_stand_in_one_line(shelf: Shelf, tmp_path: Path) -> None:
    train = ["train", "regress", "--data", shelf.folder / "rents.csv", "--y", "rent", "--out", tmp_path / "out"]
    succeeded(run(*train, "--x", "area"))
    (tmp_path / "two.csv").write_text("area,age,rent\n1,2,3\n2,5,4\n3,4,6\n")
    done = run(*[tmp_path / "two.csv" if part == shelf.folder / "rents.csv" else part for part in train], "--x", "age")
    refused(done, '--x ["age"] (it was ["area"])')


@pytest.mark.parametrize(("task", "flag"), [("generate", "--text plays.txt"), ("translate", "--data pairs.tsv")])
def test_a_file_in_place_of_a_prepared_corpus_is_told_its_flag(
    task: str, flag: str, shelf: Shelf, tmp_path: Path
) -> None:
    file = flag.rsplit(maxsplit=1)[-1]
    refused(run("train", task, file, "--out", tmp_path / "out"), "a folder that `qkv prepare` wrote", "a file", flag)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("task", "former", "today"),
    [(task, *names) for task, table in FORMER_NAMES.items() for names in table.items()],
)
def test_a_former_name_in_a_settings_file_is_told_its_name_of_today(
    task: str, former: str, today: str, tmp_path: Path
) -> None:
    table, name = former.split(".")
    if table not in TASKS[task].tables:
        return
    assert not today or TASKS[task].table_of[today] == table
    (tmp_path / "run.toml").write_text(f'[{table}]\n{name} = "gru"\n')
    done = run("train", task, "--config", tmp_path / "run.toml", "--out", tmp_path / "run")
    refused(done, f"{table}.{name}", today, "earlier")


def test_fitting_a_regression_says_how_long_it_has_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "SILENCE", 0.001)
    done = succeeded(
        run("train", "regress", "--data", "rents.csv", "--x", "area", "--y", "rent", "--out", tmp_path / "r")
    )
    assert re.search(r"qkv: fitting, \d+ s", done.stderr)


def test_the_held_out_part_has_a_flag(tmp_path: Path) -> None:
    shown = succeeded(run("train", "generate", "--text", "plays.txt", "--holdout", "0.25", "--print-config")).stdout
    assert "holdout = 0.25" in shown
    shown = succeeded(run("train", "translate", "--data", "pairs.tsv", "--holdout", "3", "--print-config")).stdout
    assert "holdout = 3" in shown


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        (["--holdout", "100000"], "--holdout"),
        (["--vocabulary", "3"], "--vocabulary"),
        (["--format", "tables"], "--format"),
        (["--tokenizer", "rock"], "--tokenizer"),
    ],
)
def test_a_command_without_a_settings_file_names_its_flags_alone(
    settings: list[str], argument: str, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("one line\n" * 9)
    refused(done := run("prepare", tmp_path / "text", "--out", tmp_path / "out", *settings), argument)
    assert not re.search(r"\((data|tokenizer)\.", done.stderr)
