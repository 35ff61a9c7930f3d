"""What a trained checkpoint contains, for any task."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from qkv.checkpoint.contents import Contents
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError
from qkv.hub.families.load import PUBLISHED


class Trained(NamedTuple):
    """A trained checkpoint.

    Attributes:
        folder: the checkpoint's folder.
        contents: its weights, configuration and metrics.
        stored_tokenizer: text to ids; None for a model that reads numbers.
        task: name of the task.
    """

    folder: Path
    contents: Contents
    stored_tokenizer: Tokenizer | None
    task: str

    @property
    def published(self) -> bool:
        """Whether the model comes from another library: from its folder, or from a run that continued from it."""
        return self.model_table.get("kind") == PUBLISHED

    @property
    def model_table(self) -> Mapping[str, Any]:
        """The settings of the model as config.json has them; none if it has no such table."""
        table = self.contents.config.get("model")
        return table if isinstance(table, Mapping) else {}

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids.

        Raises:
            CheckpointError: the model reads numbers, and has none.
        """
        if self.stored_tokenizer is None:
            files = "Copy the model's tokenizer.json, or source.spm, target.spm and vocab.json, into the folder."
            hint = files if self.published else "Give the run of a model that reads text."
            raise CheckpointError(str(self.folder), "a checkpoint with a tokenizer", "one without", hint)
        return self.stored_tokenizer
