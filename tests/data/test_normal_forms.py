"""Normal forms are those of Python's library, which meets no long run of marks that it would have to order."""

import sys
import unicodedata
from random import Random
from typing import get_args

import pytest
from tests.pairs import in_turn

from qkv.data import normal_forms
from qkv.data.normal_forms import NormalForm, normalize

FORMS = get_args(NormalForm)
LETTERS = "aeAE\u00e9\u00c7q\uac00\uac01\u304b\uff9ef\ufb01i\u0313\u1fb3 \u0f40"
ODD = "\u0f73\u0f75\u0f81\uff9e\uff9f"
"""Of class 0 themselves, decomposed to marks."""
MARKS = [*ODD, *(character for character in map(chr, range(sys.maxunicode + 1)) if unicodedata.combining(character))]
PAIRS = ("\u0300\u0327", "\u0345\u0334", "\u0f71\u0334", "\u0f73\u0334", "\U0001d165\u0334")


def moves(form: NormalForm, text: str) -> int:
    """Count how often the canonical ordering of a text moves a mark past another."""
    count, run = 0, list[int]()
    full = "NFKD" if "K" in form else "NFD"
    for character in "".join(unicodedata.normalize(full, character) for character in text):
        rank = unicodedata.combining(character)
        count += sum(other > rank for other in run) if rank else 0
        run = [*run, rank] if rank else []
    return count


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(8))
def test_every_text_has_the_library_s_form(form: NormalForm, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr(normal_forms, "_SHORT", 0)
    marks = MARKS if seed % 2 else MARKS[:40]
    for _ in range(100):
        runs = [random.choices(marks, k=random.choice((0, 1, 30, 31, 32, 90))) for _ in range(random.randint(1, 4))]
        text = "".join(random.choice(LETTERS) + "".join(run) for run in runs)
        assert normalize(form, text) == unicodedata.normalize(form, text)


@pytest.mark.parametrize(("form", "pair"), in_turn(FORMS, PAIRS))
def test_the_library_never_orders_a_long_run(form: NormalForm, pair: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def watched(form: NormalForm, text: str) -> str:
        seen.append(text)
        return real(form, text)

    real = unicodedata.normalize
    monkeypatch.setattr(unicodedata, "normalize", watched)
    text = "e" + pair * 600
    normalize(form, text)
    monkeypatch.undo()
    assert moves(form, text) > 170_000
    assert max(moves(form, each) for each in seen) < 50 * len(text)
