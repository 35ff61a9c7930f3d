"""What a trained checkpoint contains, for any task."""

from pathlib import Path
from typing import NamedTuple

from qkv.checkpoint.contents import Contents
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError
from qkv.hub.families.load import PUBLISHED


class Trained(NamedTuple):
    """A trained checkpoint.

    Attributes:
        folder: the checkpoint's folder.
        contents: its weights, configuration and metrics.
        text: text to ids; None for a model that reads numbers.
        task: name of the task.
    """

    folder: Path
    contents: Contents
    text: Tokenizer | None
    task: str

    @property
    def published(self) -> bool:
        """Whether the model comes from another library: from its folder, or from a run that continued from it."""
        model = self.contents.config.get("model")
        return isinstance(model, dict) and model.get("kind") == PUBLISHED

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids.

        Raises:
            CheckpointError: the model reads numbers, and has none.
        """
        if self.text is None:
            files = "Copy the model's tokenizer.json, or source.spm, target.spm and vocab.json, into the folder."
            hint = files if self.published else "Give the run of a model that reads text."
            raise CheckpointError(str(self.folder), "a checkpoint with a tokenizer", "one without", hint)
        return self.text
