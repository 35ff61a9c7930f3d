"""Settings from a file: every name and type is checked, and messages say where."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from qkv.errors import ConfigError, QkvError
from qkv.settings import build, check_tables, choices_of, hints_of, options_of, read_toml
from qkv.tasks.catalog import TASKS, recipe_of
from qkv.tasks.run import train_run
from qkv.tasks.translate import recipe as training


@dataclass(frozen=True)
class Model:
    width: int
    rate: float = 0.5
    kind: Literal["gru", "lstm"] = "gru"
    tied: bool = False
    longest: int | None = None
    sizes: tuple[int, ...] = field(default_factory=lambda: (1, 2))
    out: Path = Path("run")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "config: expected a readable file; got {path}: No such file or directory"),
        (b"width = ", "config: expected TOML in UTF-8; got {path}: Invalid value"),
        (b"\xff", "config: expected TOML in UTF-8; got {path}: byte 0xFF at byte 1. Save it as plain text in UTF-8."),
        (b"width = 3  # na\xefve\n", "config: expected TOML in UTF-8; got {path}: byte 0xEF at byte 16"),
        (b"width = 9223372036854775808", "an integer of more than 64 bits"),
        (b"[model]\nsizes = [[1, 99999999999999999999]]", "an integer of more than 64 bits"),
        (b"x" * 5000 + b" = 1", "a name of 5,000 characters"),
        (b"a = " + b"[" * 100_000, "config: expected flat tables of settings; got {path}: nested too deeply"),
    ],
    ids=["no file", "no value", "not UTF-8", "Latin-1", "long number", "long number inside", "long name", "deep"],
)
def test_a_file_that_is_none_is_named(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(message.format(path=path))) as raised:
        read_toml(path)
    assert len(str(raised.value)) < 1000


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbf[model]\r\nwidth = 8\r\n")
    assert read_toml(tmp_path / "run.toml") == {"model": {"width": 8}}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "width: expected a value; got none. It has no default: set it."),
        ({"wdith": 3}, 'model.wdith: expected a known setting; got an unknown one. Did you mean "width"?'),
        ({"width": "256"}, 'width: expected an integer; got "256"'),
        ({"width": True}, "width: expected an integer; got true"),
        ({"width": 1.0}, "width: expected an integer; got 1.0"),
        ({"width": 1, "rate": True}, "rate: expected a number; got true"),
        ({"width": 1, "tied": 1}, "tied: expected true or false; got 1"),
        ({"width": 1, "kind": "gur"}, 'kind: expected "gru" or "lstm"; got "gur". Did you mean'),
        ({"width": 1, "longest": "x"}, 'longest: expected an integer; got "x"'),
        ({"width": 1, "sizes": 3}, "sizes: expected "),
        ({"width": 1, "out": 3}, "out: expected a path; got 3"),
    ],
    ids=lambda given: given[:60] if isinstance(given, str) else "",
)
def test_a_setting_that_is_none_is_named(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(Model, table, "model")
    assert str(raised.value).startswith(message)


def test_values_become_what_the_settings_say() -> None:
    model = build(Model, {"width": 2, "rate": 1, "sizes": [3], "longest": 5, "out": "there"})
    assert model == Model(2, 1.0, sizes=(3,), longest=5, out=Path("there"))
    assert isinstance(model.rate, float)


def test_tables_that_are_none_are_named() -> None:
    with pytest.raises(ConfigError, match=r"model: expected a table of settings; got 1. Write \[model\]"):
        check_tables({"model": 1}, {"model": Model})
    with pytest.raises(ConfigError, match=r'modle: expected one of the tables model; .*Did you mean "model"'):
        check_tables({"modle": {}}, {"model": Model})


@pytest.mark.parametrize("task", TASKS)
def test_settings_above_all_tables_are_told_their_table(task: str) -> None:
    recipe = recipe_of(task)
    classes = recipe.settings.tables
    for name in {option for cls in classes.values() for option in options_of(cls)}:
        with pytest.raises(ConfigError) as raised:
            recipe.load_settings({name: 1})
        owners = [table for table, cls in classes.items() if name in options_of(cls)]
        assert any(f"[{table}]" in raised.value.hint for table in owners)


@pytest.mark.parametrize(
    "text",
    [
        f'[model]\nmodel = "{"x" * 100_000}"\n',
        f'[model]\nalignment = "{"x" * 100_000}"\n',
        f"[tokenizer]\nvocabulary = {'[' * 50}{'1,' * 100_000}{']' * 50}\n",
        f'[training]\nschedule = "{"x" * 100_000}"\n',
        f'[training]\nmonitor = "{"x" * 100_000}"\n',
        f'[data]\ndata = "{"x" * 100_000}"\n',
    ],
)
def test_a_long_value_is_not_quoted_whole(tmp_path, text):
    (tmp_path / "long.toml").write_text(text)
    recipe = training.RECIPE
    with pytest.raises(QkvError) as raised:
        train_run(recipe, recipe.load_settings(read_toml(tmp_path / "long.toml")), tmp_path / "run")
    assert len(str(raised.value)) < 5000


@pytest.mark.parametrize("task", TASKS)
def test_an_unknown_setting_of_a_model_lists_names_that_the_task_takes(task: str) -> None:
    recipe = recipe_of(task)
    with pytest.raises(ConfigError, match="an unknown one") as raised:
        recipe.load_settings({"model": {"zzqqxx": 1}})
    listed = raised.value.hint.removeprefix("Valid: ").rstrip(".").partition(" and ")[0].split(", ")
    assert set(listed) <= set(options_of(recipe.settings.tables["model"]))


_QUOTED = {int: "8", float: "0.5", bool: "true"}


@pytest.mark.parametrize("task", TASKS)
def test_each_refused_value_has_a_hint_that_suits_it(task: str) -> None:
    """A number or truth value in quotation marks, and no number, of each setting that takes some."""
    quoted = 0
    for name, table_name in TASKS[task].table_of.items():
        table = TASKS[task].tables[table_name]
        choices = choices_of(hints_of(table)[name])
        for text in [text for kind, text in _QUOTED.items() if kind in choices and str not in choices]:
            hint = _hint(table, name, text)
            assert hint, name
            quoted += hint == "Write it without quotation marks."
        if float in choices and options_of(table)[name].bounded:
            assert _hint(table, name, math.nan) not in ("", "Give a value of that type."), name
    assert quoted


def _hint(table: Any, name: str, item: object) -> str:
    with pytest.raises(ConfigError) as caught:
        build(table, {name: item}, "")
    return caught.value.hint


@pytest.mark.parametrize("task", ["translate", "classify", "tag"])
@pytest.mark.parametrize(("kind", "rate"), [("gru", 0.003), ("lstm", 0.003), ("rnn", 0.003), ("transformer", 0.001)])
def test_the_learning_rate_follows_the_kind_of_model(task: str, kind: str, rate: float) -> None:
    recipe: Any = recipe_of(task)
    settings = recipe.load_settings({"model": {"model": kind}})
    training = settings.training
    assert training.learning_rate == rate
    assert f"{kind if rate == 0.003 else 'others'} {rate:g}" in recipe.settings.help_of("learning_rate")
    own = recipe.load_settings({"model": {"model": kind}, "training": {"learning_rate": 0.5}})
    assert own.training.learning_rate == 0.5
