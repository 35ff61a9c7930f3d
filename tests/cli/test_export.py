"""`qkv export`: the exported files predict the run's own ids, and unsupported exports fail with one message."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.command import refused, run, succeeded
from tests.fuzz.models import families

import qkv
from qkv.checkpoint.folder import save
from qkv.tasks import exporting
from qkv.tasks.load import load
from qkv.tasks.translate.predict import Translator

LINES = ["the cat sat", "a dog ran to the cat .", "mat"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of every family, with weights large enough that no two predictions are alike."""
    folder = tmp_path_factory.mktemp("runs")
    for name, contents in families().items():
        torch.manual_seed(4)
        model = {key: torch.randn(tensor.shape) for key, tensor in contents.model.items()}
        if "embed.weight" in model and "output.weight" in model:
            model["output.weight"] = model["embed.weight"]
        save(folder / name, replace(contents, model=model))
    return {name: folder / name for name in families()}


@pytest.mark.usefixtures("own_threads")
def test_a_translator_for_ctranslate2_gives_the_same_lines(runs: dict[str, Path], tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    out = tmp_path / "out"
    done = succeeded(run("export", runs["transformer"], "--to", "ctranslate2", "--out", out))
    written = {"about.json", "answer.py", "config.json", "model.bin", "shared_vocabulary.json", "tokenizer.json"}
    assert {Path(line).name for line in done.stdout.splitlines()} == {path.name for path in out.iterdir()} == written
    tokenizer = qkv.load(runs["transformer"]).tokenizer
    pieces = tokenizer.vocabulary.pieces
    theirs = ctranslate2.Translator(str(out), device="cpu", intra_threads=1)
    how = {
        "beam_size": 1,
        "min_decoding_length": 0,
        "suppress_sequences": [[pieces[i]] for i in tokenizer.never_written],
    }
    found = []
    for line in LINES:
        ids = tokenizer.encode(line)
        tokens = [pieces[i] for i in ids]
        best = theirs.translate_batch([tokens], max_decoding_length=3 * len(ids) + 16, **how)[0]
        found.append(tokenizer.decode([pieces.index(piece) for piece in best.hypotheses[0]]))
    ours = Translator.load(runs["transformer"]).translate_fully(LINES)
    assert found == [each.text for each in ours]
    assert len(set(found)) == len(LINES)


@pytest.mark.slow
def test_a_language_model_for_onnx_gives_the_same_text(runs: dict[str, Path], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    out = tmp_path / "out"
    done = succeeded(run("export", runs["language"], "--to", "onnx", "--out", out))
    assert done.stderr == ""
    assert {path.name for path in out.iterdir()} == {"about.json", "answer.py", "model.onnx", "tokenizer.json"}
    tokenizer = qkv.load(runs["language"]).tokenizer
    session = onnxruntime.InferenceSession(str(out / "model.onnx"))
    ids = torch.tensor([tokenizer.encode("the")])
    for _ in range(5):
        logits = torch.from_numpy(session.run(None, {"tokens": ids.numpy()})[0])[0, -1]
        # No text contains the first four tokens, and `qkv generate` never writes them.
        ids = torch.cat([ids, 4 + logits[4:].argmax()[None, None]], 1)
    text = tokenizer.decode(ids[0].tolist())
    assert load(runs["language"], task="generate").generate(["the"], tokens=5, temperature=0) == [text]


@pytest.mark.slow
def test_a_classifier_tells_its_labels(runs: dict[str, Path], tmp_path: Path) -> None:
    contents = families()["classifier"]
    config = {**contents.config, "model": {"model": "none", "width": 4}}
    model = {key: tensor for key, tensor in contents.model.items() if "recurrent" not in key}
    save(tmp_path / "run", replace(contents, config=config, model=model))
    succeeded(run("export", tmp_path / "run", "--to", "onnx", "--out", tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "about.json").read_text())["labels"] == ["bad", "good"]


@pytest.mark.parametrize(
    ("name", "to", "words"),
    [
        ("gru", "ctranslate2", ["a translation Transformer", "RecurrentTranslator", "Export it to ONNX."]),
        ("monotonic", "ctranslate2", ["a translation Transformer", "--model transformer"]),
        ("language", "ctranslate2", ["a translation Transformer", "LanguageModel", "Export it to ONNX."]),
        ("tagger", "ctranslate2", ["TextTagger", "Export it to ONNX."]),
        ("transformer", "onx", ["--to", '"ctranslate2", "onnx" or "transformers"', 'Did you mean "onnx"?']),
        ("transformer", "ctranslate", ['Did you mean "ctranslate2"?']),
    ],
)
def test_what_cannot_be_exported(runs: dict[str, Path], name: str, to: str, words: list[str], tmp_path: Path) -> None:
    refused(run("export", runs[name], "--to", to, "--out", tmp_path / "out"), "--to", *words)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_exists_is_left_alone(runs: dict[str, Path], tmp_path: Path) -> None:
    done = run("export", runs["transformer"], "--to", "ctranslate2", "--out", tmp_path)
    refused(done, "--out", "a folder that does not exist yet", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_named_like_a_file(runs: dict[str, Path], tmp_path: Path) -> None:
    done = run("export", runs["language"], "--to", "onnx", "--out", tmp_path / "de-en.onnx")
    refused(done, "--out", "the name of a folder", "de-en.onnx", f"--out {tmp_path / 'de-en'}-onnx")


def test_a_folder_that_cannot_be_made(runs: dict[str, Path]) -> None:
    done = run("export", runs["transformer"], "--to", "ctranslate2", "--out", "/dev/null/out")
    refused(done, "/dev/null/out", "a writable folder")


def test_a_run_that_is_none(tmp_path: Path) -> None:
    done = run("export", tmp_path / "nowhere", "--to", "onnx", "--out", tmp_path / "out")
    refused(done, "a checkpoint or a run folder")


@pytest.mark.parametrize(("to", "name"), [("ctranslate2", "to_ctranslate2"), ("onnx", "to_onnx")])
def test_an_export_that_ends_early_leaves_nothing(
    runs: dict[str, Path], to: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*given: Any, **_: Any) -> None:
        folder = next(each for each in given if isinstance(each, Path))
        folder.mkdir(exist_ok=True)
        (folder / "model.bin").write_bytes(b"part")
        assert not (tmp_path / "out").exists(), "a process killed here leaves a part of it under the user's name"
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, name, end)
    with pytest.raises(KeyboardInterrupt):
        exporting.export(runs["transformer"], to, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
