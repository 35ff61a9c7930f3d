"""`qkv.load`: a trained model, whatever its task."""

from pathlib import Path

import torch

from qkv.tasks.translator import Translator


def load(run: str | Path, device: str | torch.device = "cpu") -> Translator:
    """Load a trained model with its tokenizer, ready to use.

    Args:
        run: the folder that training wrote (its best checkpoint is taken), or one checkpoint in it.
        device: where to compute.

    Returns:
        A `Translator`.

    Raises:
        CheckpointError: the checkpoint is missing, incomplete, altered, or of a task this version does not know.

    Example:
        >>> load("/dev/null/run")
        Traceback (most recent call last):
        qkv.errors.CheckpointError: /dev/null/run: expected a checkpoint or a run folder; got no such folder. ...
    """
    return Translator.load(run, device)
