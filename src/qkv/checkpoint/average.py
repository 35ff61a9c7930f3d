"""Averaging the weights of several checkpoints."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from qkv.checkpoint.folder import load
from qkv.checkpoint.rotation import present
from qkv.errors import CheckpointError, ConfigError, setting


def last_checkpoints(run: Path, count: int) -> list[Path]:
    """List the newest checkpoints of a run.

    Args:
        run: the run folder.
        count: number of checkpoints, at least 1.

    Returns:
        Their folders, oldest first.

    Raises:
        ConfigError: the count is below 1.
        CheckpointError: there are too few.
    """
    checkpoints = present(run)
    if count < 1:
        raise ConfigError("count", "at least 1", str(count), "Average at least two.")
    if len(checkpoints) < count:
        hint = (
            "Average fewer, or train longer: each validation writes one, and the newest stay, as many as keep says "
            "under [training] in " + setting("config") + "."
        )
        raise CheckpointError(str(run), f"{count} checkpoints", str(len(checkpoints)), hint)
    return checkpoints[-count:]


def average_checkpoints(folders: Sequence[Path]) -> dict[str, Tensor]:
    """Average the weights of checkpoints of one model, summed in float64.

    Args:
        folders: one or more checkpoints.

    Returns:
        Name to tensor; tensors that are not floating-point come from the last checkpoint. Tied names share a tensor.

    Raises:
        CheckpointError: a checkpoint is damaged, or they belong to different models.

    Source:
        Vaswani et al. 2017, section 6.1.
    """
    sums: dict[str, Tensor] = {}
    model: dict[str, Tensor] = {}
    for folder in folders:
        model = dict(load(folder, trainer=False).model)
        shapes = {name: tensor.shape for name, tensor in model.items()}
        if sums and shapes != {name: tensor.shape for name, tensor in sums.items()}:
            hint = "Average checkpoints of one run."
            raise CheckpointError(str(folder), "the tensors of the other checkpoints", "others", hint)
        for name, tensor in model.items():
            sums[name] = sums[name] + tensor.double() if name in sums else tensor.double()
    if not sums:
        raise CheckpointError("folders", "at least one checkpoint", "none", "Give the checkpoint folders to average.")
    return _shared({name: _mean(sums[name], model[name], len(folders)) for name in sums}, model)


def _mean(total: Tensor, last: Tensor, count: int) -> Tensor:
    return (total / count).to(last.dtype) if last.is_floating_point() else last.clone()


def _shared(means: dict[str, Tensor], model: dict[str, Tensor]) -> dict[str, Tensor]:
    owner_of: dict[int, str] = {}
    owners = {name: owner_of.setdefault(id(tensor), name) for name, tensor in model.items()}
    return {name: means[owners[name]] for name in means}
