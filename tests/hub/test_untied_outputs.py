"""The bias that a masked language model's output layer has of its own is the one that `transformers` uses."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

pytest.importorskip("transformers")

from tests.hub import theirs
from tests.hub.published import inputs
from tests.hub.test_families import CLOSE, load, logits_of

from qkv.errors import CheckpointError
from qkv.hub.families.save import save
from qkv.hub.folder import CONFIG, WEIGHTS

pytestmark = pytest.mark.filterwarnings("ignore")
_SEED = 7
OUTPUTS = {"bert": "cls.predictions", "roberta": "lm_head"}


def write(name: str, folder: Path, *, tied: bool | None, weight: bool, bias: bool) -> None:
    """Write a model whose file holds a weight or a bias of the output layer's own."""
    theirs.write(theirs.make(name, _SEED), folder)
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    table = json.loads((folder / CONFIG).read_text())
    table = {**table, "tie_word_embeddings": tied} if tied is not None else table
    (folder / CONFIG).write_text(json.dumps(table))
    torch.manual_seed(_SEED)
    if weight:
        tensors[f"{OUTPUTS[name]}.decoder.weight"] = torch.randn(table["vocab_size"], table["hidden_size"])
    if bias:
        tensors[f"{OUTPUTS[name]}.decoder.bias"] = torch.randn(table["vocab_size"])
    safetensors.torch.save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def expected_of(name: str, folder: Path) -> torch.Tensor:
    model: Any = type(theirs.make(name, _SEED)).from_pretrained(folder).eval()
    return theirs.logits(model, name, inputs(_SEED))


@pytest.mark.parametrize(
    ("name", "tied", "weight", "bias"),
    [
        pytest.param(name, *case, marks=[] if turn % 2 == place else pytest.mark.slow)
        for turn, case in enumerate(
            [(None, False, True), (True, False, True), (True, True, True), (True, True, False), (False, True, True)]
        )
        for place, name in enumerate(OUTPUTS)
    ],
)
def test_own_weights_and_biases_are_used_and_written(
    name: str, tied: bool | None, weight: bool, bias: bool, tmp_path: Path
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    write(name, first, tied=tied, weight=weight, bias=bias)
    expected, ours = expected_of(name, first), load(first)
    assert (logits_of(ours, inputs(_SEED)) - expected).abs().max() <= CLOSE * expected.abs().max()
    save(ours, again)
    assert torch.equal(expected_of(name, again), expected)
    state, other = ours.state_dict(), load(again).state_dict()
    assert list(state) == list(other)
    assert all(torch.equal(state[part], other[part]) for part in state)


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_untied_output_without_weights_is_refused(name: str, tmp_path: Path) -> None:
    write(name, tmp_path / "model", tied=False, weight=False, bias=True)
    with pytest.raises(CheckpointError, match=rf"no {OUTPUTS[name]}\.decoder\.weight"):
        load(tmp_path / "model")
