import re
from io import StringIO
from pathlib import Path

import pytest

from qkv.metrics.figure import Figure
from qkv.train.events import Logged, Said, Saved, Updated, Validated
from qkv.train.screen import Bar, Lines, duration, screen

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
        "step 1,200/5,000  loss 2.3104  lr 7.07e-04  12,346 tokens/s  3 min 20 s left\n"
        "step 1,500: bleu 31.24, loss 1.9 (best so far)\n"
        "step 2,000: bleu 30\n"
        "Something [bold]odd[/bold].\n"
    )


def test_on_a_terminal_there_is_a_bar_with_lines_above_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    colored = show(Terminal())
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", colored)
    assert text != colored
    assert "step 1,500: bleu 31.24, loss 1.9 (best so far)\n" in text
    assert "Something [bold]odd[/bold].\n" in text
    assert "1200/5000 loss 2.3104  lr 7.07e-04  12,346 tokens/s  3 min 20 s left" in text


def test_the_stream_decides():
    for stream, kind in ((StringIO(), Lines), (Terminal(), Bar)):
        listener = screen(stream, 10)
        listener.close()
        assert isinstance(listener, kind)


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
