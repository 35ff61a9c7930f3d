"""Attention maps in the viewer, as recordings of one call: what `AttentionMap.show` opens."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from qkv.engine.describe import Arguments
from qkv.errors import ShapeError
from qkv.recording.calls import RecordedCall
from qkv.recording.scenes import CallRow, scene_of, sides_of
from qkv.view import showing
from qkv.view.scene import OPTIONS, Scene

if TYPE_CHECKING:
    from qkv.view.server.serve import Serving

Inputs = tuple[Tensor, Tensor, Arguments]
"""Query, key, and the other arguments of `qkv.attention_map`."""


def scene_of_map(inputs: Inputs, row: int = 0, tokens: Mapping[str, Sequence[str]] | None = None) -> Scene:
    """Return one row of an attention map as a scene; keys stand for the values.

    Args:
        inputs: what the map is of.
        row: index of the row, if there is a batch.
        tokens: as for `AttentionMap.show`.

    Raises:
        ShapeError: there is no such row, or more dimensions than batch and heads.
    """
    query, key, arguments = inputs
    options = {name: getattr(arguments, name) for name in OPTIONS if getattr(arguments, name) is not None}
    if query.ndim == 2:
        query, key = query[None], key[None]
    if not 0 <= row < query.shape[0]:
        raise ShapeError("row", f"a row from 0 to {query.shape[0] - 1}", str(row), "Rows count from 0.")
    same_length = query.shape[-2] == key.shape[-2]
    call = RecordedCall(query.detach(), key.detach(), key.detach(), options, self_attention=same_length)
    parts = {"attention": [CallRow(call, row, None)]}
    return scene_of(parts, sides_of(parts, {}), {}, tokens or {}, {}, "attention")


def show(inputs: Inputs, row: int, tokens: Mapping[str, Sequence[str]] | None, port: int, browser: bool) -> "Serving":
    """Open a map in the viewer, as `AttentionMap.show` does."""
    return showing.show(scene_of_map(inputs, row, tokens), port, browser)


def notebook(inputs: Inputs) -> str:
    """Return the first row of a map as HTML for a notebook."""
    return showing.notebook(scene_of_map(inputs))
