import pytest
import torch

from qkv.checkpoint.average import average_checkpoints, last_checkpoints
from qkv.checkpoint.contents import Contents
from qkv.checkpoint.folder import save
from qkv.checkpoint.rotation import save_step, step_folder
from qkv.errors import CheckpointError, ConfigError


def weights(value: float) -> dict[str, torch.Tensor]:
    shared = torch.full((2,), value)
    return {"a": shared, "b": shared, "half": torch.full((2,), value).bfloat16(), "count": torch.tensor(int(value))}


def test_weights_are_averaged_counts_are_the_last_and_ties_stay(tmp_path):
    for step in (1, 2, 3, 6):
        save_step(tmp_path, step, Contents(weights(float(step)), {}), keep=9)
    mean = average_checkpoints(last_checkpoints(tmp_path, 3))
    assert mean["a"].tolist() == pytest.approx([11 / 3] * 2)
    assert mean["a"] is mean["b"]
    assert mean["half"].dtype == torch.bfloat16
    assert mean["count"].item() == 6


def test_one_checkpoint_is_its_own_average(tmp_path):
    save_step(tmp_path, 1, Contents({"a": torch.randn(5)}, {}))
    mean = average_checkpoints([step_folder(tmp_path, 1)])
    assert torch.equal(mean["a"], average_checkpoints([step_folder(tmp_path, 1)] * 4)["a"])


def test_sums_lose_nothing_to_float32(tmp_path):
    for step, value in enumerate((2.0**24, 1.0, 1.0, 0.0)):
        save_step(tmp_path, step, Contents({"a": torch.tensor([value])}, {}), keep=9)
    assert average_checkpoints(last_checkpoints(tmp_path, 4))["a"].item() == (2**24 + 2) / 4


def test_other_models_and_missing_checkpoints_are_refused(tmp_path):
    save_step(tmp_path, 1, Contents({"a": torch.ones(2)}, {}))
    save(tmp_path / "other", Contents({"a": torch.ones(3)}, {}))
    with pytest.raises(CheckpointError, match="Average checkpoints of one run"):
        average_checkpoints([step_folder(tmp_path, 1), tmp_path / "other"])
    with pytest.raises(CheckpointError, match="expected 2 checkpoints; got 1"):
        last_checkpoints(tmp_path, 2)
    with pytest.raises(ConfigError, match="at least 1; got 0"):
        last_checkpoints(tmp_path, 0)
    with pytest.raises(CheckpointError, match="at least one checkpoint"):
        average_checkpoints([])
