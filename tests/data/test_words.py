"""One rule for what separates words: tokenizers, elements, aligned words and error rates count the same ones."""

from hypothesis import given
from hypothesis import strategies as st

from qkv.data.pointing import read_elements
from qkv.data.tokenizer import Tokenizer
from qkv.data.words import NO_BREAK, SEPARATORS, split_words
from qkv.metrics.edits import word_error_rate

ZERO_WIDTH = "\u200b\u2060\ufeff"
ALPHABET = f"ab1{NO_BREAK}{SEPARATORS}{ZERO_WIDTH}"
HIDDEN = {ord(space): chr(0xE000 + index) for index, space in enumerate(NO_BREAK)}
SHOWN = {ord(hidden): chr(space) for space, hidden in HIDDEN.items()}


def test_white_space_is_that_of_unicode() -> None:
    assert set(NO_BREAK + SEPARATORS) == {chr(n) for n in range(0x110000) if chr(n).isspace()}


@given(st.text(ALPHABET, min_size=1, max_size=16))
def test_words_are_the_same_everywhere(text: str) -> None:
    words = [word.translate(SHOWN) for word in text.translate(HIDDEN).split()]
    assert split_words(text) == words
    none, word = (Tokenizer.learn([text], kind=kind) for kind in ("none", "word"))
    assert len(none.encode(text)) == len(words)
    assert split_words(none.decode(none.encode(text))) == words
    assert split_words(word.decode(word.encode(text))) == words
    if words:
        assert read_elements(text, "words", "f:1") == tuple(words)
        assert word_error_rate([text], [" ".join(words)]).value == 0
        assert word_error_rate([" ".join((*words, "c"))], [text]).value == 100 / len(words)
