"""Published models go on learning: `--from FOLDER`, with the folder's tokenizer, and back to such a folder."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.cli.command import run, succeeded

import qkv
from qkv.errors import CheckpointError, ConfigError
from qkv.hub.folder import CONFIG, WEIGHTS
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
    origin = open_origin(HERE / name, recipe.settings.name)
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
    shutil.copytree(HERE / "llama", tmp_path / "copy")
    first, second = (open_origin(folder, "generate") for folder in (HERE / "llama", tmp_path / "copy"))
    assert first is not None
    assert second is not None
    assert first.digest == second.digest


LABELS = ["calm", "lively"]


def encoder(name: str, folder: Path) -> Path:
    """A folder of a model with a tokenizer."""
    shutil.copytree(HERE / name, folder)
    shutil.copy(HERE / "bert" / "tokenizer.json", folder)
    return folder


def labeled(task: str, path: Path, labels: list[str]) -> Path:
    draws = random.Random(0)
    texts = [draws.choices(WORDS, k=5) for _ in range(40)]
    if task == "classify":
        lines = [f"{draws.choice(labels)}\t{' '.join(words)}\n" for words in texts]
    else:
        lines = ["".join(f"{word}\t{draws.choice(labels)}\n" for word in words) + "\n" for words in texts]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def fine_tune(task: str, folder: Path, out: Path, labels: list[str], **training: Any) -> Any:
    data = labeled(task, out.parent / "data.tsv", labels)
    settings = {name: item for name, item in {"longest": 60, **STEADY, **training}.items() if item is not None}
    qkv.train(task, data=data, out=out, start=folder, **settings)
    return qkv.load(out)


@pytest.mark.parametrize("task", ["classify", "tag"])
@pytest.mark.parametrize("name", ["bert", "roberta", "xlm_roberta", "distilbert", "modernbert"])
def test_an_encoder_learns_labels(name: str, task: str, tmp_path: Path) -> None:
    folder = encoder(name, tmp_path / "folder")
    after, before = fine_tune(task, folder, tmp_path / "run", LABELS), qkv.load(folder)
    assert after.labels == tuple(LABELS)
    for path, tensor in before.model.reader.state_dict().items():
        torch.testing.assert_close(after.model.reader.state_dict()[path], tensor, rtol=0, atol=1e-6)
    qkv.hub.save(after, tmp_path / "saved")
    again = qkv.load(tmp_path / "saved")
    assert (type(again), again.labels) == (type(after), after.labels)
    assert all(
        torch.equal(one, two) for one, two in zip(after.model.parameters(), again.model.parameters(), strict=True)
    )
    texts = ["the cat sat", "a hat"]
    if task == "classify":
        assert again.classify(texts) == after.classify(texts)
    else:
        words = [text.split() for text in texts]
        assert again.tag(words) == after.tag(words)


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_a_labeler_keeps_its_output_layer_where_the_labels_are_the_same(task: str, tmp_path: Path) -> None:
    folder = encoder("bert_texts" if task == "classify" else "bert_tokens", tmp_path / "folder")
    table = json.loads((folder / CONFIG).read_text())
    unsorted = {"0": "so-so", "1": "bad", "2": "good"}
    (folder / CONFIG).write_text(json.dumps({**table, "id2label": unsorted}))
    before = qkv.load(folder)
    same = fine_tune(task, folder, tmp_path / "same", list(before.labels))
    assert same.labels == before.labels
    torch.testing.assert_close(same.model.output.weight, before.model.output.weight, rtol=0, atol=1e-6)
    other = fine_tune(task, folder, tmp_path / "other", ["x", "y", "z"])
    assert other.labels == ("x", "y", "z")
    assert not torch.allclose(other.model.output.weight, before.model.output.weight, rtol=0, atol=1e-3)
    if task == "classify":
        torch.testing.assert_close(other.model.pool.linear.weight, before.model.pool.linear.weight, rtol=0, atol=1e-6)


def test_a_pooler_of_pretraining_is_used(tmp_path: Path) -> None:
    folder = encoder("bert", tmp_path / "folder")
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    pooler = {"bert.pooler.dense.weight": torch.randn(16, 16), "bert.pooler.dense.bias": torch.randn(16)}
    safetensors.torch.save_file({**tensors, **pooler}, folder / WEIGHTS)
    after = fine_tune("classify", folder, tmp_path / "run", LABELS)
    expected = pooler["bert.pooler.dense.weight"]
    torch.testing.assert_close(after.model.pool.linear.weight.detach(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_the_usual_length_is_at_most_what_the_model_reads(task: str, tmp_path: Path) -> None:
    after = fine_tune(task, encoder("bert", tmp_path / "folder"), tmp_path / "run", LABELS, longest=None)
    assert after.longest == after.model.config.context == 64


def test_a_translator_learns_from_texts_as_long_as_it_reads(tmp_path: Path) -> None:
    folder = encoder("bart", tmp_path / "folder")
    assert len(qkv.load(folder).tokenizer.encode("cat " * 63, target=True)) == 63
    files = {"data": [("cat", "cat " * count) for count in (1, 2, 3, 63)], "valid_data": [("cat", "cat")]}
    qkv.train("translate", **files, out=tmp_path / "run", start=folder, **STEADY)
    assert qkv.load(tmp_path / "run").longest == 63
    with pytest.raises(ConfigError) as raised:
        qkv.train("translate", **files, out=tmp_path / "more", start=folder, longest=64, **STEADY)
    assert (raised.value.argument, raised.value.expected) == ("longest", "at most 63")


def test_a_fine_tuned_labeler_resumes_exactly(tmp_path: Path) -> None:
    folder = encoder("modernbert", tmp_path / "folder")
    how = {"learning_rate": 1e-2, "schedule": "constant", "warmup": 1, "validate_every": 2}
    fine_tune("classify", folder, tmp_path / "whole", LABELS, **{**how, "steps": 4})
    for steps in (2, 4):
        fine_tune("classify", folder, tmp_path / "part", LABELS, **{**how, "steps": steps})
    whole, part = (qkv.load(tmp_path / run / "step-00000004").model.state_dict() for run in ("whole", "part"))
    assert all(torch.equal(tensor, part[path]) for path, tensor in whole.items())


def test_what_cannot_be_fine_tuned_to_label(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="an encoder: bert, roberta"):
        open_origin(HERE / "llama", "classify")
    with pytest.raises(ConfigError) as raised:
        fine_tune("classify", encoder("bert", tmp_path / "folder"), tmp_path / "run", LABELS, longest=65)
    assert (raised.value.argument, raised.value.expected) == ("longest", "at most 64")
