"""The tokenizer.json of an export gives the tokens that the run's own tokenizer gives, in the library that reads it."""

from itertools import product
from random import Random
from typing import get_args
from unicodedata import normalize

import pytest
import tokenizers

from qkv.data.choices import Form, TokenizerKind
from qkv.data.imported_tokenizer import ImportedTokenizer
from qkv.data.tokenizer import Tokenizer
from qkv.errors import UnsupportedError
from qkv.hub.families.library_tokenizer import plain_files, tokenizer_files

SCRIPTS = {
    "Latin": "Straße ﬁnden İstanbul Œuvre ſtill ñandú ŒUVRE Ǆ Ⅷ ２０ ½",
    "Greek": "ΟΔΥΣΣΕΥΣ Σίσυφος ΑΣ. Σ ΣΑΣ'Σ ὈΔΥΣΣΕΎΣ ΐ ᾼ",
    "Cyrillic": "Ёлка й ИЙ Привет Ѷ їжак",
    "Arabic": "السلام عليكم ﷺ لا ﻻ ٱ ۷",
    "Hebrew": "שָׁלוֹם עולם שּׁ ׳",
    "Devanagari": "क़ हिन्दी नमस्ते ड़ ज़",
    "Thai": "สวัสดี น้ำ กำ",
    "Hangul": "한국어 가각 ᄒᆞᆫ ㈀ ﾡ",
    "Kana": "ガイド ｶﾞｲﾄﾞ ㌔ プ ヷ ゟ",
    "Han": "漢字 豈 ㊗ 神 丽",
    "marks": "it's—(a) t-shirt… 50% 😀👩‍🚀 \u00a0x\u3000y\x1cz\x85w\t\n q̣̇ q̣̇",
}
LEARNED = ["Straße finden, straße 한국어", "οδυσσευς σίσυφος ας. σ", "ガイド ﷺ いえ", "it's (a) t-shirt 50%"] * 3
KINDS = get_args(TokenizerKind)
SPELLED = ["<eos>", "a <pad> b", "<unk><bos>", "￭<eos> ￭￭<pad> ■", " ￭ x￭y (￭", "<pad>\u00a0<pad>"]
"""Texts that spell special tokens, and what marks them."""
MARKS = '((a) -- b-c- d\'s.) -x- … !? "q", 50%/1.5'


def _probes() -> list[str]:
    random, words = Random(0), [word for text in SCRIPTS.values() for word in text.split(" ")]
    whole = [normalize(form, text) for text in SCRIPTS.values() for form in ("NFC", "NFD")]
    mixed = ["".join(random.choice(words) + random.choice([" ", "", "  ", "-"]) for _ in range(4)) for _ in range(180)]
    return ["", " ", *whole, *(text if random.random() < 0.5 else normalize("NFD", text) for text in mixed)]


PROBES = _probes()
assert len(PROBES) >= 200


@pytest.mark.parametrize(("kind", "form", "lowercase"), list(product(KINDS, get_args(Form), (False, True))))
def test_the_library_finds_our_tokens(kind: str, form: str, lowercase: bool) -> None:
    learned = LEARNED if kind in ("bpe", "unigram") else [*LEARNED, *SCRIPTS.values(), MARKS]
    ours = Tokenizer.learn(learned, kind=kind, size=400, lowercase=lowercase, unicode=form)
    saved = tokenizer_files(ours)["tokenizer.json"].decode()
    again = Tokenizer.of_imported(ImportedTokenizer(saved))
    plain = tokenizers.Tokenizer.from_str(plain_files(ours)["tokenizer.json"].decode())
    for probe in [*PROBES, *_marked(), *SPELLED]:
        ids = ours.encode(probe)
        assert plain.encode(probe).ids == ids, ascii(probe)
        assert plain.decode(ids, skip_special_tokens=False) == ours.decode(ids), ascii(probe)
        if probe not in SPELLED:
            assert again.encode(probe) == ids, ascii(probe)


def _marked() -> list[str]:
    """Return texts in which marks touch words, each other, and nothing, as in no text that was learned from."""
    random = Random(1)
    return ["".join(random.choice("ab1 .-(\"') \t￭■漢…") for _ in range(random.randrange(12))) for _ in range(200)]


def test_sources_and_targets_have_a_file_each() -> None:
    sources, targets = (Tokenizer.learn([text], kind="char").vocabulary for text in ("ab", "cd"))
    files = plain_files(Tokenizer(targets, sources))
    found = {name: tokenizers.Tokenizer.from_str(text.decode()).encode("ad").ids for name, text in files.items()}
    assert found == {"source_tokenizer.json": [4, 3], "tokenizer.json": [3, 5]}


def test_two_vocabularies_are_refused_by_name() -> None:
    sources, targets = (Tokenizer.learn([text], kind="char").vocabulary for text in ("ab", "cd"))
    with pytest.raises(UnsupportedError, match="tokenizer: expected one vocabulary; got one of sources and one of"):
        tokenizer_files(Tokenizer(targets, sources))
