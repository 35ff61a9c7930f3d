"""The settings of `qkv train translate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from qkv.data.choices import HELD_OUT, TokenizerKind
from qkv.decode.choices import Mean, Normalization, Stop
from qkv.errors import ConfigError, setting
from qkv.metrics.translation import WMT, BleuTokenizer
from qkv.models.configs.translator import TranslatorConfig
from qkv.settings import Option, check, options_of
from qkv.tasks.settings import (
    LEARNING_RATE,
    MOST_MODELS,
    AnswersEvaluation,
    DeviceSettings,
    PairColumns,
    PairData,
    PairFiles,
    RequestSettings,
    ShardAnswers,
    SourceColumns,
    TaskSettings,
    TokenizerSettings,
    WordTableSettings,
    longest_option,
)
from qkv.training_settings import Settings as Training

TOKENS_PER_SOURCE_TOKEN, MORE_TOKENS = 3, 16
"""The usual limit of a translation: no text of a language pair grows more than threefold."""
_MOST = 1_000_000
"""The largest beam, and the most tokens and translations: more would never finish in practice."""
Direction = Literal["ahead", "back"]
"""The direction in which a model writes."""
Symmetrization = Literal["mutual", "intersection", "union", "grow-diagonal", "grow-diagonal-final"]
"""How the alignments of two models of opposite directions are joined."""
When = Literal["at", "after"]
"""The step at which weights are read: the one that predicts a word, or the one after it, whose input it is."""


@dataclass(frozen=True, kw_only=True)
class BleuSettings:
    """How BLEU is computed."""

    bleu_tokenize: Annotated[
        BleuTokenizer | None, Option("What separates words for BLEU, as sacreBLEU names it", or_else=WMT)
    ] = None


@dataclass(frozen=True, kw_only=True)
class TranslateFiles(BleuSettings, PairFiles, WordTableSettings):
    """Sentence pairs: two parallel files, or one TSV file, whose columns can be chosen.

    Raises:
        ConfigError: a column is out of range, or two are the same.
    """

    prepared: Annotated[Path | None, Option("Or a corpus of pairs that qkv prepare wrote")] = None
    holdout: Annotated[int | None, Option("Pairs to hold out if there are none to validate on", or_else=HELD_OUT)] = (
        None
    )
    longest: Annotated[int, longest_option("a line", 256)] = 256


@dataclass(frozen=True, kw_only=True)
class TranslateTokenizer(TokenizerSettings):
    """One tokenizer for sources and targets, or one for each."""

    source_tokenizer: Annotated[
        TokenizerKind | None,
        Option("Of sources, if they have a vocabulary of their own", or_else="one for both"),
    ] = None
    target_tokenizer: Annotated[
        TokenizerKind | None,
        Option("Of targets, if they have a vocabulary of their own", or_else="one for both"),
    ] = None

    @property
    def kinds(self) -> tuple[TokenizerKind, TokenizerKind]:
        """The kinds of sources and targets."""
        return self.source_tokenizer or self.tokenizer, self.target_tokenizer or self.tokenizer

    @property
    def shared(self) -> bool:
        """Whether sources and targets have one vocabulary."""
        return self.source_tokenizer is None and self.target_tokenizer is None


@dataclass(frozen=True, kw_only=True)
class MemberSettings:
    """How many models are trained by one command.

    Raises:
        ConfigError: the number is out of range, or odd with both directions.

    Example:
        >>> MemberSettings(ensemble=4, both_directions=True).directions
        ('ahead', 'ahead', 'back', 'back')
    """

    ensemble: Annotated[
        int,
        Option(
            "Number of models, with one seed each, that translate together",
            least=1,
            most=MOST_MODELS,
            hint="4 suit most tasks; 1 is a single model.",
        ),
    ] = 1
    both_directions: Annotated[bool, Option("Half of the models of an ensemble write right to left")] = False

    def __post_init__(self) -> None:
        check(self)
        if self.both_directions and self.ensemble % 2:
            hint = "Half of them write right to left: use " + setting("ensemble", "2") + " or 4."
            expected = "an even number with both directions"
            raise ConfigError("ensemble", expected, f"{self.ensemble}", hint)

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The direction in which each model writes."""
        ahead = self.ensemble // 2 if self.both_directions else self.ensemble
        return tuple("ahead" if index < ahead else "back" for index in range(self.ensemble))


def _count(help: str, or_else: object = None) -> Option:
    """Return the option of a number of hypotheses or tokens."""
    return Option(help, least=1, most=_MOST, hint="Omit it for the default.", or_else=or_else)


def _language(side: str) -> Option:
    """Return the option of a language code."""
    return Option(f"Code of the {side} language, of a published model of many", or_else="as its folder says")


@dataclass(frozen=True)
class SearchSettings:
    """How a translation is searched for."""

    beam: Annotated[int, _count("Beam width; 1 is greedy")] = 1
    length_penalty: Annotated[float, Option("0 compares log-probabilities, 1 their mean per token")] = 1.0
    normalization: Annotated[Normalization, Option("Length normalization")] = "plain"
    coverage: Annotated[float, Option("Penalty for source words with little attention")] = 0.0
    stop: Annotated[Stop, Option("End a beam once no better hypothesis can follow, or once enough have finished")] = (
        "proved"
    )
    max_tokens: Annotated[
        int | None,
        _count(
            "Maximum tokens per translation",
            f"{TOKENS_PER_SOURCE_TOKEN} per source token plus {MORE_TOKENS}, or as in training",
        ),
    ] = None
    mean: Annotated[Mean, Option("What an ensemble averages")] = "probability"
    ban_unknown: Annotated[bool, Option("Never write the unknown token")] = False
    no_repeat_ngram: Annotated[
        int | None, Option("Write no sequence of so many tokens twice", least=1, hint="3 suits most texts.")
    ] = None
    source_language: Annotated[str | None, _language("source")] = None
    target_language: Annotated[str | None, _language("target")] = None


_CHOSEN = "as chosen in training"


@dataclass(frozen=True)
class ReadingSettings:
    """Which attention weights align a target word; the commands that align have these flags.

    Raises:
        ConfigError: there is no such step.
    """

    usual_when: ClassVar[When] = "at"
    """Where weights are read if nothing else was asked for or chosen."""

    layer: Annotated[str | None, Option("Attention layer to read", or_else=f"{_CHOSEN}, or the last")] = None
    head: Annotated[
        int | None, Option("Head of that layer", or_else=f"{_CHOSEN}; of a given layer, the mean over all")
    ] = None
    when: Annotated[
        When | None,
        Option(
            "Read at the step that predicts a word, or after it",
            or_else=f"{_CHOSEN}; of a given layer, {usual_when}",
        ),
    ] = None

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class DecodingSettings(SearchSettings):
    """How translations are searched for; the commands that translate have these flags."""

    n_best: Annotated[
        int, _count("Number of translations per line, of a beam different texts: line<TAB>score<TAB>text")
    ] = 1
    prefix: Annotated[str | None, Option("What each translation begins with")] = None


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """How translations are sampled."""

    sample: Annotated[bool, Option("Sample tokens by their probabilities")] = False
    temperature: Annotated[float | None, Option("With --sample: below 1 sharper, above 1 flatter", or_else=1.0)] = None
    top_k: Annotated[int | None, Option("With --sample: sample from the k most likely tokens")] = None
    top_p: Annotated[
        float | None, Option("With --sample: sample from the most likely tokens with this total probability")
    ] = None
    seed: Annotated[int | None, Option("With --sample: random seed", or_else=0)] = None


@dataclass(frozen=True, kw_only=True)
class TranslateRequest(DecodingSettings, SamplingSettings, RequestSettings):
    """How the texts of a request are translated."""

    @property
    def draws(self) -> bool:
        """Whether tokens are sampled."""
        return self.sample


@dataclass(frozen=True, kw_only=True)
class TranslateAnswers(TranslateRequest, SourceColumns, ShardAnswers, DeviceSettings):
    """Translate standard input, one sentence per line, to standard output.

    Example: echo "Ein Hund läuft." | qkv translate runs/de-en --beam 5 --show
    """

    several = True
    as_trained = frozenset(options_of(SourceColumns))

    average: Annotated[int, Option("Average the weights of this many newest checkpoints of each run")] = 1
    replace_unknown: Annotated[bool, Option("Replace unknown tokens by source words")] = False
    valid_source: Annotated[Path | None, Option("With --replace-unknown: sentences for choosing layer and head")] = None
    valid_target: Annotated[Path | None, Option("Their translations")] = None


@dataclass(frozen=True, kw_only=True)
class TranslateEvaluation(AnswersEvaluation, BleuSettings, SearchSettings, PairColumns, PairData):
    """Score translations with the code of training: sacreBLEU with its signature, chrF, exact match, word error rate.

    Example: qkv evaluate runs/de-en --source test.de --target test.en
    """

    as_trained = frozenset({*options_of(PairColumns), *options_of(BleuSettings)})


TRANSLATE = TaskSettings(
    "translate",
    """Train a translation model from two parallel files, or one TSV file.

    This one command builds the vocabulary, trains the model, and selects the best checkpoint.

    Example: qkv train translate --source train.de --target train.en --out runs/de-en
    """,
    {
        "data": TranslateFiles,
        "tokenizer": TranslateTokenizer,
        "model": TranslatorConfig,
        "training": Training,
        "ensemble": MemberSettings,
    },
    # For tens of thousands of sentence pairs on a laptop; chosen on the validation part of Multi30k.
    {
        "training": {
            "steps": 3000,
            "batch_tokens": 2048,
            "learning_rate": LEARNING_RATE,
            "schedule": "cosine",
            "validate_every": 250,
            "log_every": 25,
        }
    },
    evaluation=TranslateEvaluation,
    answers=TranslateAnswers,
    requests=TranslateRequest,
)
