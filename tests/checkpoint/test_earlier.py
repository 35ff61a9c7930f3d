"""Every version of every format that qkv ever wrote can be read; docs/reference/files.md describes them."""

import shutil
from pathlib import Path

import pytest
import torch

from qkv.checkpoint import manifest, run
from qkv.checkpoint.contents import Contents, TrainerState
from qkv.checkpoint.folder import load, load_weights_later, save
from qkv.checkpoint.rotation import best
from qkv.data.tokenizer import Tokenizer
from qkv.recording.trace import VERSION as TRACE_VERSION
from qkv.recording.trace_reader import read

EARLIER = Path(__file__).parent / "earlier"


def test_the_first_version_of_checkpoints_and_runs(tmp_path: Path) -> None:
    """Written by the first revision that saved any."""
    folder = best(EARLIER / "run-1")
    contents = load(folder)
    assert contents.model["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert contents.model["tied"] is contents.model["w"]
    assert contents.config == {"task": "x", "model": {"width": 3}}
    assert contents.trainer is not None
    assert contents.trainer.tensors["m"].dtype == torch.bfloat16
    assert run.read_config(EARLIER / "run-1") == contents.config
    # The version is still the same: what is saved now has the same bytes.
    save(tmp_path / "again", contents)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "again").iterdir()
    }
    shutil.rmtree(tmp_path / "again")


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
def test_the_first_version_of_tokenizers(kind: str) -> None:
    text = (EARLIER / f"tokenizer-1-{kind}.json").read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_json(text)
    assert tokenizer.kind == kind
    assert tokenizer.decode(tokenizer.encode("a cat sat.")) == "a cat sat."
    assert tokenizer.to_json() == text


def test_the_first_version_of_traces() -> None:
    trace = read(EARLIER / "trace-1.safetensors")
    assert trace.weights("attention").shape == (1, 2, 3, 3)


@pytest.mark.parametrize("lazy", [True, False])
def test_names_of_tensors_that_have_changed_since(tmp_path: Path, lazy: bool) -> None:
    """A translator of two vocabularies, as versions before the one Transformer stored a published one."""
    source, target = torch.rand(2, 3), torch.rand(2, 3)
    stored = {"embed.weight": source, "target_embed.weight": target, "output.bias": torch.rand(2)}
    moments = {f"optimizer.exp_avg.{name}": tensor + 1 for name, tensor in stored.items()}
    save(tmp_path / "one", Contents(stored, {"task": "x"}, trainer=TrainerState(moments, {})))
    contents = (load_weights_later if lazy else load)(tmp_path / "one")
    assert set(contents.model) == {"embed_source.weight", "embed.weight", "output.bias"}
    assert torch.equal(contents.model["embed_source.weight"], source)
    assert torch.equal(contents.model["embed.weight"], target)
    if contents.trainer is not None:
        names = {name.removeprefix("optimizer.exp_avg."): tensor for name, tensor in contents.trainer.tensors.items()}
        assert {name: tensor.tolist() for name, tensor in names.items()} == {
            name: (tensor + 1).tolist() for name, tensor in contents.model.items()
        }


def test_a_new_version_needs_a_file_here() -> None:
    """Whoever raises a version adds what the one before wrote, and a reader for it."""
    assert (manifest.VERSION, run.VERSION, TRACE_VERSION) == (1, 1, 2)
