"""Progress on standard error: a bar on a terminal and in a notebook, plain lines elsewhere."""

import time
from collections.abc import Sequence
from html import escape
from typing import TextIO, cast, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from qkv.errors import harmless
from qkv.heartbeat import Heartbeat
from qkv.metrics.figure import Figure
from qkv.notebooks import in_notebook
from qkv.system import TolerantStream, standard_error
from qkv.training.events import Event, Listener, Logged, Said, Saved, Saving, Updated, Validated, Validating

_SHORTEST = 8
"""Characters of the shortest bar."""


def screen(stream: TextIO | None, steps: int, unit: str = "tokens", *, every: bool = False) -> Listener:
    """Choose how progress is shown.

    Args:
        stream: output; None for standard error.
        steps: total number of updates.
        unit: unit of the speed.
        every: whether each update has a line.

    Returns:
        A bar if the stream is a terminal, or standard error of a notebook, else lines; nothing once the stream is
        closed.
    """
    if stream is None and not every and in_notebook():
        return NotebookBar(steps, unit)
    lasting = standard_error() if stream is None else cast(TextIO, TolerantStream(stream))
    if lasting.isatty() and not every:
        return Bar(lasting, steps, unit)
    return ProgressLines(lasting, steps, unit, every=every)


@final
class ProgressLines:
    """Plain lines, at least one every ten seconds.

    Args:
        stream: the output.
        steps: total number of updates.
        unit: unit of the speed.
        seconds: the longest silence.
        every: whether each update has a line.
    """

    def __init__(
        self, stream: TextIO, steps: int, unit: str = "tokens", *, seconds: float = 10.0, every: bool = False
    ) -> None:
        """Start."""
        self._stream, self._steps, self._unit, self._every = stream, steps, unit, every
        self._phase, self._since, self._began = "starting", "{}", time.monotonic()
        self._heartbeat = Heartbeat(self._repeat, seconds)

    def __call__(self, event: Event) -> None:
        """Write a line for events that have one."""
        match event:
            case Updated(step, loss, left):
                self._begin(f"step {step:,}/{self._steps:,}{_left(left)}", "the last update {} ago")
                if self._every:
                    self._write(f"{self._phase}  loss of this batch {loss:.4f}")
            case Validating(step):
                self._begin(f"step {step:,}: validating")
            case Validated(step):
                self._begin(f"step {step:,}: saving")
        text = _line(event, self._steps, self._unit)
        if text:
            self._write(text)

    def close(self) -> None:
        """End the thread, but leave the stream open: the caller owns it."""
        self._heartbeat.close()

    def _begin(self, what: str, since: str = "{}") -> None:
        """Set the text of the line that is repeated during silence: a phase, or the last event."""
        self._phase, self._since, self._began = what, since, time.monotonic()

    def _repeat(self) -> None:
        self._write(f"{self._phase}  ({self._since.format(duration(time.monotonic() - self._began))})")

    def _write(self, text: str) -> None:
        self._heartbeat.restart()
        self._stream.write(text + "\n")
        self._stream.flush()


@final
class Bar:
    """A bar with loss, and as much of learning rate, speed and time left as the terminal is wide enough for.

    Validations are lines above it.

    Args:
        stream: a terminal.
        steps: total number of updates.
        unit: unit of the speed.
    """

    def __init__(self, stream: TextIO, steps: int, unit: str = "tokens") -> None:
        """Show the bar."""
        self._steps, self._unit = steps, unit
        columns = (TextColumn("train"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
        self._progress = Progress(*columns, console=Console(file=stream, highlight=False))
        self._task = self._progress.add_task("train", total=steps, text="")
        self._loss = self._rest = ""
        self._progress.start()

    def __call__(self, event: Event) -> None:
        """Advance the bar, or write a line above it."""
        match event:
            case Updated(step, _, left):
                text = self._loss + self._rest or _left(left).strip()
                self._progress.update(self._task, completed=step, text=text)
            case Logged(step):
                self._loss, self._rest = f"loss {event.loss:.4f}", self._rest_that_fits(event)
                self._progress.update(self._task, completed=step, text=self._loss + self._rest)
            case Validating():
                self._progress.update(self._task, text="validating")
            case _:
                if isinstance(event, Validated):
                    self._progress.update(self._task, text=self._loss + self._rest)
                text = _line(event, self._steps, self._unit)
                if text:  # the terminal wraps the lines of a message, which may hold a path or a command to copy
                    self._progress.console.print(text, markup=False, soft_wrap=isinstance(event, Said))

    def _rest_that_fits(self, event: Logged) -> str:
        width = self._progress.console.width - len(f"train {'━' * _SHORTEST} {self._steps}/{self._steps} loss 0.0000 ")
        rate, speed, remaining = _rates(event, self._unit)
        texts = (
            "".join(f"  {part}" for part in parts)
            for parts in ((rate, speed, remaining), (speed, remaining), (remaining,))
        )
        return next((text for text in texts if len(text) <= width), "")

    def close(self) -> None:
        """Leave the bar in its last state."""
        self._progress.stop()


@final
class NotebookBar:
    """A bar in the output of a notebook's cell, with the last validation below it.

    Args:
        steps: total number of updates.
        unit: unit of the speed.
    """

    def __init__(self, steps: int, unit: str = "tokens") -> None:
        """Show the bar."""
        from IPython.display import display

        self._steps, self._unit = steps, unit
        self._step, self._text, self._last, self._last_shown_at = 0, "", "", 0.0
        self._handle = display(self._content(), raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def __call__(self, event: Event) -> None:
        """Advance the bar, at most four times a second between lines of the log."""
        match event:
            case Updated(step, _, left):
                self._step, self._text = step, self._text or _left(left).strip()
                if time.monotonic() - self._last_shown_at < 0.25:
                    return
            case Logged(step):
                self._step = step
                self._text = "  ".join((f"loss {event.loss:.4f}", *_rates(event, self._unit)[1:]))
            case Validating():
                self._text = "validating"
            case _ if text := _line(event, self._steps, self._unit):
                self._last = text
        self._show()

    def close(self) -> None:
        """Leave the bar in its last state."""
        self._show()

    def _show(self) -> None:
        self._last_shown_at = time.monotonic()
        self._handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        count = f"{self._step:,}/{self._steps:,}"
        bar = f'<progress value="{self._step}" max="{self._steps}" aria-label="training"></progress>'
        lines = [f"{bar} {count}  {escape(self._text)}", *([escape(self._last)] if self._last else [])]
        plain = f"{count}  {self._text}" + (f"\n{self._last}" if self._last else "")
        return {"text/html": f"<div>{'<br>'.join(lines)}</div>", "text/plain": plain}


def show_figures(figures: Sequence[Figure]) -> str:
    """Format figures on one line.

    Args:
        figures: the figures.

    Returns:
        Names, values and units.

    Example:
        >>> from qkv.metrics.figure import Figure
        >>> show_figures([Figure("bleu", 31.239, ""), Figure("accuracy", 75.0, ""), Figure("loss", 1.5, "")])
        'bleu 31.24, accuracy 75 %, loss 1.5 nats'
    """
    return ", ".join(f"{figure.name} {figure.value:.4g} {figure.unit}".rstrip() for figure in figures)


def duration(seconds: float) -> str:
    """Format a duration in at most two units.

    Args:
        seconds: at least 0.

    Returns:
        The text.

    Example:
        >>> [duration(seconds) for seconds in (7.4, 200, 9000, 200_000)]
        ['7 s', '3 min 20 s', '2 h 30 min', '2 d 7 h']
    """
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    if total < 86400:
        return f"{total // 3600} h {total % 3600 // 60} min"
    return f"{total // 86400} d {total % 86400 // 3600} h"


def _line(event: Event, steps: int, unit: str) -> str:
    """Return the line about an event, or an empty one; messages may contain paths, and figures any name."""
    match event:
        case Logged():
            passed = f"{duration(event.seconds)} passed"
            return "  ".join((f"step {event.step:,}/{steps:,}", f"loss {event.loss:.4f}", *_rates(event, unit), passed))
        case Validated(step, figures, better) if figures:
            return harmless(f"step {step:,}: {show_figures(figures)}{' (best so far)' if better else ''}")
        case Said(text):
            return harmless(text)
        case Updated() | Validating() | Validated() | Saving() | Saved():
            return ""


def _rates(event: Logged, unit: str) -> tuple[str, str, str]:
    """Return learning rate, speed and time left."""
    speed = f"{event.tokens_per_second:,.0f} {unit}/s"
    return f"lr {event.learning_rate:.2e}", speed, _left(event.seconds_left).strip()


def _left(seconds: float | None) -> str:
    """Return how long a training will take, behind two spaces; nothing if that is not known."""
    return "" if seconds is None else f"  {duration(seconds)} left"
