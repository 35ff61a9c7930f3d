"""The tokenizer.json of an export gives the tokens that the run's own tokenizer gives, in the library that reads it."""

from itertools import product
from random import Random
from typing import get_args
from unicodedata import normalize

import pytest
import tokenizers

from qkv.data.choices import Form
from qkv.data.imported_tokenizer import ImportedTokenizer
from qkv.data.tokenizer import Tokenizer
from qkv.errors import UnsupportedError
from qkv.hub.families.save import tokenizer_files

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
KINDS = ("bpe", "unigram", "char", "none")


def _probes() -> list[str]:
    random, words = Random(0), [word for text in SCRIPTS.values() for word in text.split(" ")]
    whole = [normalize(form, text) for text in SCRIPTS.values() for form in ("NFC", "NFD")]
    mixed = ["".join(random.choice(words) + random.choice([" ", "", "  ", "-"]) for _ in range(4)) for _ in range(180)]
    return ["", " ", *whole, *(text if random.random() < 0.5 else normalize("NFD", text) for text in mixed)]


PROBES = _probes()
assert len(PROBES) >= 200


@pytest.mark.parametrize(("kind", "form", "lowercase"), list(product(KINDS, get_args(Form), (False, True))))
def test_the_library_finds_our_tokens(kind: str, form: str, lowercase: bool) -> None:
    learned = [*LEARNED, *SCRIPTS.values()] if kind in ("char", "none") else LEARNED
    ours = Tokenizer.learn(learned, kind=kind, size=400, lowercase=lowercase, unicode=form)
    text = tokenizer_files(ours)["tokenizer.json"].decode()
    library, again = tokenizers.Tokenizer.from_str(text), Tokenizer.of_imported(ImportedTokenizer(text))
    for probe in PROBES:
        ids = ours.encode(probe)
        assert library.encode(probe).ids == ids, ascii(probe)
        assert again.encode(probe) == ids, ascii(probe)
        if ours.of_bytes:
            assert library.decode(ids) == ours.decode(ids), ascii(probe)


def test_two_vocabularies_are_refused_by_name() -> None:
    sources, targets = (Tokenizer.learn([text], kind="char").vocabulary for text in ("ab", "cd"))
    with pytest.raises(UnsupportedError, match="tokenizer: expected one vocabulary; got one of sources and one of"):
        tokenizer_files(Tokenizer(targets, sources))
