"""`qkv.load`: load a trained model of any task."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from qkv.errors import CheckpointError, error_message, nearest
from qkv.tasks.element_pointer import ElementPointer
from qkv.tasks.generator import Generator
from qkv.tasks.labeler import Classifier, Tagger
from qkv.tasks.members import members_of
from qkv.tasks.regressor import Regressor
from qkv.tasks.runs import Trained, open_run
from qkv.tasks.translator import Translator

_LOADERS: Mapping[str, Callable[[Trained, str | torch.device], Any]] = MappingProxyType(
    {
        "classify": Classifier,
        "generate": lambda trained, device: Generator.load(trained.folder, device),
        "point": ElementPointer,
        "regress": lambda trained, device: Regressor(trained),
        "tag": Tagger,
        "translate": lambda trained, device: Translator.load(trained.folder, device),
    }
)


def load(run: str | Path, device: str | torch.device = "cpu") -> Any:
    """Load a trained model with its tokenizer, ready to use.

    Args:
        run: run folder, whose best checkpoint is used, or one checkpoint in it; or the folder of an ensemble.
        device: compute device.

    Returns:
        A `Translator`, `Generator`, `Classifier`, `Tagger`, `ElementPointer` or `Regressor`, depending on the task.

    Raises:
        CheckpointError: the checkpoint is missing, incomplete, corrupted, or of an unknown task.

    Example:
        >>> load("/dev/null/run")
        Traceback (most recent call last):
        qkv.errors.CheckpointError: /dev/null/run: expected a checkpoint or a run folder; got no such folder. ...
    """
    members = members_of(Path(run))
    if len(members) > 1:
        return Translator.load(run, device)
    trained = open_run(members[0])
    if trained.task not in _LOADERS:
        got, hint = f'"{trained.task[:80]}"', nearest(trained.task[:80], _LOADERS)
        raise CheckpointError(error_message(str(trained.folder), "a task that this version knows", got, hint))
    return _LOADERS[trained.task](trained, device)
