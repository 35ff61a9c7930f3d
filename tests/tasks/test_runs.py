"""A checkpoint whose configuration and weights disagree is refused before memory is allocated for it."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tests.fuzz.models import families

from qkv.checkpoint.contents import Contents
from qkv.checkpoint.folder import save
from qkv.checkpoint.rotation import save_step, step_folder
from qkv.errors import CheckpointError
from qkv.tasks.load import load
from qkv.tasks.notes import Verbosity, use_verbosity
from qkv.tasks.runs import digest_of

FAMILIES = families()
HUGE = {
    "gru": {"hidden": 2**40},
    "monotonic": {"hidden": 2**40},
    "transformer": {"feed_forward": 2**40},
    "language": {"width": 2**40, "heads": 1},
    "classifier": {"width": 2**40},
    "tagger": {"width": 2**61},
}


def forged(contents: Contents, changes: dict[str, Any]) -> Contents:
    table = contents.config["model"]
    assert isinstance(table, dict)
    return replace(contents, config={**contents.config, "model": {**table, **changes}})


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_comes_back(name: str, tmp_path: Path) -> None:
    contents = FAMILIES[name]
    save(tmp_path / "sound", contents)
    chance = torch.get_rng_state()
    found = load(tmp_path / "sound")
    assert torch.equal(torch.get_rng_state(), chance), "no weights are drawn where others take their place"
    assert all(torch.equal(tensor, contents.model[key]) for key, tensor in found.model.state_dict().items())
    assert not any(tensor.is_meta for tensor in (*found.model.parameters(), *found.model.buffers()))


@pytest.mark.parametrize("messages", ["quiet", "normal"])
def test_a_skipped_checkpoint_is_said_unless_the_user_asked_for_quiet(
    messages: Literal["quiet", "normal"], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2):
        save_step(tmp_path, step, FAMILIES["language"])
    (step_folder(tmp_path, 2) / "model.safetensors").write_bytes(b"")
    with use_verbosity(Verbosity(messages)):
        load(tmp_path)
        digest_of(tmp_path)
    assert capsys.readouterr().err.count("Skipping a damaged checkpoint") == (0 if messages == "quiet" else 2)


@pytest.mark.parametrize("name", HUGE)
def test_sizes_that_are_not_those_of_the_weights_are_refused(name: str, tmp_path: Path) -> None:
    save(tmp_path / "forged", forged(FAMILIES[name], HUGE[name]))
    with pytest.raises(
        CheckpointError, match=r"expected weights of the model in config.json; got .*It was written by anoth"
    ):
        load(tmp_path / "forged")


@pytest.mark.parametrize(
    ("name", "field"), [("transformer", "encoder_layers"), ("language", "layers"), ("tagger", "layers")]
)
def test_more_layers_than_tensors_are_refused(name: str, field: str, tmp_path: Path) -> None:
    save(tmp_path / "forged", forged(FAMILIES[name], {field: 10**9}))
    with pytest.raises(CheckpointError, match=f"got 1,000,000,000 {field} in config.json, but .* tensors"):
        load(tmp_path / "forged")


def test_the_first_tensor_that_differs_is_named(tmp_path: Path) -> None:
    contents = FAMILIES["gru"]
    model = {name: tensor for name, tensor in contents.model.items() if not name.startswith("output")}
    save(tmp_path / "forged", replace(contents, model=model))
    with pytest.raises(CheckpointError, match=r"got none named output\S* where config\.json has one of sizes \("):
        load(tmp_path / "forged")
