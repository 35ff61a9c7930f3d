"""The grammar: repeatable, without repetitions, and right in gender and case."""

import pytest

from qkv.data.phrases import generate
from qkv.errors import ConfigError


def test_the_seed_decides_and_no_sentence_repeats() -> None:
    pairs = generate(2000, seed=3)
    assert pairs == generate(2000, seed=3)
    assert pairs != generate(2000, seed=4)
    assert len({pair.source for pair in pairs}) == 2000


def test_there_are_some_500_words() -> None:
    pairs = generate(20_000, seed=0)
    words = {word for pair in pairs for text in (pair.source, pair.target) for word in text.split()}
    assert 400 < len(words) < 600
    assert max(len(pair.source.split()) for pair in pairs) <= 20


def test_articles_agree_with_their_nouns() -> None:
    texts = [pair.source.lower() for pair in generate(20_000, seed=1)]
    for wrong in ("der frau", "die mann", "das hund", "den katze", "eine mann", "einen kind", "ein frau", "zwei hund "):
        # "der frau" would be a dative, which only places have.
        assert not any(f" {wrong} " in f" {text} " for text in texts), wrong
    assert any("den hund" in text for text in texts)
    assert any("einen alten mann" in text for text in texts)


def test_verbs_stand_at_the_end_of_subordinate_clauses() -> None:
    clauses = [pair.source for pair in generate(5000, seed=2) if ", dass" in pair.source]
    assert len(clauses) > 200
    assert all(text.split()[-2].islower() for text in clauses)


def test_too_many_are_refused() -> None:
    with pytest.raises(ConfigError, match="1,000,000"):
        generate(10**6 + 1, seed=0)
