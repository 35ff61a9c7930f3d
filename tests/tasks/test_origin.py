"""Fine-tuning translators and labeling models: the initial run's weights, tokenizer and labels."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.errors import CheckpointError, ConfigError
from qkv.settings import merge
from qkv.tasks.classify.recipe import RECIPE as CLASSIFY
from qkv.tasks.load import load
from qkv.tasks.origin import open_origin, origin_tables
from qkv.tasks.run import train_run
from qkv.tasks.translate.recipe import RECIPE
from qkv.tasks.translate.settings import TRANSLATE

FAMILIES = Path(__file__).parents[1] / "hub" / "families"
STEADY = {"steps": 1, "learning_rate": 1e-9, "validate_every": 1}


def translation(path: Path) -> dict[str, Any]:
    path.write_text("".join(f"{a}{b}\t{b}{a}\n" for a in "abcdefgh" for b in "abcdefgh"), encoding="utf-8")
    model = {"model": "gru", "embedding": 8, "hidden": 8, "attention": 8}
    return {"data": {"data": path}, "tokenizer": {"tokenizer": "char"}, "model": model, "training": STEADY}


def labels(path: Path, names: str) -> dict[str, Any]:
    path.write_text("".join(f"{name}\tword {name} {n}\n" for n in range(20) for name in names), encoding="utf-8")
    model = {"width": 8}
    return {"data": {"data": path}, "tokenizer": {"minimum": 1}, "model": model, "training": STEADY}


def test_a_translator_goes_on_from_another(tmp_path: Path) -> None:
    tables = translation(tmp_path / "pairs.tsv")
    train_run(RECIPE, RECIPE.load_settings(tables), tmp_path / "first")
    origin = open_origin(tmp_path / "first", "translate")
    assert origin_tables(origin, TRANSLATE)["model"]["model"] == "gru"
    given = merge(origin_tables(origin, TRANSLATE), {"data": tables["data"], "training": {**STEADY, "seed": 5}})
    train_run(RECIPE, RECIPE.load_settings(given), tmp_path / "second", origin=origin)
    for one, two in zip(*(load(tmp_path / run).model.parameters() for run in ("first", "second")), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6)
    wide = RECIPE.load_settings(merge(given, {"model": {"hidden": 16}}))
    with pytest.raises(CheckpointError, match=r"from: .* of shape .* in place of"):
        train_run(RECIPE, wide, tmp_path / "wide", origin=origin)
    with pytest.raises(ConfigError) as raised:
        qkv.train("translate", data=tables["data"]["data"], out="new", start=tmp_path / "first", tokenizer="word")
    assert (raised.value.argument, raised.value.got) == ("tokenizer", "word")


def test_a_classifier_goes_on_from_one_with_the_same_labels(tmp_path: Path) -> None:
    tables = labels(tmp_path / "films.tsv", "ab")
    train_run(CLASSIFY, CLASSIFY.load_settings(tables), tmp_path / "first", "cpu", tensorboard=False, origin=None)
    origin = open_origin(tmp_path / "first", "classify")
    given = CLASSIFY.load_settings(merge(tables, {"training": {"seed": 5}}))
    train_run(CLASSIFY, given, tmp_path / "second", "cpu", tensorboard=False, origin=origin)
    for one, two in zip(*(load(tmp_path / run).model.parameters() for run in ("first", "second")), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6)
    other = CLASSIFY.load_settings(labels(tmp_path / "other.tsv", "abc"))
    with pytest.raises(CheckpointError, match="a run with the labels a, b, c; got a, b"):
        train_run(CLASSIFY, other, tmp_path / "third", "cpu", tensorboard=False, origin=origin)


@pytest.mark.parametrize("name", ["README.txt", "notes.json", "old.model", "other.safetensors", "vocab.json"])
def test_files_that_are_not_read_are_not_hashed(name: str, tmp_path: Path) -> None:
    """A sparse file of a tebibyte would be read for an hour."""
    folder = tmp_path / "model"
    shutil.copytree(FAMILIES / "llama", folder)
    before = open_origin(folder, "generate")
    (folder / name).touch()
    os.truncate(folder / name, 1 << 40)
    after = open_origin(folder, "generate")
    assert before is not None
    assert after is not None
    assert after.digest == before.digest


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"])
def test_files_that_are_read_are_hashed(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(FAMILIES / "llama", folder)
    (folder / "generation_config.json").write_text("{}")
    before = open_origin(folder, "generate")
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-1] + b"\1" if name.endswith("safetensors") else data.replace(b"}", b" }", 1))
    after = open_origin(folder, "generate")
    assert before is not None
    assert after is not None
    assert after.digest != before.digest
