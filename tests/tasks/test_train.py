"""`qkv.train`: the commands of training as a function, with data as values and typed settings."""

import inspect
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import qkv
from qkv.checkpoint.folder import load as load_checkpoint
from qkv.checkpoint.folder import save
from qkv.checkpoint.former_names import FORMER_NAMES
from qkv.checkpoint.rotation import latest_complete
from qkv.cli.app import app
from qkv.errors import CheckpointError, ConfigError, DataError, QkvError
from qkv.settings import options_of
from qkv.tasks import train as module
from qkv.tasks.catalog import TASKS, recipe_of
from qkv.tasks.classify.predict import Classifier
from qkv.tasks.load import load
from qkv.tasks.train import Run, train
from qkv.tasks.translate.predict import Translator
from qkv.training.events import Event, Logged, Saved, Updated, Validated

LETTERS = "abcdefgh"
PAIRS = [(a + b, (b + a).upper()) for a in LETTERS for b in LETTERS]
TINY: dict[str, Any] = {"model": "gru", "width": 16, "tokenizer": "char", "steps": 4, "validate_every": 2}


def translator(out: Path, **settings: Any) -> "Run[Translator]":
    return qkv.train("translate", out=out, quiet=True, **{**TINY, "log_every": 2, "data": PAIRS, **settings})


def test_train_is_a_function(tmp_path: Path) -> None:
    run = translator(tmp_path / "run")
    assert (run.outcome.reason, run.outcome.step) == ("finished", 4)
    assert [each.source for each in run.load().translate_fully(["ab", ""])] == ["ab", ""]
    assert inspect.isfunction(qkv.train)


def test_values_give_the_run_that_files_give(tmp_path: Path) -> None:
    digests = []
    for number, data in enumerate((PAIRS, iter(PAIRS), _tsv(tmp_path), str(_tsv(tmp_path)))):
        digests.append(translator(tmp_path / f"run-{number}", data=data).outcome.digest)
    sides = {"source": [one for one, _ in PAIRS], "target": [other for _, other in PAIRS], "data": None}
    given = {name: item for name, item in sides.items() if item is not None}
    apart = train("translate", out=tmp_path / "apart", quiet=True, **{**TINY, "log_every": 2, **given})
    assert {*digests, apart.outcome.digest} == {digests[0]}


def _tsv(folder: Path) -> Path:
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{one}\t{other}\n" for one, other in PAIRS), encoding="utf-8")
    return path


def test_the_same_call_again_resumes(tmp_path: Path) -> None:
    translator(tmp_path / "run", steps=2)
    events: list[Event] = []
    again = translator(tmp_path / "run", steps=4, callbacks=[events.append])
    assert [event.step for event in events if isinstance(event, Updated)] == [3, 4]
    assert again.outcome.step == 4


def test_callbacks_get_every_event(tmp_path: Path) -> None:
    events: list[Event] = []
    translator(tmp_path / "run", callbacks=[events.append])
    kinds = [(type(event), event.step) for event in events if isinstance(event, Updated | Logged | Validated | Saved)]
    assert [step for kind, step in kinds if kind is Updated] == [1, 2, 3, 4]
    assert [step for kind, step in kinds if kind is Logged] == [2, 4]
    assert (
        [step for kind, step in kinds if kind is Validated] == [step for kind, step in kinds if kind is Saved] == [2, 4]
    )


def test_what_a_callback_raises_ends_the_training(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, Saved):
            raise StopIteration("enough")

    with pytest.raises(StopIteration, match="enough"):
        translator(tmp_path / "run", callbacks=[stop])
    assert len(load(tmp_path / "run", task="translate").translate_fully(["ab"])) == 1


def test_the_size_of_a_small_model_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = qkv.train("translate", data=PAIRS, out=tmp_path / "run", **{**TINY, "steps": 1})
    count = sum(parameter.numel() for parameter in run.load().model.parameters())
    assert count < 100_000
    assert f"{count:,}" in capsys.readouterr().err


def test_quiet_is_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    translator(tmp_path / "run")
    assert capsys.readouterr() == ("", "")


OTHERS: dict[str, dict[str, Any]] = {
    "generate": {"text": ["the cat sat on the mat . " * 30] * 9, "context": 16, "width": 16, "heads": 2, "layers": 1},
    "classify": {"data": [("good", "a fine film"), ("bad", "a dull film")] * 20, "width": 8},
    "tag": {"data": [[("Ada", "PERSON"), ("wrote", "O")], [("rain", "O")]] * 20, "width": 8},
    "point": {"data": [("3 1 2", "2 3 1"), ("1 2", "1 2")] * 40, "width": 8, "model": "gru"},
}


@pytest.mark.parametrize("task", OTHERS)
def test_every_task_takes_values(task: str, tmp_path: Path) -> None:
    run: Run[Any] = train(task, out=tmp_path / "run", steps=2, quiet=True, **OTHERS[task])  # type: ignore[call-overload]
    assert run.outcome.step == 2
    assert run.load() is not None


def test_a_regression_is_trained_from_its_table(tmp_path: Path) -> None:
    path = tmp_path / "rents.csv"
    path.write_text("area,rent\n" + "".join(f"{n},{2 * n}\n" for n in range(20)), encoding="utf-8")
    run = train("regress", out=tmp_path / "run", data=path, x=["area"], y="rent", bandwidth=2.0, quiet=True)
    assert run.load().x == ("area",)


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        (
            {"stepz": 3},
            ConfigError,
            'stepz: expected a setting of translate; got an unknown one. Did you mean "steps"?',
        ),
        ({"text": ["a"]}, ConfigError, "text: expected a setting of translate"),
        ({"steps": "many"}, ConfigError, "steps: expected an integer"),
        ({"score": "concat"}, ConfigError, "score: expected additive or nonlocal-concat"),
        ({"normalizer": "sum"}, ConfigError, "normalizer: expected softmax"),
        ({"heads": 3, "width": 8}, ConfigError, "heads: expected"),
        ({"callbacks": 3}, ConfigError, "callbacks: expected a sequence of functions; got 3"),
        ({"callbacks": print}, ConfigError, "callbacks: expected a sequence of functions; got one function"),
        ({"callbacks": [3]}, ConfigError, "callbacks: expected a sequence of functions; got [3]"),
        (
            {"score": "adative"},
            ConfigError,
            "score: expected the name of a score; got 'adative'. Did you mean \"additive\"?",
        ),
        ({"data": [("a", "b"), ("c",)]}, DataError, "data:2: expected a pair of texts; got ('c',)"),
        ({"data": [("a", "b\tc")]}, DataError, "data:1: expected a text without tabs and line breaks"),
        ({"data": [("a", 7)]}, DataError, "data:1: expected a text; got int"),
        ({"data": [("a", "b"), ("c", " ")]}, DataError, "data:2: expected text in both columns; got an empty target"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, settings: dict[str, Any], error: type[QkvError], told: str) -> None:
    with pytest.raises(error) as raised:
        translator(tmp_path / "run", **settings)
    assert told in str(raised.value)
    assert str(raised.value).startswith(told.partition(":")[0])  # not the name of a table or a flag
    assert "--" not in str(raised.value)
    assert not list(tmp_path.glob("run/step-*"))


def test_missing_data_is_asked_for_by_its_names_in_python(tmp_path: Path) -> None:
    for task in TASKS:
        with pytest.raises(ConfigError) as raised:
            train(task, out=tmp_path / "run")  # type: ignore[call-overload]
        assert "--" not in str(raised.value), task


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'task: expected one of translate, .*Did you mean "translate"'):
        train("translation", out="run")  # type: ignore[call-overload]


@pytest.mark.parametrize("task", TASKS)
def test_the_settings_are_those_of_the_command(task: str) -> None:
    group = get_command(app).commands["train"]  # type: ignore[attr-defined]
    flags = {each.name for each in group.commands[task].params if each.opts[0].startswith("-")}
    assert flags - {*options_of(TASKS[task].options), "help", "quiet", "verbose", "json"} == set(TASKS[task].table_of)
    typed = {each.name for each in fields(getattr(module, f"{task.capitalize()}Settings")) if each.init}
    assert typed == {each.name for each in fields(module.CallSettings)} | set(TASKS[task].table_of)


@pytest.mark.parametrize("task", TASKS)
def test_every_setting_lies_in_a_table_of_the_task(task: str) -> None:
    """A name that no table has is refused as unknown, which a wrong table would do for all values."""
    for name, table in TASKS[task].table_of.items():
        with pytest.raises(ConfigError) as raised:
            recipe_of(task).load_settings({table: {name: object()}})
        assert "unknown" not in str(raised.value), name


@pytest.mark.parametrize("task", FORMER_NAMES)
def test_a_run_that_was_written_with_former_names_is_read_and_resumed(task: str, tmp_path: Path) -> None:
    settings = {"data": PAIRS, **TINY} if task == "translate" else OTHERS[task]
    settings = {**settings, "out": tmp_path / "run", "quiet": True}
    train(task, **{**settings, "steps": 1})  # type: ignore[call-overload]

    former = {(*dotted.split(".")[:1], today): dotted.split(".")[1] for dotted, today in FORMER_NAMES[task].items()}

    def as_it_was(config: Any) -> dict[str, Any]:
        tables = {table: rows for table, rows in config.items() if isinstance(rows, dict)}
        return config | {
            table: {former.get((table, name), name): item for name, item in rows.items()}
            for table, rows in tables.items()
        }

    newest = latest_complete(tmp_path / "run", print)
    assert newest is not None
    contents = load_checkpoint(newest)
    save(newest, replace(contents, config=as_it_was(contents.config)), replace=True)
    begun = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**begun, "config": as_it_was(begun["config"])}))
    assert as_it_was(begun["config"]) != begun["config"] == contents.config

    load(tmp_path / "run")
    resumed = train(task, **{**settings, "steps": 2})  # type: ignore[call-overload]
    assert resumed.outcome.step == 2
    stored = load_checkpoint(resumed.outcome.checkpoint).config
    assert stored == {**contents.config, "training": {**contents.config["training"], "steps": 2}}  # type: ignore[dict-item]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"] == stored


def test_a_model_is_loaded_for_its_task_only(tmp_path: Path) -> None:
    run = train("classify", out=tmp_path / "run", steps=1, quiet=True, **OTHERS["classify"])
    found: Classifier = load(run.folder, task="classify")
    assert found.labels == ("bad", "good")
    with pytest.raises(CheckpointError, match="trained to classify"):
        load(run.folder, task="translate")
    with pytest.raises(ConfigError, match=r'task: expected a known task; got "clasify". Did you mean "classify"'):
        load(run.folder, task="clasify")  # type: ignore[call-overload]
