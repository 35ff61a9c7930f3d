import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.view.tokens import label, labels, sentence

ANY = st.text(st.characters(exclude_categories=()))


def does_nothing(text):
    return all(
        unicodedata.category(character) not in {"Cc", "Cs", "Zl", "Zp", "Zs"}
        and unicodedata.bidirectional(character) not in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
        for character in text
    )


@given(ANY)
def test_a_label_can_be_seen_and_does_nothing(token):
    shown = label(token)
    assert shown
    assert does_nothing(shown)
    assert not unicodedata.category(shown[0]).startswith("M")
    shown.encode()


def test_hostile_tokens_have_labels_that_do_nothing(hostile):
    assert all(does_nothing(label(token)) for token in hostile)


@pytest.mark.parametrize(
    "token",
    ["Hund", "weiße", "▁the", "中文", "नमस्ते", "שלום", "👨\u200d👩\u200d👧", "می\u200cخواهم", "❤\ufe0f", "<unk>"],
)
def test_letters_of_every_script_stay(token):
    assert label(token) == token


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("\n", "↵"),
        ("\t", "⇥"),
        (" a", "␣a"),
        ("\u3000", "␣"),
        ("\x1b[0m", "‹U+001B›[0m"),
        ("\x7f", "‹U+007F›"),
        ("\ud800", "‹U+D800›"),
        ("\uffff", "‹U+FFFF›"),
        ("\u200d", "‹U+200D›"),
        ("\u0301", "◌\u0301"),
        ("\u3164", "‹U+3164›"),
        ("a" + "\u0301" * 50, "a" + "\u0301" * 6 + "…"),
    ],
)
def test_what_cannot_be_seen_is_spelled_out(token, shown):
    assert label(token) == shown


@pytest.mark.parametrize(
    ("tokens", "line"),
    [
        (("ein", "Hund"), "ein Hund"),
        (("▁ein", "▁H", "und", "e", "<eos>"), "ein Hunde"),
        (("▁H", "<C3>", "<BC>", "nd"), "Hünd"),
        (("▁", "<C3>"), "\ufffd"),
        ((*tuple("3 May"), "<eos>"), "3 May"),
        (("3", "<unk>", " ", "M"), "3<unk> M"),
        (("a", "b\nc"), "a b↵c"),
        (("<eos>",), "∅"),
        ((), "∅"),
    ],
)
def test_a_sentence_reads_as_it_was_written(tokens, line):
    assert sentence(tokens) == line


@given(st.lists(ANY).map(tuple))
def test_a_sentence_does_nothing_either(tokens):
    assert does_nothing(sentence(tokens).replace(" ", ""))


@pytest.mark.parametrize("mark", ["▁", "Ġ"])
def test_word_starts_are_shown_without_their_mark(mark):
    tokens = (f"{mark}A", f"{mark}mead", "ow", ".", mark, f"{mark}{mark}x", "<eos>", "<unk>", "")
    assert labels(tokens) == ("A", "mead", "·ow", ".", "␣", "␣x", "<eos>", "<unk>", "∅")
    assert labels(tokens, [2]) == ("·ow",)


def test_the_first_word_of_a_text_starts_one_without_a_mark():
    tokens = ("<s>", "a", "Ġdog", "gy")
    assert labels(tokens) == ("<s>", "a", "dog", "·gy")
    assert labels(tokens, [1, 3]) == ("a", "·gy")


def test_without_marks_of_word_starts_tokens_are_as_they_are():
    assert labels(("a", "dog", "m", "▁", " ")) == ("a", "dog", "m", "␣", "␣")
