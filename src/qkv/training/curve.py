"""The loss curve of a run as a picture, redrawn while it is trained."""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, final

from qkv.checkpoint.disk import replace_file, typed
from qkv.errors import OutOfMemoryError, QkvError, brief, harmless
from qkv.pictures import rendered
from qkv.training.events import Event, Logged, Saved, Validated
from qkv.training.journal import NAME as JOURNAL
from qkv.training.journal import read_journal

NAME = "loss.png"
_DRAWS_EVERY = 50.0
"""The least time between two pictures, in multiples of the time that one takes to draw."""
_BLUE, _ORANGE, _GRAY = "#2f6fb0", "#d9772b", "#8a8a8a"


@final
class Curve:
    """Draws `loss.png` from `metrics.jsonl` when there is something new, and when training ends.

    A picture that cannot be drawn is reported, and the training continues.

    Args:
        run: the run folder.
        monitor: name of the figure to draw; the first one by default.
        say: called with a message if a picture cannot be drawn; with the traceback if the reason is a bug.
        seconds: minimum time between two pictures; longer if drawing would take more than a fiftieth of the time.
    """

    def __init__(self, run: Path, monitor: str | None, say: Callable[[str], object], seconds: float = 10.0) -> None:
        """Start."""
        self._run, self._monitor, self._say, self._seconds = run, monitor, say, seconds
        self._drawn, self._due = time.monotonic(), False

    def __call__(self, event: Event) -> None:
        """Draw what is new, if enough time has passed."""
        if isinstance(event, Logged | Validated | Saved):
            self._due = True
            if time.monotonic() - self._drawn >= self._seconds:
                self.close()

    def close(self) -> None:
        """Draw if anything is new."""
        if self._due:
            start = time.monotonic()
            self._drawn = start
            with typed(self._run / NAME, "a picture that can be drawn"):
                picture = self._picture(read_journal(self._run / JOURNAL))
            self._due = picture is None
            if picture is not None:
                replace_file(self._run / NAME, picture)
            self._drawn = time.monotonic()
            self._seconds = max(self._seconds, _DRAWS_EVERY * (self._drawn - start))

    def _picture(self, lines: Sequence[Mapping[str, Any]]) -> bytes | None:
        """Draw, or report why it failed; errors of the disk are raised, because checkpoints would be lost too."""
        try:
            return rendered(lambda: draw(lines, self._monitor))
        except OutOfMemoryError as error:
            self._say(f"{NAME} is not drawn: {error}")
        except (QkvError, OSError):
            raise
        except Exception:
            self._say(f"{NAME} is not drawn, the training goes on; please report this:\n{traceback.format_exc()}")
        return None


def draw(lines: Sequence[Mapping[str, Any]], monitor: str | None = None) -> bytes:
    """Draw training loss and validation figure over the updates.

    Args:
        lines: the lines of `metrics.jsonl`.
        monitor: name of the figure to draw; the first one by default.

    Returns:
        A PNG.

    Example:
        >>> draw([{"step": 1, "kind": "train", "loss": 2.0}])[1:4]
        b'PNG'
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    train = [(line["step"], line["loss"]) for line in lines if line["kind"] == "train" and line.get("loss") is not None]
    name, validation = _validation_points(lines, monitor)
    figure = Figure(figsize=(8, 6.4 if validation else 4), dpi=150)
    FigureCanvasAgg(figure)
    axes = figure.subplots(2 if validation else 1, 1, sharex=True, squeeze=False)[:, 0]
    # Fixed margins and positions of title and labels: measuring every tick takes as long as drawing.
    figure.subplots_adjust(left=0.1, right=0.93, top=0.94, bottom=0.09 if validation else 0.14, hspace=0.1)
    axes[0].set_title("Training", loc="left", fontweight="bold", y=1.0)
    _train_panel(axes[0], train)
    if validation:
        _validation_panel(axes[1], name, validation)
    axes[-1].set_xlabel("update")
    axes[-1].xaxis.set_label_coords(0.515, 0.045 if validation else 0.07, transform=figure.transFigure)
    axes[-1].xaxis.set_major_formatter("{x:,.0f}")
    for panel in axes:
        panel.yaxis.set_label_coords(-0.08, 0.5)
        panel.grid(alpha=0.25, linewidth=0.6)
        # Because the margins are fixed, very small values are written with their power of ten above the axis.
        panel.ticklabel_format(axis="y", scilimits=(-2, 5))
        panel.spines[["top", "right"]].set_visible(False)
    picture = BytesIO()
    # No date and no version in the file: the same run gives the same picture. Higher compression takes twice as long.
    figure.savefig(picture, format="png", metadata={"Software": None}, pil_kwargs={"compress_level": 1})
    return picture.getvalue()


def _validation_points(
    lines: Sequence[Mapping[str, Any]], monitor: str | None
) -> tuple[str, list[tuple[int, float, bool]]]:
    rows = [line for line in lines if line["kind"] == "validation"]
    names = [name for line in rows for name in line if name not in {"step", "kind", "better"}]
    name = monitor if monitor in names else next(iter(names), "")
    values = [(line["step"], line[name], bool(line.get("better"))) for line in rows if line.get(name) is not None]
    return name, values


def _train_panel(panel: Any, points: Sequence[tuple[int, float]]) -> None:
    steps, losses = [step for step, _ in points], [loss for _, loss in points]
    smooth = smoothed(losses)
    panel.plot(steps, losses, color=_BLUE, alpha=0.3, linewidth=1, label="each log line")
    panel.plot(steps, smooth, color=_BLUE, linewidth=2, label="smoothed")
    if smooth:
        panel.annotate(f"{smooth[-1]:.3g}", (steps[-1], smooth[-1]), (4, 0), textcoords="offset points", color=_BLUE)
    panel.set_ylabel("training loss")
    panel.legend(frameon=False)


def _validation_panel(panel: Any, name: str, points: Sequence[tuple[int, float, bool]]) -> None:
    panel.plot(
        [x for x, _, _ in points], [y for _, y, _ in points], color=_ORANGE, linewidth=2, marker="o", markersize=4
    )
    best = [(step, value) for step, value, better in points if better]
    if best:
        step, value = best[-1]
        panel.axvline(step, color=_GRAY, linewidth=0.8, linestyle="--")
        # At the right edge there is only space for a label on the left.
        side, shift = ("right", -4) if 2 * step > points[0][0] + points[-1][0] or len(points) == 1 else ("left", 4)
        panel.annotate(
            f"best {value:.4g}", (step, value), (shift, 6), textcoords="offset points", color=_ORANGE, ha=side
        )
    # The name comes from the journal: it is no formula, and can be any text.
    panel.set_ylabel(f"validation: {harmless(brief(name))}", parse_math=False)


def smoothed(values: Sequence[float], weight: float = 0.7) -> list[float]:
    """Smooth a series by exponential averaging, without bias towards its first value.

    Args:
        values: any length.
        weight: the weight of the past, below 1.

    Returns:
        As many values.

    Example:
        >>> smoothed([2.0, 2.0, 2.0])
        [2.0, 2.0, 2.0]
    """
    result, total, norm = [], 0.0, 0.0
    for value in values:
        total, norm = weight * total + value, weight * norm + 1
        result.append(total / norm)
    return result
