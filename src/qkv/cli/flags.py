"""The flags of `qkv train`, the same in every task: what each sets, and its help."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from qkv.cli.signature import flagged
from qkv.errors import ConfigError
from qkv.normalizers.catalog import NORMALIZERS
from qkv.scores import catalog

DATA, MODEL, ATTENTION, TRAINING, RUN = "Data", "Model", "Attention", "Training", "Run"
COLUMNS = "Columns of a TSV file"
"""The topics of the help."""


def option(help: str, panel: str, *names: str) -> Any:
    """Return an option that is not set unless it is given."""
    return typer.Option(*names, help=help, rich_help_panel=panel)


Out = Annotated[Path | None, option("The run folder. Run the same command again to resume.", RUN)]
Device = Annotated[str, option("Device: cpu, cuda, ...", RUN)]
Config = Annotated[Path | None, option("Settings as a TOML file; flags override it.", RUN)]
From = Annotated[Path | None, option("Initialize with the weights of another run.", RUN, "--from")]
TokenizerFrom = Annotated[Path | None, option("Use the tokenizer of another run, of any task.", RUN)]
Tensorboard = Annotated[bool, option("Also log to TensorBoard (extra: log).", RUN, "--tensorboard")]
PrintConfig = Annotated[bool, option("Show all settings as TOML and exit.", RUN, "--print-config")]

Run = Annotated[Path, typer.Argument(help="Run folder, or one checkpoint in it.")]
OnDevice = Annotated[str, typer.Option(help="Device: cpu, cuda, ...")]
"""The device of a command that uses a model."""


def drawn(what: str) -> Any:
    """Return the option that names a picture of something."""
    return typer.Option(help=f"Also draw {what}: FILE.html, FILE.svg or FILE.png.")


LineBuffered = Annotated[bool, typer.Option("--line-buffered", help="Answer each line as it comes, for pipes; slower.")]
"""Whether each line is answered by itself; otherwise parts grow to 1,024 lines."""


def shown(what: str) -> Any:
    """Return the option that draws something in the terminal."""
    return typer.Option("--show", help=f"Also draw {what} in the terminal, on standard error.")


Tokenizer = Annotated[
    str | None,
    option(
        "bpe (default; word to classify), unigram, word, char, or none (spaces separate the tokens already; default "
        "for columns).",
        DATA,
    ),
]
SourceTokenizer = Annotated[
    str | None, option("Of sources, if sources and targets have a vocabulary each (one for both).", DATA)
]
TargetTokenizer = Annotated[str | None, option("Of targets, likewise.", DATA)]
Vocabulary = Annotated[int | None, option("Maximum vocabulary size (8000; classify 30000, tag 4000).", DATA)]
Unicode = Annotated[
    str | None,
    option("Unicode form that text is brought to: NFC (default), NFD, NFKC, NFKD; none (columns).", DATA),
]
Lowercase = Annotated[bool | None, option("Lower-case all text.", DATA, "--lowercase")]

SourceColumn = Annotated[int | None, option("Column of the source, from 1 (1).", COLUMNS)]
TargetColumn = Annotated[int | None, option("Column of the target (2).", COLUMNS)]
FeaturesColumn = Annotated[int | None, option("Column of features such as V;PST; 0 for none (0).", COLUMNS)]
SourceSeparator = Annotated[
    str | None, option('Separates the symbols of a source; "" (default): each character is one.', COLUMNS)
]
TargetSeparator = Annotated[
    str | None,
    option('Separates the symbols of a target, such as " "; "" (default): each character is one.', COLUMNS),
]
Features = Annotated[
    str | None,
    option("front (default): before the source; or separate: a source with an attention of its own.", COLUMNS),
]
FeaturesSeparator = Annotated[str | None, option('Separates features (";").', COLUMNS)]

Width = Annotated[int | None, option("Width of the model (256).", MODEL)]
Dropout = Annotated[
    float | None, option("Dropout in training (translate 0.2, recurrent 0.3; generate 0.1; others 0.5).", MODEL)
]

Score = Annotated[
    str | None,
    option(
        f"How queries are compared with keys: {catalog.SCORES.described()} (a small network); also none in recurrent "
        "models, and location to translate with one. Default: scaled-dot, but additive to a source from a recurrent "
        "decoder, and for pooling.",
        ATTENTION,
    ),
]
Normalizer = Annotated[
    str | None,
    option(
        f"How scores become weights: {NORMALIZERS.described()}. Default: softmax, but sum for kernels.",
        ATTENTION,
    ),
]
Alpha = Annotated[str | None, option("Alpha of entmax: a number above 1 (1.5), or learned.", ATTENTION)]
Sinks = Annotated[bool | None, option("Let each head attend to nothing (softmax).", ATTENTION, "--sinks")]
Bandwidth = Annotated[
    float | None,
    option("Bandwidth of a kernel; default: learned, from the median distance in the first batch.", ATTENTION),
]
Power = Annotated[float | None, option("Power of the Epanechnikov kernel (2).", ATTENTION)]
Heads = Annotated[int | None, option("Heads of each attention (4; generate 6, a recurrent decoder 1).", ATTENTION)]
Window = Annotated[
    int | None, option("Number of positions to a side that self-attention sees; default: all.", ATTENTION)
]

Steps = Annotated[int | None, option("Number of training steps (translate 3000, others 2000).", TRAINING)]
Epochs = Annotated[int | None, option("Passes over the training data, in place of --steps.", TRAINING)]
BatchTokens = Annotated[int | None, option("Tokens per batch, padding included (2048).", TRAINING)]
BatchSize = Annotated[int | None, option("Examples per batch, in place of --batch-tokens.", TRAINING)]
Rate = Annotated[float | None, option("Peak learning rate (0.001; generate 0.006).", TRAINING, "--learning-rate")]
Smoothing = Annotated[
    float | None,
    option("Part of the target's weight that all tokens share (0.1; generate 0).", TRAINING, "--label-smoothing"),
]
Patience = Annotated[
    int | None, option("End after so many validations without improvement; 0: never (0; classify, tag 10).", TRAINING)
]
Precision = Annotated[str | None, option("float32 (default), bfloat16, or auto: the faster one.", TRAINING)]
Seed = Annotated[int | None, option("Random seed (0).", TRAINING)]

WORDS: Mapping[str, Any] = MappingProxyType(
    {"tokenizer": Tokenizer, "vocabulary": Vocabulary, "unicode": Unicode, "lowercase": Lowercase}
)
"""Flags of the tokenizer."""
SCORES: Mapping[str, Any] = MappingProxyType({"score": Score, "normalizer": Normalizer})
"""Flags that choose the score and the normalizer."""
PARTS: Mapping[str, Any] = MappingProxyType(
    {"alpha": Alpha, "sinks": Sinks, "bandwidth": Bandwidth, "power": Power, "heads": Heads}
)
"""Flags that refine the score and the normalizer, and the number of heads."""
LOOP: Mapping[str, Any] = MappingProxyType(
    {
        "steps": Steps,
        "epochs": Epochs,
        "batch_tokens": BatchTokens,
        "batch_size": BatchSize,
        "learning_rate": Rate,
        "label_smoothing": Smoothing,
        "patience": Patience,
        "precision": Precision,
        "seed": Seed,
    }
)
"""Flags of every training of texts."""
_RUN: Mapping[str, Any] = MappingProxyType(
    {
        "device": Device,
        "config": Config,
        "start": From,
        "tokenizer_from": TokenizerFrom,
        "tensorboard": Tensorboard,
        "print_config": PrintConfig,
    }
)
"""Flags that are not settings of the run; `out` is another, which stands before the model's in the help."""


def trains(
    flags: Mapping[str, Any], *, reads_text: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command of `qkv train` its flags and those of every run, none of which need be given.

    Args:
        flags: the annotation of each by name, in the order of the help.
        reads_text: whether the task has a tokenizer, which can be that of another run.
    """
    every = {name: flag for name, flag in _RUN.items() if reads_text or name != "tokenizer_from"}
    return flagged({**flags, **every}, {"device": "cpu", "tensorboard": False, "print_config": False})


def alpha(given: str | None) -> float | str | None:
    """Return the α of entmax as a number, or "learned".

    Raises:
        ConfigError: it is neither.

    Example:
        >>> alpha("1.25"), alpha("learned")
        (1.25, 'learned')
    """
    if given is None or given == "learned":
        return given
    try:
        return float(given)
    except ValueError:
        hint = "1.5 lies between softmax and sparsemax."
        raise ConfigError("--alpha", "a number above 1, or learned", f'"{given}"', hint) from None


def unicode_form(given: str) -> str:
    """Return the name of a Unicode form as settings spell it, however the flag does.

    Example:
        >>> unicode_form("nfkc"), unicode_form("None")
        ('NFKC', 'none')
    """
    return given.lower() if given.lower() == "none" else given.upper()


READ: Mapping[str, Callable[[str], object]] = MappingProxyType({"alpha": alpha, "unicode": unicode_form})
"""How flags whose settings are not what was typed are read."""
