"""One number for each head of a model, as a picture: layers × heads."""

from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from torch import Tensor

from qkv.pictures import rendered, saved
from qkv.view.picture import BASE, COLORMAP, DPI, INK, PAPER, drawable

_CELL, _LEFT, _TOP, _BOTTOM, _BAR = 0.34, 0.3, 0.55, 0.25, 1.0
"""Inches of a cell, of the margins around all cells, and of the color scale."""
_LETTER = 0.085
"""Inches of a letter of a layer's name."""
_SIZE = 9.0
"""Points."""


def drawn(values: Tensor, layers: Sequence[str], kind: str, title: str, *, signed: bool = True) -> bytes:
    """Draw a number for each head.

    Args:
        values: (L, H); NaN where a layer has fewer heads.
        layers: the names of the layers.
        kind: "png", "svg" or "pdf".
        title: what the numbers are.
        signed: whether the colors of both signs differ, and 0 is white; otherwise they go from 0 to 1.

    Returns:
        The file's content; the same numbers give the same bytes.

    Example:
        >>> import torch
        >>> drawn(torch.tensor([[0.5, -0.25]]), ["layer 0"], "png", "effect")[1:4]
        b'PNG'
    """
    return rendered(lambda: _drawn(values, layers, kind, title, signed))


def _drawn(values: Tensor, layers: Sequence[str], kind: str, title: str, signed: bool) -> bytes:
    rows, columns = values.shape
    names, families = drawable(layers)
    left = _LEFT + _LETTER * max(map(len, names), default=0)
    width, height = left + _CELL * columns + _BAR, _TOP + _CELL * rows + _BOTTOM
    width = max(width, _LEFT + _LETTER * len(title) + 0.2)
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor=PAPER)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((left / width, _BOTTOM / height, _CELL * columns / width, _CELL * rows / height))
    known = values[~values.isnan()]
    most = float(known.abs().max()) if known.numel() else 0.0
    norm = TwoSlopeNorm(0, -(most or 1.0), most or 1.0) if signed else Normalize(0, 1)
    mesh = axes.pcolormesh(
        values.numpy(), cmap="PuOr_r" if signed else COLORMAP, norm=norm, edgecolors=PAPER, linewidth=1
    )
    axes.set(ylim=(rows, 0))
    axes.set_frame_on(False)
    style: dict[str, Any] = {"fontsize": _SIZE, "color": INK, "fontfamily": [*families], "parse_math": False}
    axes.set_yticks([row + 0.5 for row in range(rows)], labels=names, **style)
    axes.set_xticks([head + 0.5 for head in range(columns)], labels=[f"{head}" for head in range(columns)], **style)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=4)
    figure.text(_LEFT / 2 / width, 1 - 0.22 / height, f"{title}, by layer and head", **style)
    bar = figure.add_axes(
        ((left + _CELL * columns + 0.14) / width, _BOTTOM / height, 0.1 / width, min(_CELL * rows, 1.6) / height)
    )
    scale = figure.colorbar(mesh, cax=bar)
    scale.outline.set_visible(False)
    ticks = [-most, 0.0, most] if signed and most else [0.0, 1.0]
    scale.set_ticks(ticks, labels=[f"{tick:.3g}".replace("-", "−") for tick in ticks])
    bar.tick_params(length=0, pad=4, labelsize=_SIZE - 1, labelcolor=INK, labelfontfamily=BASE)
    return saved(figure, kind)
