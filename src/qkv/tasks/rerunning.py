"""Running the model of a scene again with changed heads, for the viewer."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from qkv.recording.patching import Change, patch
from qkv.recording.trace import Trace
from qkv.view.scene import ModelAnswer, Scene


def with_answers(scene: Scene, model: nn.Module, trace: Trace, answer: Callable[[], ModelAnswer]) -> Scene:
    """Return a scene whose model can be run again with changed heads.

    Args:
        scene: the scene.
        model: its model.
        trace: the recording that the scene shows, for means over its positions.
        answer: runs the model on the text of the scene.
    """
    lock = threading.Lock()  # the hooks of a patch are on the model, which threads share

    def change_of(change: Any) -> Change:
        if change == "mean":
            return ("mean", trace)
        return change if isinstance(change, str | tuple) else ("mechanism", change)  # type: ignore[return-value]

    def rerun(changes: Mapping[str, Mapping[int, Any]]) -> ModelAnswer:
        patched = {
            layer: {head: change_of(change) for head, change in heads.items()} for layer, heads in changes.items()
        }
        with lock, patch(model, patched):
            return answer()

    return replace(scene, rerun=rerun)
