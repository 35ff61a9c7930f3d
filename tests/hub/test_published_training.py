"""Published models go on learning: `--from FOLDER`, with the folder's tokenizer, and back to such a folder."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.command import run, succeeded

import qkv
from qkv.errors import CheckpointError, ConfigError
from qkv.settings import merge
from qkv.tasks.generate import recipe as generate
from qkv.tasks.origin import open_origin, origin_tables
from qkv.tasks.run import train_run
from qkv.tasks.translate import recipe as translate

HERE = Path(__file__).parent / "families"
WORDS = ["the", "cat", "sat", "on", "mat", "a", "hat", "that", "ate"]
OTHER = ["le", "chat", "et", "la", "tasse", "est", "sale", "las", "salle"]
STEADY = {"steps": 2, "validate_every": 2, "learning_rate": 1e-9}


def text(path: Path) -> Path:
    draws = random.Random(0)
    path.write_text("".join(" ".join(draws.choices(WORDS, k=8)) + "\n" for _ in range(60)), encoding="utf-8")
    return path


def pairs(path: Path) -> Path:
    draws = random.Random(0)
    rows = [draws.choices(range(len(WORDS)), k=4) for _ in range(40)]
    lines = (" ".join(WORDS[i] for i in row) + "\t" + " ".join(OTHER[i] for i in row) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")
    return path


def tables_of(name: str, folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """The recipe, the origin and the settings of a training from a published folder."""
    generates = name == "llama"
    recipe = generate.RECIPE if generates else translate.RECIPE
    origin = open_origin(HERE / name, recipe.task)
    data = {"text": text(folder / "text")} if generates else {"data": pairs(folder / "pairs.tsv")}
    more = {"model": {"context": 24}} if generates else {}
    given = {"data": data, "training": STEADY, **more}
    return recipe, origin, merge(origin_tables(origin, recipe.settings), given)


@pytest.mark.parametrize("name", ["llama", "marian"])
def test_training_goes_on_from_a_folder(name: str, tmp_path: Path) -> None:
    recipe, origin, tables = tables_of(name, tmp_path)
    settings = recipe.load_settings(tables)
    assert recipe.load_settings(recipe.show_settings(settings)) == settings
    train_run(recipe, settings, tmp_path / "run", origin=origin)
    before, after = qkv.load(HERE / name), qkv.load(tmp_path / "run")
    assert after.tokenizer.to_json() == before.tokenizer.to_json()
    for one, two in zip(before.model.parameters(), after.model.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6)
    if name == "llama":
        assert after.model.config.context == 24
    qkv.hub.save(after, tmp_path / "folder")
    again = qkv.load(tmp_path / "folder")
    assert all(torch.equal(x, y) for x, y in zip(after.model.parameters(), again.model.parameters(), strict=True))


def test_the_command_fine_tunes_a_folder_of_marian(tmp_path: Path) -> None:
    data, out = tmp_path / "pairs.tsv", tmp_path / "run"
    data.write_text("".join(f"{one}\t{other}\n" for one, other in zip(WORDS, OTHER, strict=True)), encoding="utf-8")
    files = ["--data", data, "--valid-data", data, "--out", out]
    how = ["--steps", "60", "--validate-every", "20", "--learning-rate", "0.005", "--label-smoothing", "0"]
    succeeded(run("train", "translate", "--from", HERE / "marian", *files, *how, "--quiet"))
    records = map(json.loads, (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    losses = [record["loss"] for record in records if record["kind"] == "validation"]
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 3
    # The run has the folder's tokenizer, and is read without the folder.
    assert qkv.load(out).tokenizer.to_json() == qkv.load(HERE / "marian").tokenizer.to_json()
    assert succeeded(run("translate", out, "--max-tokens", "3", feed="the\ncat\n")).stdout.count("\n") == 2


def test_a_folder_of_another_task_is_refused() -> None:
    with pytest.raises(CheckpointError, match="a run of the same task, translate"):
        open_origin(HERE / "llama", "translate")


@pytest.mark.parametrize("model", [{"context": 65}, {"context": 0}, {"dropout": 1.0}, {"width": 8}], ids=str)
def test_settings_that_are_none(model: dict[str, Any], tmp_path: Path) -> None:
    recipe, _, tables = tables_of("llama", tmp_path)
    with pytest.raises(ConfigError, match=next(iter(model))):
        train_run(recipe, recipe.load_settings(merge(tables, {"model": model})), tmp_path / "run")


def test_two_copies_of_a_folder_are_the_same_origin(tmp_path: Path) -> None:
    import shutil

    shutil.copytree(HERE / "llama", tmp_path / "copy")
    first, second = (open_origin(folder, "generate") for folder in (HERE / "llama", tmp_path / "copy"))
    assert first is not None
    assert second is not None
    assert first.digest == second.digest
