"""Overflowing numbers stop a real training run, with step and lines; earlier checkpoints stay."""

import re
from pathlib import Path

import pytest
import torch
from tests.reliability.families import FAMILIES

from qkv.checkpoint.folder import load, verify
from qkv.checkpoint.rotation import present
from qkv.errors import ConfigError, TrainingError
from qkv.training_settings import Settings

WHERE = re.compile(r"(loss|norm of the gradient) at step [\d,]+: expected a finite number; got .* lines? \d+")
ONE_FAST = [pytest.param(name, marks=[] if name == "classifier" else pytest.mark.slow) for name in FAMILIES]


@pytest.mark.parametrize("name", ONE_FAST)
def test_a_training_that_diverges_stops_with_step_and_lines_and_keeps_what_was_good(
    name: str, data: Path, tmp_path: Path
) -> None:
    """A learning rate that no weight survives, after five good updates."""
    sound = {"schedule": "constant", "optimizer": "adamw", "warmup": 1, "clip": 0.0}
    FAMILIES[name].train(data, tmp_path, steps=5, learning_rate=0.001, **sound)
    kept = {folder: verify(folder).digest for folder in present(tmp_path)}
    run = tmp_path / "run.json"
    run.write_text(run.read_text(encoding="utf-8").replace("0.001", "1e+30"), encoding="utf-8")
    with pytest.raises(TrainingError) as caught:
        FAMILIES[name].train(data, tmp_path, learning_rate=1e30, **sound)
    said = str(caught.value)
    assert WHERE.match(said) or "expected finite weights" in said, said
    assert "The last good checkpoint is intact." in said
    assert {folder: verify(folder).digest for folder in kept} == kept
    assert all(torch.isfinite(tensor).all() for tensor in load(present(tmp_path)[-1]).model.values())


def test_float16_which_would_need_scaled_gradients_is_no_choice() -> None:
    """bfloat16 has the range of float32: it overflows only where float32 does."""
    assert torch.finfo(torch.bfloat16).max > 0.99 * torch.finfo(torch.float32).max
    with pytest.raises(ConfigError) as caught:
        Settings(precision="float16")  # type: ignore[arg-type]
    assert caught.value.argument.endswith("precision")
    assert all(name in caught.value.expected for name in ("float32", "bfloat16", "auto"))
    assert "float16" in caught.value.got
