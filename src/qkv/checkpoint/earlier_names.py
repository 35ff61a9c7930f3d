"""Names that tensors had in checkpoints of earlier versions, as tables to today's names."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Renaming(NamedTuple):
    """A change of names between two versions.

    Attributes:
        mark: a name that only checkpoints from before the change have.
        beginnings: what names began with, and begin with today.
    """

    mark: str
    beginnings: Mapping[str, str]


RENAMINGS = (
    # Published encoder-decoders: both kinds of translators call the embedding of the target `embed`.
    Renaming("target_embed.weight", {"embed.": "embed_source.", "target_embed.": "embed."}),
)


def renamed(names: Iterable[str]) -> dict[str, str]:
    """Return the tensors of a model whose names have changed since they were stored, and today's names.

    Args:
        names: all names that are stored.

    Example:
        >>> renamed(["embed.weight", "target_embed.weight", "output.bias"])
        {'embed.weight': 'embed_source.weight', 'target_embed.weight': 'embed.weight'}
    """
    stored = list(names)
    return {
        name: today + name.removeprefix(before)
        for change in RENAMINGS
        if change.mark in stored
        for before, today in change.beginnings.items()
        for name in stored
        if name.startswith(before)
    }
