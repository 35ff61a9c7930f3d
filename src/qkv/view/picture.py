"""Alignments as one picture, PNG or SVG, drawn by matplotlib without global state."""

import logging
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text
from torch import Tensor

from qkv.errors import ConfigError
from qkv.pictures import rendered, saved
from qkv.view.colors import color
from qkv.view.tokens import label, labels

DPI = 160
_FONT_SIZE = 9.0  # points
_CELL = 0.26  # inches, minimum if all tokens are labeled
_GAP = 0.08  # inches between a label and its cells
_MARGIN = 0.2  # inches
_BAR = 0.85  # inches for the color scale and its numbers
_LINE = 0.2  # inches of a line of the title
_LEAST = 2.6  # inches, minimum width: space for the note that a map is empty
_LONGEST_NAME = 40  # characters, then "…"
_LONGEST = 40.0  # inches of one side of a map; longer ones get smaller cells and fewer labels
_TALLEST = 200.0  # inches of a whole picture: 32,000 pixels, half of the renderer's limit
_SHARP_CELLS = 20_000  # larger maps are pixels in an SVG, not shapes
BASE = "DejaVu Sans"  # ships with matplotlib
_MISSING = "▯"
_UNSEEN = frozenset("\u200c\u200d\ufe0e\ufe0f")  # these only shape their neighbors: dropped if no font has them
_UPRIGHT = (400, "normal", "regular", "book")  # matplotlib warns about font families without it
_NOT_FOR_TEXT = ("Last Resort", "STIXSize", "STIXNonUnicode", "cm")
INK, PAPER = "#20242c", "#ffffff"
# "$" in a token is a dollar sign, whatever the user's settings are.
_PLAIN: dict[str, Any] = {"color": INK, "parse_math": False, "usetex": False}
COLORMAP = ListedColormap([tuple(part / 255 for part in color(step / 255)) for step in range(256)], name="qkv")


class TokenWeights(Protocol):
    """What is drawn: an `Alignment`, which draws itself in notebooks and so imports this module."""

    @property
    def source(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def target(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def weights(self) -> Tensor: ...  # noqa: D102
    @property
    def scale(self) -> tuple[float, float]: ...  # noqa: D102


def png(alignments: Sequence[TokenWeights]) -> bytes:
    """Draw alignments below each other as a PNG picture.

    Args:
        alignments: the alignments, at least one.

    Returns:
        The file's content, 160 pixels per inch.

    Raises:
        ConfigError: there is no alignment, or they do not fit in one picture.
        OutOfMemoryError: memory ran out.

    Example:
        >>> import torch
        >>> from qkv.view import Alignment
        >>> png([Alignment(("ein", "Hund"), ("a", "dog"), torch.eye(2))])[1:4]
        b'PNG'
    """
    return drawn(alignments, "png")


def svg(alignments: Sequence[TokenWeights]) -> bytes:
    """Draw alignments below each other as an SVG picture; letters are shapes, so that it looks the same everywhere.

    Args:
        alignments: the alignments, at least one.

    Returns:
        The file's content, UTF-8; the same alignments give the same bytes.

    Raises:
        ConfigError: there is no alignment, or they do not fit in one picture.
        OutOfMemoryError: memory ran out.

    Example:
        >>> import torch
        >>> from qkv.view import Alignment
        >>> b"<svg" in svg([Alignment(("ein", "Hund"), ("a", "dog"), torch.eye(2))])
        True
    """
    return drawn(alignments, "svg")


def drawn(alignments: Sequence[TokenWeights], kind: str, title: str = "") -> bytes:
    """Draw alignments below each other as a picture.

    Args:
        alignments: the alignments, at least one.
        kind: "png", "svg" or "pdf".
        title: stands above them; "" for none.

    Raises:
        ConfigError: there is no alignment, or they do not fit in one picture.
        OutOfMemoryError: memory ran out.

    Example:
        >>> import torch
        >>> from qkv.view import Alignment
        >>> drawn([Alignment(("ein", "Hund"), ("a", "dog"), torch.eye(2))], "pdf", "two words")[:4]
        b'%PDF'
    """
    return rendered(lambda: saved(figure_of(alignments, title), kind, DPI))


@dataclass(frozen=True)
class _Side:
    """The labels along one side of a map, measured in inches."""

    names: tuple[str, ...]
    font: FontProperties
    longest: float
    pitch: float  # from one cell to the next
    every: int  # label every n-th token
    across: bool  # labels stand perpendicular to the side, because along it they would overlap


def figure_of(alignments: Sequence[TokenWeights], title: str = "") -> Figure:
    """Draw alignments below each other as a matplotlib figure, for further changes.

    Args:
        alignments: the alignments, at least one.
        title: stands above them; "" for none.

    Returns:
        The figure; each alignment has one axes for its map and one for its color scale.

    Raises:
        ConfigError: there is no alignment, or they do not fit in one picture.

    Example:
        >>> import torch
        >>> from qkv.view import Alignment
        >>> len(figure_of([Alignment(("ein", "Hund"), ("a", "dog"), torch.eye(2))]).axes)
        2
    """
    if not alignments:
        hint = "Give at least one, or write a .html file, which can be empty."
        raise ConfigError("alignments", "at least one", "none", hint)
    sides = [(_side_of(a.source, turned=True), _side_of(a.target, turned=False)) for a in alignments]
    sizes = [_size(columns, rows) for columns, rows in sides]
    lines = (
        textwrap.wrap(" ".join(map(label, title.split())), max(20, int(max(w for w, _ in sizes) * 12))) if title else []
    )
    above = len(lines) * _LINE
    width, height = max(_LEAST, *(w for w, _ in sizes)), sum(h for _, h in sizes) + above
    if height > _TALLEST:
        hint = "Write fewer, or a .html file, which can contain any number."
        got = f"{len(alignments)} that need {height:.0f} inches"
        raise ConfigError("alignments", f"one picture, at most {_TALLEST:.0f} inches high", got, hint)
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor=PAPER)
    FigureCanvasAgg(figure)  # without it, every text measurement would create its own canvas
    if lines:
        heading, families = drawable(lines)
        style = {"fontproperties": _font(*families), "va": "top", **_PLAIN}
        figure.text(_MARGIN / width, 1 - _MARGIN / 2 / height, "\n".join(heading), **style)
    top = height - above
    for alignment, (columns, rows), (_, tall) in zip(alignments, sides, sizes, strict=True):
        _draw(figure, alignment, columns, rows, top)
        top -= tall
    return figure


def _size(columns: _Side, rows: _Side) -> tuple[float, float]:
    across = columns.longest if columns.across else _FONT_SIZE * 1.4 / 72
    width = 2 * _MARGIN + rows.longest + _GAP + columns.pitch * max(1, len(columns.names)) + _BAR
    return width, 2 * _MARGIN + across + _GAP + rows.pitch * max(1, len(rows.names))


def _draw(figure: Figure, alignment: TokenWeights, columns: _Side, rows: _Side, top: float) -> None:
    width, height = figure.get_size_inches()
    wide, tall = columns.pitch * max(1, len(columns.names)), rows.pitch * max(1, len(rows.names))
    left = _MARGIN + rows.longest + _GAP
    bottom = top - _size(columns, rows)[1] + _MARGIN
    axes = figure.add_axes((left / width, bottom / height, wide / width, tall / height))
    axes.set(xlim=(0, max(1, len(columns.names))), ylim=(max(1, len(rows.names)), 0), xticks=(), yticks=())
    axes.set_frame_on(False)
    _label(axes, columns, rows)
    if alignment.weights.numel() == 0:
        axes.annotate(
            "no tokens to attend to", (0.02, 0.5), xycoords="axes fraction", va="center", fontproperties=_font(BASE)
        )
        return
    mesh = _mesh(axes, alignment, columns, rows)
    bar = figure.add_axes(((left + wide + 0.14) / width, bottom / height, 0.1 / width, min(tall, 1.6) / height))
    _color_bar(figure, bar, mesh, few=tall < 0.6)


def _mesh(axes: Axes, alignment: TokenWeights, columns: _Side, rows: _Side) -> QuadMesh:
    norm = Normalize(*alignment.scale)
    weights = alignment.weights.numpy()
    gap = 1.0 if min(columns.pitch, rows.pitch) > 0.15 else 0.0
    return axes.pcolormesh(
        weights,
        cmap=COLORMAP,
        norm=norm,
        edgecolors=PAPER if gap else "none",
        linewidth=gap,
        antialiased=bool(gap),
        rasterized=weights.size > _SHARP_CELLS,
    )


def _label(axes: Axes, columns: _Side, rows: _Side) -> None:
    for index in range(0, len(columns.names), columns.every):
        axes.annotate(
            columns.names[index],
            (index + 0.5, 0),
            xytext=(0, _GAP * 72),
            textcoords="offset points",
            ha="center",
            va="bottom",
            rotation=90 if columns.across else 0,
            fontproperties=columns.font,
            **_PLAIN,
        )
    for index in range(0, len(rows.names), rows.every):
        axes.annotate(
            rows.names[index],
            (0, index + 0.5),
            xytext=(-_GAP * 72, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontproperties=rows.font,
            **_PLAIN,
        )


def _color_bar(figure: Figure, axes: Axes, mesh: QuadMesh, *, few: bool) -> None:
    bar = figure.colorbar(mesh, cax=axes)
    bar.outline.set_visible(False)
    low, high = mesh.get_clim()
    ticks = [low, high] if few else [low, (low + high) / 2, high]
    bar.set_ticks(ticks, labels=[f"{tick:.3g}" for tick in ticks])
    axes.tick_params(length=0, pad=4, labelsize=_FONT_SIZE - 1, labelcolor=INK, labelfontfamily=BASE)


def _side_of(tokens: tuple[str, ...], *, turned: bool) -> _Side:
    names, families = drawable([_shortened(name) for name in labels(tokens)])
    font = _font(*families)
    if not names:
        return _Side((), font, 0.0, 2.0 if turned else 0.4, 1, across=False)
    boxes = _boxes(names, font)
    longest, thickest = max(box[0] for box in boxes), max(box[1] for box in boxes)
    pitch = max(_CELL, 1.2 * thickest)
    across = turned and longest > 0.9 * pitch
    shrunk = min(pitch, _LONGEST / len(names))
    along = longest if turned and not across else thickest
    every = 1 if shrunk == pitch else -int(-1.2 * along // shrunk)
    return _Side(names, font, longest, shrunk, every, across)


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _font(*families: str) -> FontProperties:
    return FontProperties(family=families, size=_FONT_SIZE)


def _boxes(names: Sequence[str], font: FontProperties) -> list[tuple[float, float]]:
    """Measure labels: width and height of each in inches."""
    figure = Figure(dpi=DPI)
    FigureCanvasAgg(figure)
    boxes = []
    for name in dict.fromkeys(names):
        box = Text(0, 0, name, figure=figure, fontproperties=font, **_PLAIN).get_window_extent()
        boxes.append((box.width / DPI, box.height / DPI))
    return boxes


def drawable(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Find the fonts for some labels; characters that no installed font has become ▯.

    Args:
        names: the labels.

    Returns:
        The drawable labels, and the font families in order of preference.

    Example:
        >>> drawable(["Hund", "dog"])
        (('Hund', 'dog'), ('DejaVu Sans',))
    """
    characters = sorted({character for name in names for character in name})
    homes = {character: _family_with(character) for character in characters}
    table = {ord(c): "" if c in _UNSEEN else _MISSING for c, home in homes.items() if home is None}
    families = dict.fromkeys([BASE, *filter(None, homes.values())])
    return tuple(name.translate(table) or _MISSING for name in names), tuple(families)


@cache
def _family_with(character: str) -> str | None:
    code = ord(character)
    return next((family for family, font in _fonts() if font.get_char_index(code)), None)


@cache
def _fonts() -> tuple[tuple[str, FT2Font], ...]:
    return tuple((family, font) for family in _families() if (font := _load_font(family)) is not None)


def _families() -> Iterable[str]:
    entries = font_manager.fontManager.ttflist
    installed = sorted({e.name for e in entries if e.style == "normal" and e.weight in _UPRIGHT})
    sans_first = sorted(installed, key=lambda name: "Sans" not in name)
    return dict.fromkeys([BASE, *(name for name in sans_first if not name.startswith(_NOT_FOR_TEXT))])


def _load_font(family: str) -> FT2Font | None:
    try:
        font = FT2Font(font_manager.findfont(family, fallback_to_default=False))
    except (OSError, RuntimeError, ValueError) as error:  # a font file that cannot be read is skipped
        logging.getLogger(__name__).debug("font %s cannot be used: %s", family, error)
        return None
    return font if font.scalable else None  # color emoji are bitmaps, which matplotlib cannot draw
