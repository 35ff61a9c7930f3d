"""Exporting models as ONNX graphs."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, UnsupportedError, error_message
from qkv.models.decoder import LanguageModel
from qkv.models.reader import TextClassifier, TextTagger
from qkv.models.transformer import TransformerState, TransformerTranslator
from qkv.nn.attention import Attention
from qkv.nn.blocks import DecoderBlock

Exportable = TransformerTranslator | LanguageModel | TextClassifier | TextTagger
_BATCH, _LONG = 3, 6


@final
@dataclass(frozen=True, eq=False)
class Graph:
    """A graph to export to one file.

    Args:
        module: the computation, called with positional inputs.
        inputs: the name of each input, an example, and the names of its dynamic axes.
        output: the name of the output.
        longest: the maximum sizes of axes, by name.
    """

    module: nn.Module
    inputs: Mapping[str, tuple[Tensor, tuple[str, ...]]]
    output: str
    longest: Mapping[str, int]


def to_onnx(model: Exportable, out: Path) -> None:
    """Write a model as ONNX graphs, for any batch size and any length.

    Attention is exported as its equation on the full matrix (backend "reference"), which every score and normalizer
    supports; memory grows with the square of the length.

    A translator becomes `encoder.onnx`, from `source` (B, S) and `lengths` (B,) to `memory` (B, S, M), and
    `decoder.onnx`, from `memory`, `lengths` and `target` (B, T), the begin token first, to `logits` (B, T, N). All
    others become `model.onnx`, from the arguments of their `forward` to `logits`.

    Args:
        model: the model to export; it is not changed.
        out: the output folder; created if missing; files of an earlier export are replaced.

    Raises:
        ConfigError: a library is not installed.
        UnsupportedError: a part cannot be exported: an RNN encoder, a wide part, or a sliding window.
    """
    _check_libraries()
    _check_parts(model)
    programs = {name: _program(graph) for name, graph in graphs(model).items()}
    out.mkdir(parents=True, exist_ok=True)
    for name, program in programs.items():
        program.save(str(out / f"{name}.onnx"))


def graphs(model: Exportable) -> dict[str, Graph]:
    """Return the graphs of a model.

    Args:
        model: the model to export; it is not changed.

    Returns:
        Graphs by file name.
    """
    copy = _by_equation(model)
    ids, fewer = (torch.ones((_BATCH, size), dtype=torch.int64) for size in (_LONG, _LONG - 1))
    lengths = torch.arange(_LONG, _LONG - _BATCH, -1)
    match copy:
        case TransformerTranslator():
            memory = torch.zeros(_BATCH, _LONG, copy.config.width)
            source = {"source": (ids, ("batch", "source")), "lengths": (lengths, ("batch",))}
            read = {"memory": (memory, ("batch", "source")), "lengths": (lengths, ("batch",))}
            target = {"target": (fewer, ("batch", "target"))}
            return {
                "encoder": Graph(_Encoder(copy), source, "memory", {}),
                "decoder": Graph(_Decoder(copy), read | target, "logits", {}),
            }
        case LanguageModel():
            tokens = {"tokens": (ids, ("batch", "tokens"))}
            longest = {"tokens": copy.config.context} if copy.config.positions == "learned" else {}
            return {"model": Graph(copy, tokens, "logits", longest)}
        case TextClassifier() | TextTagger():
            inputs = {"ids": (ids, ("batch", "tokens")), "lengths": (lengths, ("batch",))}
            words = {"words": (fewer, ("batch", "words"))} if isinstance(copy, TextTagger) else {}
            return {"model": Graph(copy, inputs | words, "logits", {})}


@final
class _Encoder(nn.Module):
    def __init__(self, model: TransformerTranslator) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        return self.model.read(source, lengths)[1]


@final
class _Decoder(nn.Module):
    def __init__(self, model: TransformerTranslator) -> None:
        super().__init__()
        self.model = model

    def forward(self, memory: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        blocks = [block for block in self.model.decoder if isinstance(block, DecoderBlock)]
        state = TransformerState(tuple(block.begin(memory) for block in blocks), lengths, 0)
        logits: Tensor = self.model.output(self.model.advance(target, state)[0])
        return logits


def _by_equation(model: Exportable) -> Exportable:
    """Copy a model with its attention replaced by plain PyTorch operations, the only ones that ONNX knows."""
    copy = deepcopy(model).eval().float().cpu()
    for layer in copy.modules():
        if isinstance(layer, Attention):
            layer.backend = "reference"
    return copy


def _program(graph: Graph) -> Any:
    axes = dict.fromkeys(axis for _, names in graph.inputs.values() for axis in names)
    sizes = {axis: torch.export.Dim(axis, min=1, max=graph.longest.get(axis)) for axis in axes}
    shapes = tuple({place: sizes[axis] for place, axis in enumerate(names)} for _, names in graph.inputs.values())
    examples = tuple(example for example, _ in graph.inputs.values())
    with torch.no_grad(), _quiet():
        program = torch.export.export(graph.module, examples, dynamic_shapes=shapes)
        return torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=list(graph.inputs), output_names=[graph.output]
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the warnings of PyTorch's exporter about its own deprecated calls and missing torchvision."""
    told = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = told.level
    told.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        told.setLevel(level)


def _check_parts(model: Exportable) -> None:
    config: Any = model.config
    if isinstance(model, TextClassifier | TextTagger) and model.reader.recurrent is not None:
        hint = "Train with --model transformer or none."
        raise UnsupportedError(error_message("--to", "an encoder that can be exported to ONNX", config.encoder, hint))
    if isinstance(model, TextClassifier) and model.wide is not None:
        hint = "Train without wide under [model]."
        raise UnsupportedError(error_message("--to", "a model that reads only tokens", "one with a wide part", hint))
    if isinstance(model, TransformerTranslator) and config.encoder is not None:
        hint = "Train with --model transformer."
        raise UnsupportedError(error_message("--to", "an encoder that can be exported to ONNX", config.encoder, hint))
    if config.window is not None:
        hint = "Train without --window."
        raise UnsupportedError(error_message("--to", "attention to all earlier positions", "a sliding window", hint))


def _check_libraries() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        hint = "Install it: pip install qkv[export]."
        raise ConfigError(error_message("--to", "an installed library", f"{error}", hint)) from None
