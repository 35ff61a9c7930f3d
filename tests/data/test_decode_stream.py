"""Ids that are decoded one at a time give the text of all of them, whatever bytes they are."""

import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models

from qkv.data.imported_tokenizer import ImportedTokenizer
from qkv.data.segments import byte_alphabet
from qkv.data.tokenizer import Tokenizer
from qkv.data.vocabulary import KINDS

CORPUS = ["Zwei weiße Männer, zwei Hunde: 猫が好き – 😀!", "it's a dog, a big one 😀"] * 4
OURS = {kind: Tokenizer.learn(CORPUS, kind=kind, size=400) for kind in KINDS}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
DECODERS = {
    "byte level": decoders.ByteLevel(),
    "byte level, then stripped": decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]),
    "byte fallback": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "metaspace": decoders.Metaspace(),
    "word pieces": decoders.WordPiece(),
    "word ends": decoders.BPEDecoder("</w>"),
}
LETTERS = {byte: letter for letter, byte in byte_alphabet().items()}
WORDS = ["▁", "▁a", "b", "##c", "Ġd", "ð", "e</w>", "don't", ".", "猫", " f"]


def _imported(name: str) -> Tokenizer:
    library = tokenizers.Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(PIECES)}, "<s>"))
    library.add_special_tokens(["<s>"])
    library.add_tokens([AddedToken("plain")])
    library.decoder = DECODERS[name]
    return Tokenizer.of_imported(ImportedTokenizer(library.to_str()))


PIECES = list(dict.fromkeys(["<s>", *BYTES, *LETTERS.values(), *WORDS]))
NUMBERS = {
    name: {piece: number for number, piece in enumerate(pieces)}
    for name, pieces in (
        *((name, OURS[name].vocabulary.pieces) for name in ("bpe", "unigram")),
        *((name, PIECES) for name in ("byte level", "byte level, then stripped")),
    )
}
ALL = {**OURS, **{name: _imported(name) for name in DECODERS}}


def _streamed(tokenizer: Tokenizer, before: list[int], ids: list[int]) -> list[str]:
    return list(tokenizer.decode_stream(before, ids))


@st.composite
def calls(draw: st.DrawFn) -> tuple[Tokenizer, list[int], list[int]]:
    """Any ids after any text; bytes often, since characters in parts are where streaming goes wrong."""
    name = draw(st.sampled_from(sorted(ALL)))
    tokenizer = ALL[name]
    byte = st.binary(max_size=9).map(lambda body: [_byte(tokenizer, name, value) for value in body])
    character = st.text(max_size=3).map(
        lambda text: [_byte(tokenizer, name, value) for value in text.encode(errors="replace")]
    )
    other = st.lists(st.integers(0, tokenizer.size - 1), max_size=4)
    ids = [number for part in draw(st.lists(byte | character | other, max_size=6)) for number in part]
    before = [tokenizer.size - 1] if tokenizer.imported is not None else tokenizer.encode(draw(st.text(max_size=4)))
    return tokenizer, before, ids


def _byte(tokenizer: Tokenizer, name: str, byte: int) -> int:
    if name == "byte fallback":
        return 1 + byte
    if tokenizer.of_bytes or name.startswith("byte level"):
        return NUMBERS[name][LETTERS[byte]]
    return byte % tokenizer.size


@given(calls())
@settings(max_examples=600, deadline=None)
def test_a_stream_is_the_text_of_all_ids(call: tuple[Tokenizer, list[int], list[int]]) -> None:
    tokenizer, before, ids = call
    expected = tokenizer.decode([*before, *ids])[len(tokenizer.decode(before)) :]
    assert "".join(_streamed(tokenizer, before, ids)) == expected


def test_a_character_after_a_stray_byte() -> None:
    for name in ("bpe", "unigram", "byte level", "byte fallback"):
        ids = [_byte(ALL[name], name, value) for value in b"a\xff\xf0\x9f\x98\x80a"]
        text = "".join(_streamed(ALL[name], [], ids))
        assert text == ALL[name].decode(ids)
        assert name == "byte fallback" or text == "a\ufffd😀a"


def test_text_comes_as_soon_as_it_is_settled() -> None:
    tokenizer = ALL["bpe"]
    ids = [_byte(tokenizer, "bpe", value) for value in "ab€c".encode() + b"\xff" * 50 + b"d"]
    assert _streamed(tokenizer, [], ids) == ["a", "b", "€", "c", *["\ufffd"] * 49, "\ufffdd"]
