"""Vectors of texts: as the encoder's states say, pooled as the folder says."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.command import refused, run, succeeded

import qkv
from qkv.errors import CheckpointError, ConfigError, DataError
from qkv.hub.folder import Folder
from qkv.hub.sentence_folder import read_sentences

BERT = Path(__file__).parent / "families" / "bert"
TEXTS = ["the cat sat on the mat", "a hat", "that cat ate the hat on a mat"]
OF_TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}


def of_sentences(folder: Path, pooling: dict[str, Any], *kinds: str, **files: Any) -> Path:
    """Write a folder as sentence-transformers does."""
    shutil.copytree(BERT, folder)
    modules = [OF_TRANSFORMER, {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    modules += [{"path": f"2_{kind}", "type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 16, **pooling}))
    for name, table in files.items():
        (folder / f"{name}.json").write_text(json.dumps(table))
    return folder


def states(text: str) -> torch.Tensor:
    """The states of a text's tokens, (S, M), alone in its batch."""
    encoder = qkv.load(BERT)
    ids = torch.tensor([encoder.tokenizer.encode(text)])
    with torch.no_grad():
        return encoder.model.reader(ids, torch.tensor([ids.shape[1]]))[0][0]


def test_the_mean_and_the_first_state_are_those_of_each_text_alone() -> None:
    encoder = qkv.load(BERT)
    for pool, of in (("mean", lambda x: x.mean(0)), ("first", lambda x: x[0])):
        expected = torch.stack([of(states(text)) for text in TEXTS])
        torch.testing.assert_close(encoder.embed(TEXTS, pool=pool, unscaled=True), expected, rtol=1e-5, atol=1e-5)
        unit = expected / expected.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(encoder.embed(TEXTS, pool=pool), unit, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(encoder.embed(TEXTS), encoder.embed(TEXTS, pool="mean"))
    assert encoder.embed([]).shape == (0, 16)


@pytest.mark.filterwarnings("ignore")
def test_vectors_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel.from_pretrained(BERT).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(BERT / "tokenizer.json"), pad_token="[PAD]")
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False)
    real = inputs["attention_mask"][..., None]
    with torch.no_grad():
        expected = (model(**inputs).last_hidden_state * real).sum(1) / real.sum(1)
    torch.testing.assert_close(qkv.load(BERT).embed(TEXTS, unscaled=True), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "pool"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode": "cls"}, "first"),
    ],
    ids=str,
)
def test_a_folder_says_how_states_are_pooled(pooling: dict[str, Any], pool: Any, tmp_path: Path) -> None:
    encoder = qkv.load(of_sentences(tmp_path / "model", pooling, "Normalize"))
    assert torch.equal(encoder.embed(TEXTS), qkv.load(BERT).embed(TEXTS, pool=pool))


def test_a_default_prompt_is_put_before_each_text(tmp_path: Path) -> None:
    settings = {"prompts": {"query": "the hat "}, "default_prompt_name": "query"}
    folder = of_sentences(tmp_path / "model", {"pooling_mode": "mean"}, config_sentence_transformers=settings)
    expected = qkv.load(BERT).embed([f"the hat {text}" for text in TEXTS])
    torch.testing.assert_close(qkv.load(folder).embed(TEXTS), expected)


@pytest.mark.parametrize(
    ("pooling", "kinds", "files", "named"),
    [
        ({"pooling_mode_max_tokens": True}, (), {}, "max_tokens"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, (), {}, "mean_tokens and cls_token"),
        ({"pooling_mode": "mean"}, ("Dense",), {}, "Dense"),
        ({"pooling_mode": "mean", "include_prompt": False}, (), {}, "include_prompt"),
        ({"pooling_mode": "mean"}, (), {"sentence_bert_config": {"do_lower_case": True}}, "do_lower_case"),
        ({"pooling_mode": "mean"}, (), {"config_sentence_transformers": {"default_prompt_name": "x"}}, "prompt_name"),
        ({"pooling_mode": "mean"}, (), {"modules": [{"type": "a.Pooling", "path": "../.."}]}, r"\.\."),
        ({"pooling_mode": "mean"}, (), {"modules": [OF_TRANSFORMER]}, "Pooling"),
    ],
    ids=str,
)
def test_what_is_made_in_another_way_is_refused_by_name(
    pooling: dict[str, Any], kinds: tuple[str, ...], files: dict[str, Any], named: str, tmp_path: Path
) -> None:
    folder = of_sentences(tmp_path / "model", pooling, *kinds, **files)
    with pytest.raises(CheckpointError, match=named):
        qkv.load(folder).embed(TEXTS)


def test_texts_that_are_too_long_or_empty_are_named(tmp_path: Path) -> None:
    longest = {"sentence_bert_config": {"max_seq_length": 6}}
    encoder = qkv.load(of_sentences(tmp_path / "model", {"pooling_mode": "mean"}, **longest))
    with pytest.raises(DataError, match="2"):
        encoder.embed(["a hat", TEXTS[0]])
    with pytest.raises(ConfigError, match="pool"):
        encoder.embed(["a hat"], pool="max")


def test_links_of_a_cache_lead_to_its_blobs(tmp_path: Path) -> None:
    made = of_sentences(tmp_path / "made", {"pooling_mode": "cls"})
    snapshot, blobs = tmp_path / "cache" / "snapshots" / "0", tmp_path / "cache" / "blobs"
    blobs.mkdir(parents=True)
    for path in (path for path in made.rglob("*") if path.is_file()):
        link = snapshot / path.relative_to(made)
        link.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, blobs / (name := str(path.relative_to(made)).replace("/", "-")))
        link.symlink_to(blobs / name)
    assert read_sentences(Folder(snapshot)).pool == "first"
    (tmp_path / "other").write_text("{}")
    (snapshot / "1_Pooling" / "config.json").unlink()
    (snapshot / "1_Pooling" / "config.json").symlink_to(tmp_path / "other")
    with pytest.raises(CheckpointError, match="a file in this folder"):
        read_sentences(Folder(snapshot))


def test_the_command_writes_lines_and_an_array(tmp_path: Path) -> None:
    feed = "".join(f"{text}\n" for text in TEXTS)
    expected = qkv.load(BERT).embed(TEXTS).numpy()
    rows = [json.loads(line) for line in succeeded(run("embed", BERT, feed=feed)).stdout.splitlines()]
    assert [row["line"] for row in rows] == [1, 2, 3]
    vectors = np.array([row["vector"] for row in rows], np.float32)
    assert np.allclose(vectors, expected, rtol=1e-5, atol=1e-6)
    done = succeeded(run("embed", BERT, "--out", tmp_path / "texts.npy", "--json", feed=feed))
    assert json.loads(done.stdout) == {"file": str(tmp_path / "texts.npy")}
    array = np.load(io.BytesIO((tmp_path / "texts.npy").read_bytes()))
    assert array.dtype == np.float32
    assert np.array_equal(array, vectors)
    first = succeeded(run("embed", BERT, "--pool", "first", "--unscaled", feed="a hat\n")).stdout
    assert np.allclose(json.loads(first)["vector"], states("a hat")[0].numpy(), atol=1e-5)


def test_other_runs_and_files_are_refused(tmp_path: Path) -> None:
    refused(run("embed", "example", feed="a\n"), "one trained to translate")
    refused(run("embed", BERT, "--out", tmp_path / "x.npz", feed="a\n"), "--out", ".npy")
