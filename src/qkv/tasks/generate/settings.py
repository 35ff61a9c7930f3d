"""The settings of `qkv train generate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from qkv.data.choices import TokenizerKind, WindowOrder
from qkv.models.configs.language_model import LanguageModelConfig
from qkv.settings import Option
from qkv.tasks.settings import (
    TOKENIZERS,
    AnswerSettings,
    DeviceSettings,
    EvaluationSettings,
    RequestSettings,
    SkipSettings,
    TaskSettings,
    Texts,
    TokenizerSettings,
)
from qkv.training_settings import Settings as Training

TOKENS = 200
"""How many tokens are added to a prompt, by default."""
TEMPERATURE = 0.8
"""What scores are divided by, by default: likelier text than the model's own distribution gives, as most tools have."""
LongPrompt = Literal["refuse", "window"]
"""What happens to a prompt that exceeds the model's context: it is refused, or its end is read."""


@dataclass(frozen=True, kw_only=True)
class GenerateText:
    """Plain text."""

    text: Annotated[Texts | None, Option("A file of plain text (.gz too)")] = None


@dataclass(frozen=True, kw_only=True)
class GenerateEvaluation(EvaluationSettings, GenerateText):
    """Score a text with the code of training: loss, perplexity and bits per character.

    Example: qkv evaluate runs/plays --text test.txt
    """


@dataclass(frozen=True, kw_only=True)
class GenerateRequest(RequestSettings):
    """How the prompts of a request are continued."""

    tokens: Annotated[
        int | None, Option("Number of tokens to add", least=1, or_else=f"{TOKENS}, or what the context holds")
    ] = None
    temperature: Annotated[
        float,
        Option("Below 1 for likelier text, 1 for the model's own distribution; 0 takes the likeliest token"),
    ] = TEMPERATURE
    top_k: Annotated[int | None, Option("Sample from the k most likely tokens only")] = None
    top_p: Annotated[float | None, Option("Sample from the most likely tokens with this total probability")] = None
    seed: Annotated[int, Option("Random seed of sampling")] = 0
    beam: Annotated[
        int, Option("Beam width: more than 1 takes the likeliest text and draws nothing", least=1, most=1_000_000)
    ] = 1
    no_repeat_ngram: Annotated[
        int | None, Option("Write no sequence of so many tokens twice, that of the prompt included", least=1)
    ] = None
    long_prompt: Annotated[
        LongPrompt, Option("If the prompt exceeds the model's context, refuse it, or read its end")
    ] = "refuse"

    @property
    def draws(self) -> bool:
        """Whether tokens are sampled."""
        return self.beam == 1 and self.temperature > 0


@dataclass(frozen=True, kw_only=True)
class GenerateAnswers(GenerateRequest, AnswerSettings, DeviceSettings):
    """Continue a prompt; the text appears as it is generated.

    Example: qkv generate runs/plays --prompt "KING:" --tokens 500
    """

    prompt: Annotated[str, Option("The text to continue", or_else="a line end")] = "\n"


@dataclass(frozen=True, kw_only=True)
class GenerateFiles(SkipSettings, GenerateText):
    """A text to train on, or a corpus, and what is held out."""

    prepared: Annotated[Path | None, Option("Or a corpus that qkv prepare wrote")] = None
    valid_text: Annotated[
        Texts | None, Option("Another file for validation; the end of the text is held out if not given")
    ] = None
    holdout: Annotated[float, Option("The part of the text, at its end, that is held out")] = 0.1
    order: Annotated[WindowOrder, Option("Order of an epoch's windows")] = "random"


@dataclass(frozen=True, kw_only=True)
class GenerateTokenizer(TokenizerSettings):
    """The tokenizer of a language model."""

    tokenizer: Annotated[TokenizerKind, Option(TOKENIZERS, also="tokens")] = "bpe"


GENERATE = TaskSettings(
    "generate",
    """Train a language model on a text file; it learns to continue any text.

    Example: qkv train generate --text plays.txt --out runs/plays
    """,
    {
        "data": GenerateFiles,
        "tokenizer": GenerateTokenizer,
        "model": LanguageModelConfig,
        "training": Training,
    },
    {
        "tokenizer": {"tokenizer": "char", "minimum": 1},
        # For a million characters on a laptop; chosen on the validation part of tiny Shakespeare.
        "training": {
            "steps": 2000,
            "batch_tokens": 2048,
            "optimizer": "muon",
            "learning_rate": 0.006,
            "schedule": "linear",
            "warmup": 50,
            "label_smoothing": 0.0,
            "validate_every": 250,
            "log_every": 25,
        },
    },
    evaluation=GenerateEvaluation,
    answers=GenerateAnswers,
    requests=GenerateRequest,
)
