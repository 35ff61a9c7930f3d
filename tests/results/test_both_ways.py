"""Models of both directions: candidates of each are scored by both."""

import pytest
import torch
from results.both_ways import log_probabilities, translate, turn, turned

from qkv.data.corpus import Pair
from qkv.data.tokenizer import Tokenizer
from qkv.models.recurrent import RecurrentConfig, RecurrentTranslator
from qkv.tasks.decoding import Decoding
from qkv.tasks.translator import Translator

_LINES = ["a b", "c a b b", "b"]
_BEAM = 3


def _translator(seed: int, models: int = 1) -> Translator:
    tokenizer = Tokenizer.learn(["a b c"], kind="word")
    torch.manual_seed(seed)
    config = RecurrentConfig(tokenizer.size, embedding=8, hidden=8, attention=8)
    first, *others = (RecurrentTranslator(config) for _ in range(models))
    return Translator(first, tokenizer, others=others)


def test_targets_are_turned_and_their_sources_are_not() -> None:
    assert turned([Pair("c d", "a bː c", 7)]) == [Pair("c d", "c bː a", 7)]


def test_a_given_text_is_as_likely_as_where_the_model_writes_it() -> None:
    translator = _translator(0)
    found = [each for each in translator.translate_fully(_LINES, Decoding(max_tokens=9)) if each.finished]
    assert found
    scores = log_probabilities(translator, [each.source for each in found], [each.text for each in found])
    assert scores == pytest.approx([each.score for each in found], abs=1e-5)


def test_several_models_are_joined_by_the_mean_of_their_log_probabilities_up_to_what_sums_to_one() -> None:
    both, one = _translator(1, models=2), ["a b"]
    alone = [Translator(model, both.tokenizer) for model in both.models]
    mean = sum(log_probabilities(each, _LINES[:1], one)[0] for each in alone) / 2
    # A geometric mean of distributions sums to less than one and must be renormalized.
    assert log_probabilities(both, _LINES[:1], one)[0] >= mean


def test_the_proposal_with_the_largest_sum_of_both_sides_wins() -> None:
    ahead, back = _translator(2), _translator(3)
    how = Decoding(_BEAM, length_penalty=0.0, n_best=_BEAM, mean="log_probability")
    wanted = []
    for line in _LINES:
        ours = [each.text for each in ahead.translate_best([line], how)[0]]
        theirs = [turn(each.text) for each in back.translate_best([line], how)[0]]
        totals = {
            text: log_probabilities(ahead, [line], [text])[0] + log_probabilities(back, [line], [turn(text)])[0]
            for text in (*ours, *theirs)
        }
        wanted.append(max(totals, key=totals.__getitem__))
    found = translate(ahead, back, _LINES, _BEAM)
    assert [each.text for each in found] == wanted
    assert [each.source for each in found] == _LINES
