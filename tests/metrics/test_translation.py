"""BLEU and chrF agree with sacreBLEU, with the code behind published results, and with hand calculation."""

import collections
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any
from urllib.error import URLError

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import ConfigError, DataError
from qkv.metrics.figure import Figure
from qkv.metrics.translation import bleu, chrf, measures_bleu, tokenized_bleu

WORDS = st.sampled_from(["a", "b", "c", "d", "the", "The"])
SENTENCES = st.lists(
    st.tuples(st.lists(WORDS, max_size=9), st.lists(WORDS, min_size=1, max_size=9)), min_size=1, max_size=6
)
NEAR = [
    ("The cat sat on the mat, didn't it?", "The cat sat on a mat, did it not?"),
    ("Two dogs run through the snow.", "Two dogs are running through deep snow."),
    ("", "A man."),
]


def split(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> tuple[list[Sequence[str]], list[Sequence[str]]]:
    return [hypothesis for hypothesis, _ in pairs], [reference for _, reference in pairs]


@given(SENTENCES)
def test_tokenized_bleu_is_sacrebleu_without_tokenization_and_smoothing(
    pairs: list[tuple[list[str], list[str]]],
) -> None:
    hypotheses, references = split(pairs)
    joined = [" ".join(tokens) for tokens in hypotheses], [[" ".join(tokens) for tokens in references]]
    for lowercase in (False, True):
        wanted = sacrebleu.corpus_bleu(
            *joined, tokenize="none", smooth_method="none", lowercase=lowercase, force=True, use_effective_order=False
        ).score
        assert tokenized_bleu(hypotheses, references, lowercase=lowercase).value == pytest.approx(wanted, abs=1e-9)


def tensor2tensor_bleu(references: list[list[str]], hypotheses: list[list[str]]) -> float:
    """Compute BLEU as tensor2tensor/utils/bleu_hook.py and nmt/scripts/bleu.py do, which `evaluate` copies."""

    def ngram_counts(segment: list[str]) -> collections.Counter[tuple[str, ...]]:
        counts: collections.Counter[tuple[str, ...]] = collections.Counter()
        for order in range(1, 5):
            for i in range(len(segment) - order + 1):
                counts[tuple(segment[i : i + order])] += 1
        return counts

    matches, possible = [0] * 4, [0] * 4
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        overlap = ngram_counts(hypothesis) & ngram_counts(reference)
        for ngram, count in overlap.items():
            matches[len(ngram) - 1] += count
        for order in range(1, 5):
            if len(hypothesis) - order + 1 > 0:
                possible[order - 1] += len(hypothesis) - order + 1
    precisions = [m / p if p > 0 else 0.0 for m, p in zip(matches, possible, strict=True)]
    geometric_mean = math.exp(sum(0.25 * math.log(p) for p in precisions)) if min(precisions) > 0 else 0.0
    ratio = sum(map(len, hypotheses)) / sum(map(len, references))
    brevity = 1.0 if ratio > 1.0 else math.exp(1 - 1.0 / ratio) if ratio else 0.0
    return geometric_mean * brevity


@given(SENTENCES)
def test_tokenized_bleu_is_that_of_published_figures(pairs: list[tuple[list[str], list[str]]]) -> None:
    hypotheses, references = [h for h, _ in pairs], [r for _, r in pairs]
    wanted = 100 * tensor2tensor_bleu(references, hypotheses)
    assert tokenized_bleu(hypotheses, references).value == pytest.approx(wanted, abs=1e-9)


def test_tokenized_bleu_by_hand() -> None:
    hypothesis = ["the", "the", "cat", "sat", "on", "mat"]
    reference = ["the", "cat", "sat", "on", "the", "big", "red", "mat"]
    # Orders 1 to 4: 6/6, 3/5 ("the cat", "cat sat", "sat on"), 2/4, 1/3; 6 tokens against 8.
    wanted = 100 * math.exp(1 - 8 / 6) * (1 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert tokenized_bleu([hypothesis], [reference]).value == pytest.approx(wanted, rel=1e-12)


def test_tokens_with_spaces_in_them_are_single_tokens() -> None:
    tokens = ["a", " ", "b c", "d", "e"]
    assert tokenized_bleu([tokens], [tokens]).value == pytest.approx(100)
    assert tokenized_bleu([tokens], [["a", "b", "c", "d", "e"]]).value == 0


@pytest.mark.parametrize("hypothesis", [[], ["z"], ["a", "b", "c"]])
def test_an_order_without_a_match_gives_zero(hypothesis: list[str]) -> None:
    assert tokenized_bleu([hypothesis], [["a", "b", "c"]]).value == 0


def test_signature_tells_case_and_tokenizer() -> None:
    figure = tokenized_bleu([["A"]], [["a"]], lowercase=True, tokenizer="spacy-en")
    assert figure.signature == "nrefs:1|case:lc|eff:no|tok:spacy-en|smooth:none|order:4"


def test_bleu_is_sacrebleu_with_its_signature() -> None:
    hypotheses, references = map(list, zip(*NEAR, strict=True))
    figure = bleu(hypotheses, references)
    assert figure.value == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert figure.signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert figure.name == "bleu"
    assert 0 < figure.value < 100


def test_bleu_minds_the_case() -> None:
    sentence = "the cat sat on the mat ."
    assert bleu([sentence.upper()], [sentence]).value < 10


def test_chrf_is_sacrebleus_with_its_signature() -> None:
    hypotheses, references = map(list, zip(*NEAR, strict=True))
    figure = chrf(hypotheses, references)
    assert figure.value == sacrebleu.corpus_chrf(hypotheses, [references]).score
    assert figure.signature == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"


@pytest.mark.parametrize("measure", [bleu, chrf, tokenized_bleu])
def test_unequal_numbers_are_refused(measure: Callable[[list[str], list[str]], Figure]) -> None:
    with pytest.raises(DataError, match="hypotheses"):
        measure(["a"], ["a", "b"])
    with pytest.raises(DataError, match="references"):
        measure([], [])


@pytest.mark.parametrize("tokenizer", ["13a", "intl", "char", "zh", "none"])
def test_the_signature_names_what_separates_words(tokenizer: Any) -> None:
    hypotheses, references = ["我在家看书。", "I sat  down."], ["他在家看书。", "I sat down."]
    wanted = sacrebleu.corpus_bleu(hypotheses, [references], tokenize=tokenizer, force=True).score
    figure = bleu(hypotheses, references, tokenizer)
    assert figure.value == wanted
    assert f"tok:{tokenizer}" in figure.signature


@pytest.mark.parametrize(
    ("tokenizer", "package", "hidden"),
    [
        ("ja-mecab", "sacrebleu[ja]", "MeCab"),
        ("ko-mecab", "sacrebleu[ko]", "mecab_ko"),
        ("flores200", "sentencepiece", "sentencepiece"),
        ("spBLEU-1K", "sentencepiece", "sentencepiece"),
    ],
)
def test_a_missing_package_is_named(tokenizer: Any, package: str, hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, hidden, None)
    for module in [name for name in sys.modules if name.startswith("sacrebleu.tokenizers.tokenizer_")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ConfigError) as caught:
        bleu(["a"], ["a"], tokenizer)
    assert caught.value.argument == "bleu_tokenize"
    assert package in caught.value.expected


def test_a_model_of_pieces_that_cannot_be_downloaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu.metrics import bleu as module

    def fail(**settings: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(module, "BLEU", fail)
    with pytest.raises(ConfigError, match=r'bleu_tokenize: .*"flores101".*no network'):
        bleu(["a"], ["a"], "flores101")


@pytest.mark.parametrize(
    ("targets", "tokenizer", "measured"),
    [
        (["我在家看书吃饭"] * 39 + ["我在家 iPhone 15 Pro max"], "13a", False),
        (["我在家看书吃饭"] * 39 + ["我在家 iPhone 15 Pro max"], "zh", True),
        (["กขคงจฉช"] * 3 + ["one two three four"], "13a", False),
        (["กขคงจฉช"] * 3 + ["one two three four"], "char", True),
        (["a dog runs far", "no"], "13a", True),
    ],
)
def test_bleu_measures_targets_of_four_words(targets: list[str], tokenizer: Any, measured: bool) -> None:
    assert measures_bleu(targets, tokenizer) is measured
