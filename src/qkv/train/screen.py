"""Progress on standard error: a bar where someone watches, plain lines where not."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO, cast, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from qkv.errors import harmless
from qkv.metrics.figure import Figure
from qkv.train.events import Event, Listener, Logged, Said, Saved, Updated, Validated


def screen(stream: TextIO, steps: int, unit: str = "tokens") -> Listener:
    """Choose how progress is shown.

    Args:
        stream: where to, usually standard error.
        steps: number of all updates.
        unit: what speed is counted in.

    Returns:
        A bar where the stream is a terminal, else lines; nothing once the stream has gone.
    """
    lasting = cast(TextIO, Lasting(stream))
    return Bar(lasting, steps, unit) if stream.isatty() else Lines(lasting, steps, unit)


@final
class Lasting:
    """A stream that may go away: a closed terminal or pipe must not end a training, nor keep it from its last save.

    Args:
        stream: where to, as long as it is there.
    """

    def __init__(self, stream: TextIO) -> None:
        """Begin."""
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        """What the stream says of itself."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, if there is still a place for it."""
        with suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Hand on what was written, likewise."""
        with suppress(OSError):
            self._stream.flush()


@final
class Lines:
    """Plain lines.

    Args:
        stream: where to.
        steps: number of all updates.
        unit: what speed is counted in.
    """

    def __init__(self, stream: TextIO, steps: int, unit: str = "tokens") -> None:
        """Begin."""
        self._stream, self._steps, self._unit = stream, steps, unit

    def __call__(self, event: Event) -> None:
        """Write a line, for what deserves one."""
        text = _line(event, self._steps, self._unit)
        if text:
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Leave the stream open: it is not ours."""


@final
class Bar:
    """A bar with loss, learning rate, tokens per second and time left; validations are lines above it.

    Args:
        stream: a terminal.
        steps: number of all updates.
        unit: what speed is counted in.
    """

    def __init__(self, stream: TextIO, steps: int, unit: str = "tokens") -> None:
        """Show the bar."""
        self._steps, self._unit = steps, unit
        columns = (TextColumn("train"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
        self._progress = Progress(*columns, console=Console(file=stream, highlight=False))
        self._task = self._progress.add_task("train", total=steps, text="")
        self._rest = ""
        self._progress.start()

    def __call__(self, event: Event) -> None:
        """Move the bar, or write a line above it."""
        match event:
            case Updated(step, loss):
                self._progress.update(self._task, completed=step, text=f"loss {loss:.4f}{self._rest}")
            case Logged():
                self._rest = f"  {_rates(event, self._unit)}"
                text = f"loss {event.loss:.4f}{self._rest}"
                self._progress.update(self._task, completed=event.step, text=text)
            case _:
                text = _line(event, self._steps, self._unit)
                if text:
                    self._progress.console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._progress.stop()


def show_figures(figures: Sequence[Figure]) -> str:
    """Write figures in one line.

    Args:
        figures: what was measured.

    Returns:
        Names and values.

    Example:
        >>> from qkv.metrics.figure import Figure
        >>> show_figures([Figure("bleu", 31.239, ""), Figure("loss", 1.5, "")])
        'bleu 31.24, loss 1.5'
    """
    return ", ".join(f"{figure.name} {figure.value:.4g}" for figure in figures)


def duration(seconds: float) -> str:
    """Write a duration in two units at most.

    Args:
        seconds: from 0 on.

    Returns:
        Text.

    Example:
        >>> [duration(seconds) for seconds in (7.4, 200, 9000, 200_000)]
        ['7 s', '3 min 20 s', '2 h 30 min', '2 d 7 h']
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def _line(event: Event, steps: int, unit: str) -> str:
    match event:
        case Logged():
            return f"step {event.step:,}/{steps:,}  loss {event.loss:.4f}  {_rates(event, unit)}"
        case Validated(step, figures, better) if figures:
            return f"step {step:,}: {show_figures(figures)}{' (best so far)' if better else ''}"
        case Said(text):
            return harmless(text)
        case Updated() | Validated() | Saved():
            return ""


def _rates(event: Logged, unit: str) -> str:
    rate, speed = f"lr {event.learning_rate:.2e}", f"{event.tokens_per_second:,.0f} {unit}/s"
    return f"{rate}  {speed}  {duration(event.seconds_left)} left"
