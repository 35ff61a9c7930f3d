import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from qkv.view.alignment import Alignment
from qkv.view.colors import color
from qkv.view.console import terminal


def printed(alignment, *, width=80, colors=False, **options):
    kind = {"force_terminal": True, "color_system": "truecolor"} if colors else {"color_system": None}
    out = io.StringIO()
    terminal(alignment, Console(file=out, width=width, **{**kind, **options}))
    return out.getvalue()


def uniform(source, target):
    return Alignment(tuple(source), tuple(target), torch.full((len(target), len(source)), 1.0))


def test_a_date_fits_80_columns_in_one_panel(date):
    lines = printed(date).splitlines()
    assert len(lines) == 12
    assert max(map(cell_len, lines)) <= 80


def test_each_cell_has_the_color_of_its_weight(words):
    out = printed(words, colors=True)
    for fraction in words.fractions().flatten().tolist():
        assert "48;2;{};{};{}m".format(*color(round(255 * fraction) / 255)) in out


def test_each_cell_shows_its_percentage():
    out = printed(Alignment(("ein", "Hund"), ("dog",), torch.tensor([[0.07, 0.93]])), colors=True)
    assert " 7 " in out
    assert "93" in out


def test_weights_that_are_no_shares_show_no_percentage():
    out = printed(Alignment(("ein", "Hund"), ("dog",), torch.tensor([[-0.5, 2.0]])), colors=True)
    plain = Text.from_ansi(out).plain
    assert "%" not in plain
    assert "200" not in plain


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"no_color": True, "force_terminal": True, "color_system": "truecolor"},
        {"color_system": "standard", "force_terminal": True},
    ],
)
def test_without_enough_colors_shades_stand_for_weights(options):
    out = printed(Alignment(("a", "b"), ("c",), torch.tensor([[0.0, 1.0]])), **options)
    assert "48;" not in out
    assert out.splitlines()[1].endswith("   ██") or "   ██" in out.splitlines()[1]


def test_no_color_in_the_environment_is_obeyed(words, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = printed(words, colors=True)
    assert "48;" not in out
    assert "█" in out


def test_output_that_is_no_terminal_gets_no_escapes(words):
    assert "\x1b" not in printed(words, color_system="truecolor", force_terminal=False)


def test_hostile_tokens_send_nothing_to_the_terminal(hostile):
    out = printed(uniform(hostile, hostile[:5]))
    assert not {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))} - {"\n"} & set(out)


def test_brackets_are_text_not_markup():
    assert "[bold]" in printed(uniform(["[bold]"], ["x"]))


def test_long_sentences_continue_in_panels_that_show_every_token():
    source = [f"word{place}" for place in range(40)]
    lines = printed(uniform(source, ["x", "y"])).splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert sum("source " in line for line in lines) > 1
    shown = " ".join(lines).split()
    assert all(word in shown for word in source)


def test_a_long_token_folds_before_it_is_cut():
    token = "Geschwindigkeitsbegrenzung"
    folded = printed(uniform([token] * 12, ["x"]))
    assert "…" not in folded
    endless = printed(uniform([token * 9] * 12, ["x"]))
    assert "…" in endless
    assert max(map(cell_len, endless.splitlines())) <= 80


def test_columns_stand_under_their_labels_whatever_the_width_of_letters():
    source = ["我", "机器翻译", "e\u0301te\u0301", "👨\u200d👩\u200d👧", "שלום", "x"]
    weights = torch.eye(6)
    header, *rows = printed(Alignment(tuple(source), tuple("abcdef"), weights)).splitlines()[:7]
    for place, row in enumerate(rows):
        before = header[: header.index(source[place])]
        assert cell_len(row[: row.index("█")]) == cell_len(before)


def test_right_to_left_labels_cannot_swap_places():
    header = printed(uniform(["שלום", "עולם"], ["x"])).splitlines()[0]
    assert header.count("\u200e") == 2


def test_an_old_encoding_gets_escapes_instead_of_an_error():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    terminal(uniform(["weiße", "中"], ["שלום"]), Console(file=file, width=80, color_system=None))
    file.flush()
    assert b"wei\\xdfe" in raw.getvalue()


@pytest.mark.parametrize("width", [1, 2, 5, 10])
def test_a_terminal_too_narrow_for_any_map_still_gets_all_rows(width):
    out = printed(uniform(["Hund", "Haus"], ["dog", "house"]), width=width)
    assert out.count("dog") == 2


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (0, 0)])
def test_an_empty_side_is_said(sizes):
    assert "nothing to attend to" in printed(uniform("s" * sizes[0], "t" * sizes[1]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(max_size=30), min_size=1, max_size=30),
    st.lists(st.text(max_size=30), min_size=1, max_size=4),
    st.integers(24, 120),
    st.booleans(),
)
def test_no_line_is_ever_wider_than_the_terminal(source, target, width, colors):
    out = printed(uniform(source, target), width=width, colors=colors)
    lines = [Text.from_ansi(line).plain for line in out.split("\n")]
    assert max(map(cell_len, lines)) <= width
