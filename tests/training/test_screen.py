import re
import threading
from io import StringIO
from pathlib import Path

import pytest

from qkv.metrics.figure import Figure
from qkv.training.events import Logged, Said, Saved, Updated, Validated, Validating
from qkv.training.screen import Bar, ProgressLines, duration, screen

LOGGED = Logged(1200, 3, 2.31044, 7.07e-4, 1.5, 12345.6, 60.0, 200.0)
EVENTS = [
    Updated(1199, 2.5),
    LOGGED,
    Validated(1500, [Figure("bleu", 31.239, ""), Figure("loss", 1.9, "")], True),
    Validated(2000, [Figure("bleu", 30.0, "")], False),
    Validated(2500, [], True),
    Saved(2500, Path("x")),
    Said("Something [bold]odd[/bold]."),
]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def show(stream: StringIO) -> str:
    listener = screen(stream, 5000)
    for event in EVENTS:
        listener(event)
    listener.close()
    return stream.getvalue()


def test_where_nobody_watches_there_are_plain_lines():
    assert show(StringIO()) == (
        "step 1,200/5,000  loss 2.3104  lr 7.07e-04  12,346 tokens/s  3 min 20 s left  1 min 0 s passed\n"
        "step 1,500: bleu 31.24, loss 1.9 nats (best so far)\n"
        "step 2,000: bleu 30\n"
        "Something [bold]odd[/bold].\n"
    )


def test_on_a_terminal_there_is_a_bar_with_lines_above_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    colored = show(Terminal())
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", colored)
    assert text != colored
    assert "step 1,500: bleu 31.24, loss 1.9 nats (best so far)\n" in text
    assert "Something [bold]odd[/bold].\n" in text
    assert "1200/5000 loss 2.3104  lr 7.07e-04  12,346 tokens/s  3 min 20 s left" in text


@pytest.mark.parametrize(
    ("columns", "rest"),
    [
        (100, "  lr 7.07e-04  12,346 tokens/s  3 min 20 s left"),
        (80, "  12,346 tokens/s  3 min 20 s left"),
        (60, "  3 min 20 s left"),
        (40, ""),
    ],
)
def test_a_narrow_terminal_shows_fewer_figures_and_cuts_none(monkeypatch, columns, rest):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", show(Terminal()))
    bars = [line for line in re.split(r"[\r\n]+", text) if "/5000" in line]
    assert not any("…" in line for line in bars)
    assert all(line.startswith("train ") for line in bars)
    assert any(line.rstrip().endswith(f"1200/5000 loss 2.3104{rest}") for line in bars), bars
    assert max(map(len, bars)) <= columns


def test_a_bar_that_has_validated_shows_its_loss_again_and_lines_break_between_words(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    bar = Bar(stream, 10)
    figures = [Figure(name, 0.5, "") for name in ("accuracy", "macro_f1", "precision")]
    for event in (LOGGED, Updated(10, 0.25), Validating(10), Validated(10, figures, True)):
        bar(event)
    bar.close()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert text.rstrip().endswith("10/10 loss 2.3104")  # the mean of the log, never that of one batch
    assert "step 10: accuracy 0.5 %, macro_f1 0.5 %,\nprecision 0.5 (best so far)\n" in text


def test_the_stream_decides():
    for stream, kind in ((StringIO(), ProgressLines), (Terminal(), Bar)):
        listener = screen(stream, 10)
        listener.close()
        assert isinstance(listener, kind)


def test_lines_are_written_at_least_every_so_many_seconds():
    """However long an update or a validation takes, what is being done is said."""
    written = Waiting()
    lines = ProgressLines(written, 5000, seconds=0.01)
    try:
        assert "starting" in written.next()
        lines(Updated(7, 2.5))
        assert written.next("step 7") == "step 7/5,000  (the last update 0 s ago)\n"
        lines(Validating(7))
        assert written.next("validating") == "step 7: validating  (0 s)\n"
    finally:
        lines.close()
    count = len(written.lines)
    lines.close()
    assert len(written.lines) == count


class Waiting(StringIO):
    """A stream whose lines can be waited for."""

    def __init__(self):
        super().__init__()
        self.lines, self.arrived = [], threading.Condition()

    def write(self, text):
        with self.arrived:
            self.lines.append(text)
            self.arrived.notify_all()

    def next(self, part=""):
        with self.arrived:
            assert self.arrived.wait_for(lambda: any(part in line for line in self.lines), timeout=60)
            return next(line for line in self.lines if part in line)


def test_each_update_has_a_line_if_asked_for():
    stream = StringIO()
    listener = screen(stream, 10, every=True)
    for step in (1, 2):
        listener(Updated(step, 0.5))
    listener.close()
    assert stream.getvalue() == "step 1/10  loss of this batch 0.5000\nstep 2/10  loss of this batch 0.5000\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.6, "1 min 0 s"), (3599.6, "1 h 0 min"), (86400, "1 d 0 h")]
)
def test_durations_carry_over(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize("kind", [StringIO, Terminal])
def test_a_terminal_that_has_gone_ends_nothing(kind):
    class Gone(kind):
        gone = False

        def write(self, text):
            if self.gone:
                raise OSError(5, "Input/output error")
            return super().write(text)

    stream = Gone()
    listener = screen(stream, 5000)
    listener(EVENTS[0])
    stream.gone = True
    for event in EVENTS:
        listener(event)
    listener.close()
