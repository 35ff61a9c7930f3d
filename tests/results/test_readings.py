"""The table of readings: what the page shows is what was measured, and the default is the best of its rules."""

import json
from random import Random
from statistics import fmean

import pytest
from results.readings import PAGE, RECORD, RULES, draw, reordered, table

from qkv.metrics.alignment import alignment_error_rate
from qkv.tasks.example_run import FOLDER
from qkv.tasks.translate.alignment_reading import AlignmentReading, attention_layers, default_reading
from qkv.tasks.translate.predict import Translator

_RECORD = json.loads(RECORD.read_text(encoding="utf-8"))


def test_the_page_shows_the_measured_table() -> None:
    assert table(_RECORD) in PAGE.read_text(encoding="utf-8")


def test_the_default_is_the_rule_with_the_least_error() -> None:
    errors = {
        rule: fmean(
            row["mean_of_heads"][when][max(layer, -len(row["mean_of_heads"][when]))] for row in _RECORD.values()
        )
        for rule, (layer, when) in RULES.items()
    }
    layer, when = RULES[min(errors, key=errors.__getitem__)]
    model = Translator.load(FOLDER).model
    assert default_reading(model) == AlignmentReading(attention_layers(model)[layer], None, when)
    assert fmean(row["chosen"]["error"] for row in _RECORD.values()) < min(errors.values())


@pytest.mark.parametrize("seed", range(20))
def test_a_sentence_has_each_word_once_in_another_order(seed: int) -> None:
    words, order = reordered(Random(seed))
    assert sorted(order) == list(range(len(words)))


def test_links_of_the_language_are_those_of_equal_words() -> None:
    text = list(draw())[-1]
    for pair, links in zip(text.pairs, text.links, strict=True):
        source, target = pair.source.split(), pair.target.split()
        assert all(source[s].capitalize() == target[t] for s, t in links.sure)
        assert alignment_error_rate([set(links.sure)], [links]).value == 0
