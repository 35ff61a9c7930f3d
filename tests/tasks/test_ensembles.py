"""One command trains an ensemble, both directions included, and its folder opens as one translator."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tasks.reading import read

import qkv
from qkv.checkpoint.folder import load
from qkv.checkpoint.rotation import latest_complete
from qkv.errors import CheckpointError, ConfigError
from qkv.tasks.evaluation import score
from qkv.tasks.load import load as load_any
from qkv.tasks.members import members_of, write_members
from qkv.tasks.run import train_run
from qkv.tasks.translate.alignment_reading import AGREEMENT
from qkv.tasks.translate.decoding import Decoding
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.recipe import RECIPE
from qkv.tasks.translate.settings import MemberSettings, TranslateEvaluation

LETTERS = "abcdef"
NAMES = ["0-ahead", "1-ahead", "2-back", "3-back"]


def tables(data: Path, models: int = 4, both: bool = True, steps: int = 30) -> dict[str, dict[str, Any]]:
    return {
        "data": {"data": data},
        "tokenizer": {"tokenizer": "char", "minimum": 1},
        "model": {"model": "gru", "embedding": 12, "hidden": 12, "attention": 8, "dropout": 0.0},
        "training": {"steps": steps, "batch_tokens": 512, "learning_rate": 0.02, "validate_every": steps, "warmup": 5},
        "ensemble": {"ensemble": models, "both_directions": both},
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ensemble") / "pairs.tsv"
    path.write_text("".join(f"{a}{b}{c}\t{a}{b}{c}x\n" for a in LETTERS for b in LETTERS for c in LETTERS))
    return path


@pytest.fixture(scope="module")
def folder(data: Path) -> Path:
    out = data.parent / "run"
    train_run(RECIPE, RECIPE.load_settings(tables(data)), out)
    return out


def config(run: Path) -> dict[str, Any]:
    found = latest_complete(run, lambda text: None)
    assert found is not None
    return dict(load(found, trainer=False).config)


def test_each_member_has_a_seed_and_a_direction_and_all_have_the_same_pairs(folder: Path) -> None:
    assert members_of(folder) == [folder / name for name in NAMES]
    configs = [config(run) for run in members_of(folder)]
    assert [each["training"]["seed"] for each in configs] == [0, 1, 2, 3]
    assert [each.get("direction") for each in configs] == [None, None, "back", "back"]
    assert len({json.dumps(each["text"]) for each in configs}) == 1, "the same pairs are held out for all"


def test_the_same_command_again_changes_nothing_and_another_is_refused(folder: Path, data: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*.safetensors")}
    assert train_run(RECIPE, RECIPE.load_settings(tables(data)), folder).reason == "finished"
    assert {path: path.read_bytes() for path in folder.rglob("*.safetensors")} == before
    with pytest.raises(CheckpointError, match="expected an ensemble of 2; got an ensemble of other members"):
        train_run(RECIPE, RECIPE.load_settings(tables(data, models=2)), folder)
    with pytest.raises(CheckpointError, match="expected the folder of a single run; got an ensemble"):
        train_run(RECIPE, RECIPE.load_settings(tables(data, models=1, both=False)), folder)


def test_an_interrupted_ensemble_goes_on_where_it_stopped(folder: Path, data: Path, tmp_path: Path) -> None:
    write_members(tmp_path / "run", NAMES)
    alone = RECIPE.load_settings({**tables(data), "ensemble": {}})
    train_run(RECIPE, alone, tmp_path / "run" / NAMES[0])  # as if stopped after the first member
    train_run(RECIPE, RECIPE.load_settings(tables(data)), tmp_path / "run")
    for ours, theirs in zip(members_of(tmp_path / "run"), members_of(folder), strict=True):
        ours_best, theirs_best = (latest_complete(run, lambda text: None) for run in (ours, theirs))
        assert ours_best is not None
        assert theirs_best is not None
        assert (ours_best / "model.safetensors").read_bytes() == (theirs_best / "model.safetensors").read_bytes()


def test_a_member_that_writes_right_to_left_gives_texts_in_reading_order(folder: Path) -> None:
    for name in NAMES:
        translator = Translator.load(folder / name)
        (found,) = translator.translate_fully(["abc"], Decoding(3), attention=True)
        assert found.text[-1] == "x", "as every target"
        assert "x" not in found.text[:-1]
        assert found.target_tokens[:-1] == tuple(found.text)
        assert found.weights is not None
        assert found.weights.shape == (len(found.target_tokens), 3)


def test_the_folder_opens_as_an_ensemble_of_both_directions(folder: Path, data: Path) -> None:
    translator = load_any(folder)
    assert translator.right_to_left == (False, False, True, True)
    how = Decoding(3, n_best=3)
    (best,) = translator.translate_best(["abc"], how)
    assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)
    assert len({one.text for one in best}) == 3
    assert translator.translate(["fed"], beam=3) == Translator.load([folder / name for name in NAMES]).translate(
        ["fed"], beam=3
    )
    figures = {figure.name: figure.value for figure in score(folder, TranslateEvaluation(data=data, beam=3)).figures}
    assert figures["word_error_rate"] < 200
    assert all(text[-1] == "x" for text in translator.translate(["abc", "fed"], beam=3))
    assert qkv.load(folder).translate(["abc"]) == translator.translate(["abc"])


def test_samples_come_from_one_direction(folder: Path) -> None:
    from qkv.decode.sampling import Sampling

    with pytest.raises(ConfigError, match="sample: expected models of one direction"):
        load_any(folder).translate(["abc"], Decoding(sampling=Sampling()))


@pytest.mark.parametrize(
    ("models", "both", "message"),
    [
        (0, False, "ensemble: expected an integer, at least 1 and at most 100; got 0"),
        (3, True, "ensemble: expected an even number with both directions; got 3"),
        (1, True, "expected an even number with both directions"),
    ],
)
def test_numbers_of_members_that_cannot_be_are_refused(models: int, both: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MemberSettings(ensemble=models, both_directions=both)


@pytest.mark.parametrize("content", ["[]", "{", '{"format": "qkv ensemble 1", "members": ["../other"]}', "\x00"])
def test_a_list_of_members_that_was_altered_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "ensemble.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"ensemble\.json"):
        members_of(tmp_path)


def test_a_folder_with_other_files_is_not_made_an_ensemble(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="expected an empty folder for an ensemble"):
        write_members(tmp_path, ["0-ahead"])


def test_a_model_that_writes_right_to_left_aligns_no_words() -> None:
    pairs = [(f"{one} {two}", f"{two} {one}") for one in "abcdef" for two in "abcdef"]
    ahead = read("translate", data={"data": pairs, "holdout": 4}, model={"model": "gru", "width": 8})
    model = ahead.build().eval()
    with torch.no_grad():
        figures = [task.validate(model) for task in (ahead, replace(ahead, backward=True))]
    assert [AGREEMENT in {figure.name for figure in each} for each in figures] == [True, False]
