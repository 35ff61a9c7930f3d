"""Models of both directions: candidates of each are scored by both."""

import torch
from results.both_ways import translate, turn, turned

from qkv.data.batches import collate_sources
from qkv.data.corpus import Pair
from qkv.data.tokenizer import Tokenizer
from qkv.decode.forced import forced
from qkv.models.recurrent import RecurrentConfig, RecurrentTranslator
from qkv.tasks.decoding import Decoding
from qkv.tasks.translator import Translator

_LINES = ["a b", "c a b b", "b"]
_BEAM = 3


def _translator(seed: int) -> Translator:
    tokenizer = Tokenizer.learn(["a b c"], kind="word")
    torch.manual_seed(seed)
    return Translator(
        RecurrentTranslator(RecurrentConfig(tokenizer.size, embedding=8, hidden=8, attention=8)), tokenizer
    )


def _log_probability(translator: Translator, line: str, text: str) -> float:
    marks = translator.tokenizer
    source, lengths = collate_sources([marks.encode(line)], marks.pad)
    wanted = [[*marks.encode(text), marks.eos]]
    return forced(translator.models[0], source, lengths, wanted, bos=marks.bos, eos=marks.eos)[0].score


def test_targets_are_turned_and_their_sources_are_not() -> None:
    assert turned([Pair("c d", "a bː c", 7)]) == [Pair("c d", "c bː a", 7)]


def test_the_proposal_with_the_largest_sum_of_both_sides_wins() -> None:
    ahead, back = _translator(2), _translator(3)
    how = Decoding(_BEAM, length_penalty=0.0, n_best=_BEAM, mean="log_probability")
    wanted = []
    for line in _LINES:
        ours = [each.text for each in ahead.translate_best([line], how)[0]]
        theirs = [turn(each.text) for each in back.translate_best([line], how)[0]]
        totals = {
            text: _log_probability(ahead, line, text) + _log_probability(back, line, turn(text))
            for text in (*ours, *theirs)
        }
        wanted.append(max(totals, key=totals.__getitem__))
    found = translate(ahead, back, _LINES, _BEAM)
    assert [each.text for each in found] == wanted
    assert [each.source for each in found] == _LINES
