"""An alignment as a heat map in the terminal."""

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from qkv.view.alignment import Alignment
from qkv.view.colors import color, ink
from qkv.view.tokens import label

_NARROWEST = 3  # cells: room for a percentage of two digits
_WIDEST = (14, 12, 10, 8, 7, 6, 5)  # what a column may be wide, tried until all columns fit beside each other
_FOLDED = 8  # what a column may be wide when they never will, or a label would be cut
_LABEL_LINES = 5
_FAINTEST = 0.04  # of the scale: below it a character would be noise
_LEFT_TO_RIGHT = "\u200e"  # after a right-to-left label, or terminals that reorder text swap neighboring columns

_Paint = Callable[[float, str, int], Text]


def terminal(alignment: Alignment, console: Console | None = None) -> None:
    """Print an alignment: a row for each target token, a column for each source token.

    Cells are blocks of color with the weight in percent where the terminal has 256 colors or more; otherwise, and
    where `NO_COLOR` is set or the output is no terminal, they are characters from light to dark. Columns that do not
    fit beside each other continue in a further panel; long tokens fold over several lines, then end in "…".

    Args:
        alignment: what to print.
        console: where to; standard output if None.

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
    shown = console.is_terminal or console.is_jupyter
    colored = shown and not console.no_color and console.color_system in {"256", "truecolor"}
    paint = _blocks if colored else _characters(_encodes(console, "░▒▓█…"))
    for line in _Grid(alignment, console, paint, colored).lines():
        console.print(line if shown else Text(line.plain), crop=False, overflow="ignore", soft_wrap=True)


def _encodes(console: Console, text: str) -> bool:
    try:
        text.encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return True


def _blocks(fraction: float, number: str, width: int) -> Text:
    style = Style(color=Color.from_rgb(*ink(fraction)), bgcolor=Color.from_rgb(*color(fraction)))
    return Text(f"{number:^{width}}", style=style)


def _characters(unicode: bool) -> _Paint:
    shades = "░▒▓█" if unicode else ".:-=+*#%@"

    def paint(fraction: float, _number: str, width: int) -> Text:
        shade = shades[min(int(fraction * len(shades)), len(shades) - 1)] if fraction >= _FAINTEST else " "
        return Text(shade * max(1, width - 1) + " " * (width > 1))

    return paint


@dataclass(frozen=True)
class _Grid:
    alignment: Alignment
    console: Console
    paint: _Paint
    colored: bool

    @property
    def percent(self) -> bool:
        low, high = self.alignment.scale
        return self.colored and low == 0 and high <= 1

    def lines(self) -> list[Text]:
        sources = [self._readable(token) for token in self.alignment.source]
        targets = [self._readable(token) for token in self.alignment.target]
        if not sources or not targets:
            return [Text(f"no {'source' if targets else 'target'} tokens: nothing to attend to", style="dim")]
        gutter = min(max(map(cell_len, targets)), max(8, self.console.width // 4))
        room = self.console.width - gutter - 1
        widths, panels = _laid_out([cell_len(name) for name in sources], room)
        out: list[Text] = []
        for first, last in panels:
            if len(panels) > 1:
                out.append(Text(f"source {first + 1} to {last} of {len(sources)}", style="dim italic"))
            out += self._header(sources[first:last], widths[first:last], gutter)
            out += [
                self._row(name, self._cells(t, range(first, last), widths), gutter) for t, name in enumerate(targets)
            ]
        return [*out, self._legend(gutter)]

    def _readable(self, token: str) -> str:
        text = label(token)
        return text.encode(self.console.encoding, "backslashreplace").decode(self.console.encoding)

    def _header(self, names: list[str], widths: list[int], gutter: int) -> list[Text]:
        folded = [self._folded(name, width - 1) for name, width in zip(names, widths, strict=True)]
        height = max(map(len, folded))
        out = []
        for line in range(height):
            text = " " * (gutter + 1)
            for parts, width in zip(folded, widths, strict=True):
                row = line - (height - len(parts))
                text += _fitted(parts[row] if row >= 0 else "", width)
            out.append(Text(text.rstrip(" "), style="bold"))
        return out

    def _folded(self, name: str, width: int) -> list[str]:
        count = -(-cell_len(name) // width)
        even = chop_cells(name, -(-cell_len(name) // count))  # "Män-ner" reads better than "Männe-r"
        lines = even if len(even) <= count else chop_cells(name, width)
        if len(lines) <= _LABEL_LINES:
            return lines
        return [*lines[: _LABEL_LINES - 1], self._shortened("".join(lines[_LABEL_LINES - 1 :]), width)]

    def _shortened(self, name: str, width: int) -> str:
        more = "…" if _encodes(self.console, "…") else "~"
        return set_cell_size(name, width - 1).rstrip(" ") + more

    def _row(self, name: str, cells: list[Text], gutter: int) -> Text:
        if cell_len(name) > gutter:
            name = self._shortened(name, gutter)
        head = Text(" " * (gutter - cell_len(name)) + _isolated(name) + " ", style="bold")
        line = Text.assemble(head, *cells)
        if not self.colored:
            line.rstrip()
        return line

    def _cells(self, t: int, columns: range, widths: list[int]) -> list[Text]:
        fractions, weights = self.alignment.fractions()[t].tolist(), self.alignment.weights[t].tolist()
        return [self.paint(fractions[s], self._number(weights[s]), widths[s]) for s in columns]

    def _number(self, weight: float) -> str:
        percent = round(100 * weight)
        return f"{percent:>2}" if self.percent and percent else ""

    def _legend(self, gutter: int) -> Text:
        low, high = self.alignment.scale
        ends = ("0", f"{100 * high:.0f} %") if self.percent else (f"{low:.3g}", f"{high:.3g}")
        room = self.console.width - gutter - 3 - sum(map(len, ends))
        steps = max(2, min(24 if self.colored else 10, room))
        ramp = Text.assemble(*(self.paint(step / (steps - 1), "", 1) for step in range(steps)))
        return Text.assemble(" " * (gutter + 1), ends[0], " ", ramp, " ", ends[1], style="dim")


def _laid_out(lengths: list[int], room: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Choose each column's width and which columns stand in which panel, as [first, last) ranges."""
    uncut = 2 - (-max(lengths) // _LABEL_LINES)  # one more than an even fold needs: wide letters do not split
    for widest in _WIDEST:
        widths = _limited(lengths, widest)
        if sum(widths) <= room and widest >= min(uncut, _WIDEST[0]):
            return widths, [(0, len(widths))]
    widths = _limited(lengths, max(_NARROWEST, min(max(_FOLDED, uncut), _WIDEST[0], room)))
    panels = _split(widths, room)
    for tighter in range(room, 0, -1):  # the narrowest panels that are no more: no lone column at the end
        even = _split(widths, tighter)
        if len(even) > len(panels):
            break
        panels = even
    return widths, panels


def _limited(lengths: list[int], widest: int) -> list[int]:
    return [max(_NARROWEST, min(length + 1, widest)) for length in lengths]


def _split(widths: list[int], room: int) -> list[tuple[int, int]]:
    panels, first, used = [], 0, 0
    for place, width in enumerate(widths):
        if used + width > room and place > first:
            panels.append((first, place))
            first, used = place, 0
        used += width
    return [*panels, (first, len(widths))]


def _fitted(text: str, width: int) -> str:
    return _isolated(text) + " " * (width - cell_len(text))


def _isolated(text: str) -> str:
    reorders = any(unicodedata.bidirectional(character) in {"R", "AL", "AN"} for character in text)
    return text + _LEFT_TO_RIGHT if reorders else text
