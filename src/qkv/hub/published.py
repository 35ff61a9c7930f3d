"""Published models: how a checkpoint keeps one, and which folders hold one; see `qkv.hub.families` for the rest."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, final

from qkv.checkpoint.manifest import NAME as MANIFEST
from qkv.hub.folder import ADAPTER, CONFIG, Folder
from qkv.settings import Option, check

PUBLISHED: Literal["published"] = "published"
"""The kind of these models in the configuration of a checkpoint."""


@final
@dataclass(frozen=True)
class PublishedConfig:
    """A published model as a checkpoint keeps it: its config.json, from which its parts follow.

    Args:
        settings: config.json as text.
        stored: which tensors of the output layer the folder holds, separated by spaces.
        context: tokens that are read at once, if fewer than the model can read.
        dropout: in training; None for that of config.json.
        model: its kind.

    Raises:
        ConfigError: a number is outside its range.
    """

    settings: str
    stored: str = ""
    context: Annotated[int | None, Option("Context length", "tokens", least=1, hint="Omit it for all.")] = None
    dropout: Annotated[float | None, Option("Dropout in training", least=0, below=1, hint="0 disables it.")] = None
    model: Literal["published"] = PUBLISHED

    def __post_init__(self) -> None:
        check(self)

    @property
    def copy(self) -> str:
        """Whether words are copied: never."""
        return "none"


def published_folder(path: Path) -> Folder | None:
    """Return the folder of a published model; None if the path is anything else, such as a run of this library."""
    if not os.path.isdir(path):
        return None
    folder = Folder(path)
    if folder.has(MANIFEST):
        return None
    is_published = folder.has(ADAPTER) or (folder.has(CONFIG) and "task" not in folder.table(CONFIG))
    return folder if is_published else None
