"""`qkv train classify` and `qkv train tag`: from labeled files to a trained model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli.failure import guarded
from qkv.cli.training import Given, follow

_Data = Annotated[Path | None, typer.Option(help="label<TAB>text on each line (.gz too).")]
_Columns = Annotated[Path | None, typer.Option(help="Words in columns, word first, tag last; .gz too.")]
_Valid = Annotated[Path | None, typer.Option(help="The same for validation; default: a tenth is held out.")]
_Out = Annotated[Path | None, typer.Option(help="The run folder. Run the same command again to resume.")]
_Encoder = Annotated[str | None, typer.Option("--model", help="gru (default), lstm, rnn, transformer or none.")]
_Pool = Annotated[str | None, typer.Option(help="attention (default) or mean.")]
_Tokenizer = Annotated[str | None, typer.Option(help="bpe, word or char; learned from the training text.")]
_Vocabulary = Annotated[int | None, typer.Option(help="Maximum vocabulary size.")]
_Lowercase = Annotated[bool | None, typer.Option("--lowercase", help="Lower-case all text.")]
_Longest = Annotated[int | None, typer.Option(help="Maximum tokens per text (512).")]
_Steps = Annotated[int | None, typer.Option(help="Number of training steps (2000).")]
_Rate = Annotated[float | None, typer.Option(help="Peak learning rate (0.001).")]
_Seed = Annotated[int | None, typer.Option(help="Random seed (0).")]
_Device = Annotated[str, typer.Option(help="Device: cpu, cuda, ...")]
_Config = Annotated[Path | None, typer.Option(help="Settings as a TOML file; flags override it.")]
_From = Annotated[Path | None, typer.Option("--from", help="Initialize with the weights of another run.")]
_Tokens = Annotated[
    Path | None, typer.Option("--tokenizer-from", help="Use the tokenizer of another run, of any task.")
]
_Board = Annotated[bool, typer.Option("--tensorboard", help="Also log to TensorBoard (extra: log).")]
_Print = Annotated[bool, typer.Option("--print-config", help="Show all settings as TOML and exit.")]


@guarded
def train_classify(
    data: _Data = None,
    valid_data: _Valid = None,
    out: _Out = None,
    model: _Encoder = None,
    pool: _Pool = None,
    tokenizer: _Tokenizer = None,
    vocabulary: _Vocabulary = None,
    lowercase: _Lowercase = None,
    longest: _Longest = None,
    steps: _Steps = None,
    learning_rate: _Rate = None,
    seed: _Seed = None,
    device: _Device = "cpu",
    config: _Config = None,
    start: _From = None,
    tokenizer_from: _Tokens = None,
    tensorboard: _Board = False,
    print_config: _Print = False,
) -> None:
    """Train a model that labels texts and shows which words decided.

    Example: qkv train classify --data films.tsv --out runs/films
    """
    flags: dict[str, dict[str, Any]] = {
        "data": {"data": data, "valid_data": valid_data, "longest": longest},
        "tokenizer": {"kind": tokenizer, "size": vocabulary, "lowercase": lowercase},
        "model": {"encoder": model, "pool": pool},
        "training": {"steps": steps, "learning_rate": learning_rate, "seed": seed},
    }
    _train("classify", flags, Given(config, start, tokenizer_from, out, device, tensorboard, print_config))


@guarded
def train_tag(
    data: _Columns = None,
    valid_data: _Valid = None,
    out: _Out = None,
    model: _Encoder = None,
    tokenizer: _Tokenizer = None,
    vocabulary: _Vocabulary = None,
    lowercase: _Lowercase = None,
    longest: _Longest = None,
    steps: _Steps = None,
    learning_rate: _Rate = None,
    seed: _Seed = None,
    device: _Device = "cpu",
    config: _Config = None,
    start: _From = None,
    tokenizer_from: _Tokens = None,
    tensorboard: _Board = False,
    print_config: _Print = False,
) -> None:
    """Train a model that tags words.

    Example: qkv train tag --data train.conll --out runs/names
    """
    flags: dict[str, dict[str, Any]] = {
        "data": {"data": data, "valid_data": valid_data, "longest": longest},
        "tokenizer": {"kind": tokenizer, "size": vocabulary, "lowercase": lowercase},
        "model": {"encoder": model},
        "training": {"steps": steps, "learning_rate": learning_rate, "seed": seed},
    }
    _train("tag", flags, Given(config, start, tokenizer_from, out, device, tensorboard, print_config))


def _train(kind: Any, flags: dict[str, dict[str, Any]], given: Given) -> None:
    from qkv.tasks.label_training import RECIPES

    follow(RECIPES[kind], flags, given)
