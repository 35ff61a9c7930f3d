"""An alignment as a heat map in the terminal."""

import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from qkv.view.alignment import Alignment
from qkv.view.colors import color, ink
from qkv.view.tokens import labels

_NARROWEST = 3  # cells: a percentage of two digits fits
_WIDEST = (14, 12, 10, 8, 7, 6, 5)  # column widths, tried in order until all columns fit side by side
_FOLDED = 8  # column widths if they never fit, or a label would be cut
_LABEL_LINES = 5
_FAINTEST = 0.04  # of the scale: below this a character would be noise
_LEFT_TO_RIGHT = (
    "\u200e"  # after a right-to-left label, because terminals that reorder text would swap neighboring columns
)

_Paint = Callable[[float, str, int], tuple[str, Style]]


def terminal(alignment: Alignment, console: Console | None = None) -> None:
    """Print an alignment: one row per target token, one column per source token.

    Cells are blocks of color with the weight in percent if the terminal has at least 256 colors. Otherwise, or if
    `NO_COLOR` is set or the output is not a terminal, they are characters from light to dark. Columns that do not fit
    side by side continue in another panel; long tokens wrap over several lines, then end in "…".

    Args:
        alignment: the alignment.
        console: the output; standard output if None.

    Example:
        >>> import torch
        >>> alignment = Alignment(("ein", "Hund"), ("a", "dog"), torch.tensor([[0.9, 0.1], [0.0, 1.0]]))
        >>> terminal(alignment, Console(width=40, color_system=None))
            ein Hund
          a ███ ░░░░
        dog     ████
            0  ░░▒▒▓▓███ 1
    """
    console = console or Console()
    styled = console.is_terminal or console.is_jupyter
    colored = styled and not console.no_color and console.color_system in {"256", "truecolor"}
    for line in _grid(alignment, console, colored).lines():
        console.print(line if styled else Text(line.plain), crop=False, overflow="ignore", soft_wrap=True)


def _encoded(text: str, encoding: str) -> str:
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _encodable(text: str, encoding: str) -> bool:
    return _encoded(text, encoding) == text


def _blocks(fraction: float, number: str, width: int) -> tuple[str, Style]:
    return f"{number:^{width}}", _block_style(round(255 * fraction))


@cache
def _block_style(step: int) -> Style:
    fraction = step / 255
    return Style(color=Color.from_rgb(*ink(fraction)), bgcolor=Color.from_rgb(*color(fraction)))


def _characters(shades: str) -> _Paint:
    def paint(fraction: float, _number: str, width: int) -> tuple[str, Style]:
        shade = shades[min(int(fraction * len(shades)), len(shades) - 1)] if fraction >= _FAINTEST else " "
        return shade * max(1, width - 1) + " " * (width > 1), Style.null()

    return paint


@dataclass(frozen=True)
class _Grid:
    """What to print, with all properties of the terminal and the weights resolved."""

    sources: list[str]
    targets: list[str]
    fractions: list[list[float]]
    percents: list[list[int]] | None
    ends: tuple[str, str]
    paint: _Paint
    colored: bool
    more: str
    width: int

    def lines(self) -> Iterator[Text]:
        if not self.sources or not self.targets:
            yield Text(f"no {'source' if self.targets else 'target'} tokens: nothing to attend to", style="dim")
            return
        gutter = min(max(map(cell_len, self.targets)), max(8, self.width // 4))
        widths, panels = _layout([cell_len(name) for name in self.sources], self.width - gutter - 1)
        for first, last in panels:
            if len(panels) > 1:
                yield Text(f"source {first + 1} to {last} of {len(self.sources)}", style="dim italic")
            yield from self._header(self.sources[first:last], widths[first:last], gutter)
            for t in range(len(self.targets)):
                yield self._row(t, range(first, last), widths, gutter)
        yield self._legend(gutter)

    def _header(self, names: list[str], widths: list[int], gutter: int) -> Iterator[Text]:
        folded = [self._folded(name, width - 1) for name, width in zip(names, widths, strict=True)]
        height = max(map(len, folded))
        for line in range(height):
            parts = [lines[line - height] if line - height >= -len(lines) else "" for lines in folded]
            text = "".join(_padded(part, width) for part, width in zip(parts, widths, strict=True))
            yield Text(" " * (gutter + 1) + text.rstrip(" "), style="bold")

    def _folded(self, name: str, width: int) -> list[str]:
        count = -(-cell_len(name) // width)
        even = chop_cells(name, -(-cell_len(name) // count))  # "Män-ner" reads better than "Männe-r"
        lines = even if len(even) <= count else chop_cells(name, width)
        if len(lines) <= _LABEL_LINES:
            return lines
        return [*lines[: _LABEL_LINES - 1], self._shortened("".join(lines[_LABEL_LINES - 1 :]), width)]

    def _shortened(self, name: str, width: int) -> str:
        return set_cell_size(name, width - 1).rstrip(" ") + self.more

    def _row(self, t: int, columns: range, widths: list[int], gutter: int) -> Text:
        name = self.targets[t]
        if cell_len(name) > gutter:
            name = self._shortened(name, gutter)
        head = " " * (gutter - cell_len(name)) + _isolated(name) + " "
        cells = (self.paint(self.fractions[t][s], self._number(t, s), widths[s]) for s in columns)
        line = Text.assemble((head, "bold"), *cells)
        if not self.colored:
            line.rstrip()
        return line

    def _number(self, t: int, s: int) -> str:
        return f"{self.percents[t][s] or '':>2}" if self.percents else ""

    def _legend(self, gutter: int) -> Text:
        width = self.width - gutter - 3 - sum(map(len, self.ends))
        steps = max(2, min(24 if self.colored else 10, width))
        ramp = (self.paint(step / (steps - 1), "", 1) for step in range(steps))
        return Text.assemble(" " * (gutter + 1), self.ends[0], " ", *ramp, " ", self.ends[1], style="dim")


def _grid(alignment: Alignment, console: Console, colored: bool) -> _Grid:
    low, high = alignment.scale
    percent = colored and low == 0 and high <= 1
    unicode = _encodable("░▒▓█…", console.encoding)
    return _Grid(
        sources=[_encoded(name, console.encoding) for name in labels(alignment.source)],
        targets=[_encoded(name, console.encoding) for name in labels(alignment.target)],
        fractions=alignment.fractions().tolist(),
        percents=(100 * alignment.weights).round().int().tolist() if percent else None,
        ends=("0", f"{100 * high:.0f} %") if percent else (f"{low:.3g}", f"{high:.3g}"),
        paint=_blocks if colored else _characters("░▒▓█" if unicode else ".:-=+*#%@"),
        colored=colored,
        more="…" if unicode else "~",
        width=console.width,
    )


def _layout(lengths: list[int], width: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Choose each column's width and which columns go in which panel, as [first, last) ranges."""
    uncut = 2 - (-max(lengths) // _LABEL_LINES)  # one more than an even split needs: wide letters cannot be split
    for widest in _WIDEST:
        widths = _limited(lengths, widest)
        if sum(widths) <= width and widest >= min(uncut, _WIDEST[0]):
            return widths, [(0, len(widths))]
    widths = _limited(lengths, max(_NARROWEST, min(max(_FOLDED, uncut), _WIDEST[0], width)))
    panels = _split(widths, width)
    for tighter in range(
        width, 0, -1
    ):  # the narrowest panels without increasing their number: avoids a lone column at the end
        even = _split(widths, tighter)
        if len(even) > len(panels):
            break
        panels = even
    return widths, panels


def _limited(lengths: list[int], widest: int) -> list[int]:
    return [max(_NARROWEST, min(length + 1, widest)) for length in lengths]


def _split(widths: list[int], limit: int) -> list[tuple[int, int]]:
    panels, first, used = [], 0, 0
    for column, width in enumerate(widths):
        if used + width > limit and column > first:
            panels.append((first, column))
            first, used = column, 0
        used += width
    return [*panels, (first, len(widths))]


def _padded(text: str, width: int) -> str:
    return _isolated(text) + " " * (width - cell_len(text))


def _isolated(text: str) -> str:
    reorders = any(unicodedata.bidirectional(character) in {"R", "AL", "AN"} for character in text)
    return text + _LEFT_TO_RIGHT if reorders else text
