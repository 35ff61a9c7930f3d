"""What all training tasks share: epochs, batch sizes, and settings of earlier versions."""

from pathlib import Path
from typing import Any

import pytest

from qkv.checkpoint.former_names import with_todays_names
from qkv.checkpoint.run import read_config
from qkv.errors import CheckpointError, ConfigError
from qkv.settings import as_dict, build
from qkv.tasks.catalog import TASKS
from qkv.tasks.classify import recipe as classify
from qkv.tasks.generate import recipe as generate
from qkv.tasks.origin import open_origin
from qkv.tasks.point import recipe as point
from qkv.tasks.recipe import AnyRecipe
from qkv.tasks.regress import recipe as regress
from qkv.tasks.run import train_run
from qkv.tasks.run_folder import OLDER_DEFAULTS
from qkv.tasks.tag import recipe as tag
from qkv.tasks.translate import recipe as translate

RECIPES: dict[str, AnyRecipe] = {
    "translate": translate.RECIPE,
    "generate": generate.RECIPE,
    "classify": classify.RECIPE,
    "tag": tag.RECIPE,
    "point": point.RECIPE,
    "regress": regress.RECIPE,
}
BEFORE: list[tuple[str, dict[str, Any]]] = [
    (
        "translate",
        {
            "kind": "gru",
            "score": "additive",
            "wiring": "bahdanau",
            "embedding": 256,
            "hidden": 512,
            "attention": 256,
            "dropout": 0.3,
            "tied": True,
            "memory": "whole",
            "copy": "none",
        },
    ),
    (
        "translate",
        {
            "kind": "transformer",
            "score": "scaled_dot",
            "width": 256,
            "heads": 4,
            "feed_forward": 1024,
            "encoder_layers": 3,
            "decoder_layers": 3,
            "dropout": 0.2,
            "attention_dropout": 0.0,
            "norm_first": True,
            "tied": True,
            "copy": "none",
        },
    ),
    (
        "generate",
        {
            "score": "scaled_dot",
            "normalizer": "softmax",
            "positions": "rotary",
            "context": 256,
            "width": 192,
            "heads": 6,
            "feed_forward": 768,
            "layers": 4,
            "activation": "squared_relu",
            "bias": True,
            "dropout": 0.1,
            "attention_dropout": 0.0,
            "tied": True,
        },
    ),
    *(
        (
            task,
            {
                "encoder": encoder,
                "pool": "attention",
                "width": 256,
                "layers": 1,
                "heads": 4,
                "feed_forward": 512,
                "dropout": 0.5,
                "word_dropout": 0.1,
                "residual": False,
            },
        )
        for task in ("classify", "tag")
        for encoder in ("gru", "transformer")
    ),
]


@pytest.mark.parametrize(("task", "table"), BEFORE, ids=[f"{task}-{place}" for place, (task, _) in enumerate(BEFORE)])
def test_a_run_of_an_earlier_version_is_resumed_as_it_was(task: str, table: dict[str, Any]) -> None:
    """Its settings mean the same, and what they lack has the value that it had."""
    model = TASKS[task].tables["model"]
    stored = with_todays_names({"task": task, "model": table})["model"]
    assert isinstance(stored, dict)
    now = as_dict(build(model, stored))
    assert {name: now[name] for name in stored} == stored
    for name in now.keys() - stored.keys():
        assert OLDER_DEFAULTS[f"model.{name}"] == now[name]
    defaults = as_dict(build(model, {"model": stored.get("model", "transformer")}))
    assert defaults == now, "and it is still the default"


@pytest.mark.parametrize("task", [task for task in RECIPES if "training" in RECIPES[task].settings.tables])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 3, "epochs": 2}, "epochs: expected no steps beside it; got both"),
        (
            {"batch_tokens": 9, "batch_size": 2},
            "batch_size: expected no batch_tokens beside it; got both",
        ),
        ({"minutes": 3, "steps": 2}, "minutes: expected no steps beside it; got both"),
        ({"epochs": 3, "minutes": 2}, "epochs: expected no minutes beside it; got both"),
        ({"minutes": 0}, "minutes: expected a finite number above 0"),
        ({"epochs": 0}, "epochs: expected an integer, at least 1"),
    ],
)
def test_two_settings_of_one_thing_are_refused(task: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RECIPES[task].load_settings({"training": settings})


def test_epochs_are_passes_over_the_data(tmp_path: Path) -> None:
    lines = [f"{'ab'[place % 2]}\t{'ab'[place % 2] * (1 + place % 3)} c\n" for place in range(50)]
    for name in ("train.tsv", "valid.tsv"):
        (tmp_path / name).write_text("".join(lines[: 50 if name == "train.tsv" else 5]))
    tables = {
        "data": {"data": tmp_path / "train.tsv", "valid_data": tmp_path / "valid.tsv"},
        "model": {"model": "none", "width": 4},
        "training": {"epochs": 3, "batch_size": 8},
    }
    recipe = RECIPES["classify"]
    settings = recipe.load_settings(tables)
    assert recipe.load_settings(recipe.show_settings(settings)) == settings
    outcome = train_run(recipe, settings, tmp_path / "run")
    assert outcome.step == 3 * -(-50 // 8)
    assert train_run(recipe, settings, tmp_path / "run").step == outcome.step, "it is finished"


def test_epochs_and_batch_sizes_of_a_task_without_a_tokenizer(tmp_path: Path) -> None:
    for name, count in (("train.tsv", 50), ("valid.tsv", 5)):
        (tmp_path / name).write_text("".join(f"{a} {a % 3 + 1}\t{a % 2 + 1}\n" for a in range(count)))
    tables = {
        "data": {"data": tmp_path / "train.tsv", "valid_data": tmp_path / "valid.tsv"},
        "model": {"model": "gru", "width": 4},
        "training": {"epochs": 2, "batch_size": 8, "validate_every": 100},
    }
    recipe = RECIPES["point"]
    settings = recipe.load_settings(tables)
    assert recipe.load_settings(recipe.show_settings(settings)) == settings
    assert train_run(recipe, settings, tmp_path / "run").step == 2 * -(-50 // 8)


class Ticking:
    """A clock on which each reading is a 32nd of a second after the one before."""

    def __init__(self) -> None:
        self.readings = 0

    def perf_counter(self) -> float:
        self.readings += 1
        return self.readings / 32


def test_minutes_are_a_number_of_steps_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.tsv").write_text("".join(f"{'ab'[n % 2]}\t{'ab'[n % 2]} {n}\n" for n in range(50)))
    recipe, clock = RECIPES["classify"], Ticking()
    monkeypatch.setattr("qkv.tasks.run.time", clock)

    def train_for(minutes: float, out: str) -> int:
        tables = {
            "data": {"data": tmp_path / "train.tsv"},
            "model": {"model": "none", "width": 4},
            "training": {"minutes": minutes, "batch_size": 8, "validate_every": 20, "schedule": "constant"},
        }
        return train_run(recipe, recipe.load_settings(tables), tmp_path / out).step

    steps = train_for(0.05, "run")
    # A tenth of three seconds is measured: ten updates in eleven ticks.
    assert steps == round(3 / (11 / 32 / 10))
    measured, stored = clock.readings, read_config(tmp_path / "run")
    assert stored["training"]["steps"] == steps  # type: ignore[index,call-overload]
    assert train_for(0.05, "run") == steps
    assert train_for(0.1, "run") == 2 * steps, "twice as long"
    assert clock.readings == measured, "and nothing was measured again"


@pytest.mark.parametrize(("task", "lacks"), [("point", ["tokenizer"]), ("regress", ["tokenizer", "training"])])
def test_a_task_has_only_its_own_tables(task: str, lacks: list[str]) -> None:
    recipe = RECIPES[task]
    assert not recipe.show_settings(recipe.load_settings({})).keys() & set(lacks)
    for table in lacks:
        with pytest.raises(ConfigError, match=f"{table}: expected one of the tables data, model"):
            recipe.load_settings({table: {}})


def test_a_model_that_is_fitted_at_once_starts_from_no_other(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{a},{a * a}\n" for a in range(9)))
    recipe = RECIPES["regress"]
    tables = {"data": {"data": tmp_path / "t.csv", "x": ["x"], "y": "y"}, "model": {"bandwidth": 1.5}}
    settings = recipe.load_settings(tables)
    first = train_run(recipe, settings, tmp_path / "run")
    assert first.exit_code == 0
    assert first.best == first.figures[0]
    with pytest.raises(ConfigError, match="from: expected none for regress"):
        train_run(recipe, settings, tmp_path / "other", origin=open_origin(tmp_path / "run", "regress"))


@pytest.mark.parametrize("task", RECIPES)
def test_a_folder_with_something_else_is_refused_before_any_text_is_read(task: str, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    recipe = RECIPES[task]
    with pytest.raises(CheckpointError) as refused:
        train_run(recipe, recipe.load_settings({}), tmp_path)
    assert "thesis.tex" in refused.value.got
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]
