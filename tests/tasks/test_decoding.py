"""Translators with random weights: every decoding method gives the same answer alone, in any batch and any order."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.pairs import in_turn
from torch import nn

from qkv.data.batches import collate_sources
from qkv.data.choices import TokenizerKind
from qkv.data.tokenizer import Tokenizer
from qkv.decode.beam import Beam, Ranking, beam
from qkv.decode.greedy import greedy
from qkv.decode.sampling import Sampling
from qkv.errors import ConfigError, DataError, QkvError
from qkv.models.configs.translator import RecurrentConfig, TransformerConfig
from qkv.models.copying import CopyingTranslator
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator
from qkv.tasks.length import CutWarning
from qkv.tasks.translate.decoding import Decoding, as_sampling
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.settings import SamplingSettings

LINES = ["abc", "", "cabbage", "a", "fade", "deaf bed", "abc", "ggggggg"]
TOKENIZER = Tokenizer.learn(["abcdefg "], kind="char")
BOUND = 1e-4


def model(kind: str, seed: int) -> Any:
    torch.manual_seed(seed)
    if kind == "rnn":
        made: Any = RecurrentTranslator(RecurrentConfig(size=TOKENIZER.size, embedding=6, hidden=5, attention=4))
    else:
        sizes = {"width": 8, "heads": 2, "feed_forward": 12, "encoder_layers": 1, "decoder_layers": 2}
        made = TransformerTranslator(TransformerConfig(size=TOKENIZER.size, **sizes))
    for parameter in made.parameters():
        # Wider weights than a fresh model has, so that answers differ between lines.
        nn.init.normal_(parameter, std=0.5)
    return made


def translator(kind: str, models: int = 1) -> Translator:
    first, *others = (model(kind, seed) for seed in range(models))
    return Translator(first, TOKENIZER, 64, others)


WAYS = {
    "greedy": Decoding(),
    "beam": Decoding(beam=4, n_best=3),
    "wu, coverage": Decoding(beam=3, length_penalty=0.6, normalization="wu", coverage=0.3),
    "drawn": Decoding(n_best=2, sampling=Sampling(1.2, top_k=8, top_p=0.95, seed=5)),
}


def _one_number_of_models_each() -> list[object]:
    """Every method with one kind of model, alternating single models and pairs; all kinds in the whole suite."""
    turns = [(("rnn", "transformer")[place % 2], 1 + place // 2 % 2) for place in range(len(WAYS))]
    return [
        pytest.param(kind, models, way, marks=[] if turn == (kind, models) else pytest.mark.slow)
        for way, turn in zip(WAYS, turns, strict=True)
        for kind in ("rnn", "transformer")
        for models in (1, 2)
    ]


@pytest.mark.parametrize(("kind", "models", "way"), _one_number_of_models_each())
def test_a_line_is_translated_alike_alone_in_a_batch_and_in_any_order(kind: str, models: int, way: str) -> None:
    ours, how, outcome = translator(kind, models), WAYS[way], Counter[str]()
    together = ours.translate_best(LINES, how)
    backwards = ours.translate_best(LINES[::-1], how)[::-1]
    for line, found, other in zip(LINES, together, backwards, strict=True):
        alone = ours.translate_best([line], how)[0]
        for others in (other, alone):
            # A repeated line is sampled twice: only the first sample equals that of the line alone.
            if how.sampling is not None and LINES.count(line) > 1:
                continue
            same = [one.target_tokens for one in found] == [one.target_tokens for one in others]
            outcome["same" if same else "tied"] += 1
            if not same:
                ranks = [one.score if one.ranked is None else one.ranked for one in (*found, *others)]
                assert max(ranks) - min(ranks) < BOUND, line
    assert outcome["tied"] <= 1, outcome


@pytest.mark.parametrize("kind", ["rnn", "transformer"])
def test_an_ensemble_of_equals_is_each_of_them(kind: str) -> None:
    one = model(kind, 3)
    for mean in ("probability", "log_probability"):
        how = Decoding(beam=3, mean=mean)
        both, alone = Translator(one, TOKENIZER, 64, [one]), Translator(one, TOKENIZER)
        ways = ((both, how), (alone, Decoding(beam=3)))
        found = [[each.text for each in some.translate_fully(LINES, way)] for some, way in ways]
        assert found[0] == found[1]


def test_an_empty_line_is_an_empty_translation() -> None:
    for how in WAYS.values():
        assert [one.text for one in translator("rnn").translate_best([""], how)[0]] == [""]


@pytest.mark.parametrize("line", ["", " ", "\u3000 ", "\t"])
@pytest.mark.parametrize("kind", ["char", "word"])
def test_white_space_is_an_empty_translation(kind: TokenizerKind, line: str) -> None:
    tokenizer = Tokenizer.learn(["a b", "b\u3000a\tb"], kind, minimum=1)
    made = RecurrentTranslator(RecurrentConfig(size=tokenizer.size, embedding=8, hidden=8, attention=8))
    assert Translator(made, tokenizer).translate_fully(["a b", line])[1].text == ""


def test_a_line_longer_than_the_limit_is_named() -> None:
    short = Translator(model("rnn", 0), TOKENIZER, longest=4)
    with pytest.raises(DataError, match="line 2: expected at most 4 tokens; got 5"):
        short.translate(["abc", "abcde"], beam=3)


@pytest.mark.parametrize("way", WAYS)
def test_scores_that_are_not_numbers_are_an_error(way: str) -> None:
    broken = translator("transformer")
    with torch.no_grad():
        broken.model.output.bias.fill_(torch.nan)
    with pytest.raises(QkvError, match="model: expected scores that are numbers; got NaN for row 0 at step 0"):
        broken.translate(["abc"], WAYS[way])


def test_a_translation_that_is_cut_is_warned_of_and_shown_without_an_end() -> None:
    ours = translator("rnn")
    with torch.no_grad():
        ours.model.output.bias[ours.tokenizer.encode("a")] = 100
    with pytest.warns(CutWarning, match="2 of 3 translations were cut at the length limit, the first in line 1"):
        assert [len(text) for text in ours.translate(["ab", "", "c"], Decoding(max_tokens=4))] == [4, 0, 4]
    (found,) = ours.translate_fully(["ab"], attention=True)
    assert not found.finished
    assert len(found.target_tokens) == 3 * 2 + 16 + 1
    assert found.target_tokens[-1] == "…"


def test_coverage_needs_attention() -> None:
    blind = Translator(RecurrentTranslator(RecurrentConfig(size=TOKENIZER.size, score="none", hidden=4)), TOKENIZER)
    with pytest.raises(ConfigError, match="coverage: expected a model with attention"):
        blind.translate(["abc"], Decoding(beam=2, coverage=0.5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Decoding(beam=0), "beam: expected an integer, at least 1 and at most 1,000,000; got 0"),
        (lambda: Decoding(beam=2, n_best=3), "n_best: expected from 1 to the beam width 2; got 3"),
        (lambda: Decoding(beam=2, sampling=Sampling()), "beam: expected 1 with sampling; got 2"),
        (lambda: Decoding(max_tokens=0), "max_tokens: expected an integer, at least 1 and at most 1,000,000; got 0"),
        (lambda: Decoding(stop="filled"), 'stop: expected "proved" without a beam; got "filled"'),
        (lambda: Decoding(coverage=0.5), "coverage: expected 0 without a beam; got 0.5"),
        (lambda: as_sampling(SamplingSettings(top_k=3)), "top_k: expected sample as well; got no sample"),
        (lambda: Decoding(mean="probabilty"), 'Did you mean "probability"?'),
        (lambda: Decoding(beam=5, stop="proven"), 'Did you mean "proved"?'),
    ],
)
def test_settings_that_make_no_sense_are_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        make()


def hungry(kind: str, tokens: Sequence[int] = (TOKENIZER.pad, TOKENIZER.bos)) -> Any:
    """A model that gives tokens, such as special ones that no text contains, almost all probability at every step."""
    made = model("rnn" if kind == "copy" else kind, 0)
    if kind == "copy":
        config = RecurrentConfig(size=TOKENIZER.size, embedding=6, hidden=5, attention=4, copy="mixture")
        made = RecurrentTranslator(config)
    with torch.no_grad():
        made.output.bias[list(tokens)] = 50.0
    return CopyingTranslator(made, TOKENIZER.unk) if kind == "copy" else made


@pytest.mark.parametrize(("kind", "way"), in_turn(("rnn", "transformer", "copy"), WAYS))
def test_no_translation_has_padding_or_a_second_beginning(kind: str, way: str) -> None:
    spoilt = Translator(hungry(kind), TOKENIZER, 64, [] if kind == "copy" else [hungry(kind)])
    source, lengths = collate_sources([TOKENIZER.encode("abc")], TOKENIZER.pad)
    (wanted,) = greedy(spoilt.model, source, lengths, bos=TOKENIZER.bos, eos=TOKENIZER.eos, limit=9)
    assert {TOKENIZER.pad, TOKENIZER.bos} & {*wanted.ids}
    shown = [one.target_tokens for found in spoilt.translate_best(LINES, WAYS[way]) for one in found]
    assert not {"<pad>", "<bos>"} & {token for tokens in shown for token in tokens}


def test_byte_pairs_write_no_unknown_piece_either() -> None:
    assert TOKENIZER.never_written == (TOKENIZER.pad, TOKENIZER.bos)
    pairs = Tokenizer.learn(["abcdefg "], size=300)
    assert pairs.never_written == (pairs.pad, pairs.bos, pairs.unk)


PIECES = Tokenizer.learn(["aaaa aaa aa aaaa"] * 4, size=300)


def of_pieces() -> Translator:
    """A model that writes pieces of "a" alone, of which many sequences make the same text."""
    torch.manual_seed(0)
    made = RecurrentTranslator(RecurrentConfig(size=PIECES.size, embedding=6, hidden=5, attention=4))
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    likely = [number for number, piece in enumerate(PIECES.vocabulary.pieces) if set(piece) == {"a"}]
    with torch.no_grad():
        made.output.bias[[*likely, PIECES.eos]] = torch.tensor([7.0] * len(likely) + [5.0])
    return Translator(made, PIECES, 64)


def test_an_n_best_list_has_different_texts() -> None:
    whole, lines = of_pieces(), ["aa", "", "aaaa", "a"]
    search = Beam(6, 6, Ranking(1.0))
    source, lengths = collate_sources([PIECES.encode(line) for line in lines if line], PIECES.pad)
    never = PIECES.never_written
    same = beam(whole.model, source, lengths, bos=PIECES.bos, eos=PIECES.eos, limit=6, search=search, never=never)
    assert any(len({PIECES.decode(one.ids) for one in row}) < len(row) for row in same), "or there is nothing to test"
    how = Decoding(beam=6, n_best=6, max_tokens=6)
    for line, found in zip(lines, whole.translate_best(lines, how), strict=True):
        texts = [one.text for one in found]
        assert len(texts) == len(set(texts)) == (6 if line else 1)
        order = [(one.finished, one.ranked) for one in found if one.ranked is not None]
        assert order == sorted(order, reverse=True)
        assert [one.text for one in whole.translate_best([line], how)[0]] == texts, "alone as in company"


@pytest.mark.parametrize("kind", ["rnn", "transformer", "copy"])
@pytest.mark.parametrize("beam", [1, 4])
def test_the_unknown_token_can_be_banned(kind: str, beam: int) -> None:
    """A greedy model that gives the unknown token almost all probability writes nothing else; then never."""
    spoilt = Translator(hungry(kind, [TOKENIZER.unk]), TOKENIZER, 64)
    free, banned = (
        [one.target_tokens for one in spoilt.translate_fully(["abc", "deaf bed"], Decoding(beam, ban_unknown=ban))]
        for ban in (False, True)
    )
    assert all("<unk>" in tokens for tokens in free) or beam > 1
    assert not any("<unk>" in tokens for tokens in banned)


def test_a_ban_without_effect_is_refused() -> None:
    with pytest.raises(ConfigError, match="ban_unknown: expected a model that can write an unknown token"):
        of_pieces().translate(["aa"], Decoding(ban_unknown=True))


@pytest.mark.parametrize("models", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_translations_begin_with_a_prefix_and_repeat_nothing(models: int, way: str) -> None:
    whole = translator("transformer", models)
    how = replace(WAYS[way], prefix="cab", no_repeat_ngram=2)
    lines = list(dict.fromkeys(LINES))
    for line, found in zip(lines, whole.translate_best(lines, how), strict=True):
        for one in found:
            assert one.text.startswith("cab") or not line
            pairs = list(pairwise(one.target_tokens))
            assert len(pairs) == len(set(pairs))
            assert whole.translate_best([line], how)[0][0].text == found[0].text


def test_a_prefix_that_cannot_be_written_is_named() -> None:
    with pytest.raises(ConfigError, match="prefix: expected tokens of the model's vocabulary; got 'x'"):
        translator("rnn").translate(["abc"], Decoding(prefix="ax"))
    back = Translator(model("rnn", 0), TOKENIZER, 64, right_to_left=[True])
    with pytest.raises(ConfigError, match="prefix: expected models that write left to right"):
        back.translate(["abc"], Decoding(prefix="a"))
