"""The flags of `qkv train`, the same in every task: what each sets, and its help."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from qkv.errors import ConfigError, error_message

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

Tokenizer = Annotated[
    str | None,
    option(
        "bpe (default; word to classify), char, or none (spaces separate the tokens already; default for columns).",
        DATA,
    ),
]
Vocabulary = Annotated[int | None, option("Maximum vocabulary size (8000; classify 30000, tag 4000).", DATA)]
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
FeaturesSeparator = Annotated[str | None, option('Separates features (";").', COLUMNS)]

Width = Annotated[int | None, option("Width of the model (256).", MODEL)]
Dropout = Annotated[
    float | None, option("Dropout in training (translate 0.2, recurrent 0.3; generate 0.1; others 0.5).", MODEL)
]

Score = Annotated[
    str | None,
    option(
        "How queries are compared with keys: scaled-dot, dot, cosine, bilinear (general, multiplicative), additive "
        "(mlp, bahdanau), nonlocal-concat, squared-distance, gaussian, boxcar, epanechnikov, triangular, uniform or "
        "learned (a small network); also none in recurrent models, and location to translate with one. Default: "
        "scaled-dot, but additive to a source from a recurrent decoder, and for pooling.",
        ATTENTION,
    ),
]
Normalizer = Annotated[
    str | None,
    option(
        "How scores become weights: softmax, sum (the default of kernels), mean, hard, identity, sparsemax, entmax or "
        "sigmoid.",
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

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "tokenizer": "tokenizer.kind",
        "vocabulary": "tokenizer.size",
        "lowercase": "tokenizer.lowercase",
        "steps": "training.steps",
        "epochs": "training.epochs",
        "batch_tokens": "training.tokens",
        "batch_size": "training.batch_size",
        "learning_rate": "training.learning_rate",
        "label_smoothing": "training.label_smoothing",
        "patience": "training.patience",
        "precision": "training.precision",
        "seed": "training.seed",
        **{
            name: f"data.{name}"
            for name in (
                *("source", "target", "data", "text", "longest"),
                *("valid_source", "valid_target", "valid_data", "valid_text"),
                *("source_col", "target_col", "features_col", "source_sep", "target_sep", "features_sep"),
            )
        },
    }
)
"""The setting of each flag; those of the model have the flag's name."""
_NO_SETTING = frozenset({"out", "device", "config", "start", "tokenizer_from", "tensorboard", "print_config"})


def tables(flags: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the settings that flags set, by table.

    Args:
        flags: all flags of a command by name; None where they were not given.
        renamed: the settings of the flags that mean something else in this command.

    Returns:
        Settings by table and name.

    Example:
        >>> tables({"score": "dot", "seed": 1, "steps": None, "out": "run"}, {})
        {'model': {'score': 'dot'}, 'training': {'seed': 1}}
    """
    found: dict[str, dict[str, Any]] = {}
    for flag, given in flags.items():
        if given is not None and flag not in _NO_SETTING:
            table, _, name = setting_of(flag, renamed).partition(".")
            found.setdefault(table, {})[name] = given
    return found


def setting_of(flag: str, renamed: Mapping[str, str]) -> str:
    """Return the dotted setting of a flag.

    Example:
        >>> setting_of("batch_tokens", {}), setting_of("model", {"model": "model.kind"}), setting_of("score", {})
        ('training.tokens', 'model.kind', 'model.score')
    """
    return renamed.get(flag) or SETTINGS.get(flag) or f"model.{flag}"


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
        raise ConfigError(error_message("--alpha", "a number above 1, or learned", f'"{given}"', hint)) from None
