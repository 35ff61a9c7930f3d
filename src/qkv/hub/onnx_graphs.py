"""Export models as ONNX graphs."""

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

from qkv._version import VERSION
from qkv.engine.ties import compared_by_pairs
from qkv.errors import ConfigError, UnsupportedError, expect_enough_memory, setting
from qkv.hub.onnx_recurrent import translations, with_exported_layers
from qkv.models.checks import parts_of
from qkv.models.configs.translator import RecurrentConfig
from qkv.models.language_model import LanguageModel
from qkv.models.parts import TransformerParts
from qkv.models.reader import TextClassifier, TextTagger
from qkv.models.recurrent_translator import RecurrentState, RecurrentTranslator
from qkv.models.translator import TransformerState, TransformerTranslator
from qkv.nn.attention import Attention
from qkv.nn.blocks import BlockCache, TransformerBlock
from qkv.nn.decoding.cache import Memory

Exportable = TransformerTranslator | RecurrentTranslator | LanguageModel | TextClassifier | TextTagger
Inputs = dict[str, tuple[Tensor, tuple[str | None, ...]]]
_BATCH, _LONG = 3, 6
OPSET = 20
"""The version of ONNX's operators, whatever the version of PyTorch."""


@final
@dataclass(frozen=True, eq=False)
class Graph:
    """A graph to export to one file.

    Args:
        module: the computation, called with positional inputs.
        inputs: the name of each input, an example, and the names of its dynamic axes (None for a fixed size).
        outputs: the names of the outputs.
    """

    module: nn.Module
    inputs: Mapping[str, tuple[Tensor, tuple[str | None, ...]]]
    outputs: tuple[str, ...]


def to_onnx(model: Exportable, out: Path) -> None:
    """Write a model as ONNX graphs, for any batch size and any length.

    Attention is exported as its equation on the full matrix (backend "reference"), which every score and normalizer
    supports; memory grows with the square of the length.

    A Transformer translator becomes `encoder.onnx`, from `source` (B, S) and `lengths` (B,) to `memory` (B, S, M), and
    `decoder.onnx`, from `memory`, `lengths` and `target` (B, T), the begin token first, to `logits` (B, T, N); and for
    decoding with a cache `begin.onnx`, from `memory` to the keys and values of the source in each layer, and
    `step.onnx`, from `tokens` (B,), these, `lengths` and the keys and values of the target so far, of length 0 at the
    start, to `logits` (B, N) and the longer keys and values. A recurrent translator becomes `encoder.onnx`, to the
    state before the first step, and `step.onnx`, from `tokens` and a state to `logits` and the next state. All others
    become `model.onnx`, from the arguments of their `forward` to `logits`.

    Args:
        model: the model to export; it is not changed.
        out: the output folder; created if missing; files of an earlier export are replaced.

    Raises:
        ConfigError: a library is not installed.
        UnsupportedError: a part cannot be exported: a wide part, or the sliding window of a model that writes.
    """
    _check_libraries()
    _check_parts(model)
    longest = _longest(model)
    programs = {name: _program(graph, longest) for name, graph in graphs(model).items()}
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
    ids, shorter_ids = (torch.ones((_BATCH, size), dtype=torch.int64, device="cpu") for size in (_LONG, _LONG - 1))
    lengths = torch.arange(_LONG, _LONG - _BATCH, -1, device="cpu")
    match copy:
        case TransformerTranslator():
            decoding = _cached_decoding(copy, torch.zeros(_BATCH, _LONG, copy.parts.width, device="cpu"), lengths)
            with_exported_layers(copy)
            memory = torch.zeros(_BATCH, _LONG, copy.parts.width, device="cpu")
            source: Inputs = {"source": (ids, ("batch", "source")), "lengths": (lengths, ("batch",))}
            read: Inputs = {"memory": (memory, ("batch", "source")), "lengths": (lengths, ("batch",))}
            target: Inputs = {"target": (shorter_ids, ("batch", "target"))}
            return {
                "encoder": Graph(_Encoder(copy), source, ("memory",)),
                "decoder": Graph(_Decoder(copy), read | target, ("logits",)),
                **decoding,
            }
        case RecurrentTranslator():
            return _recurrent(copy, {"source": (ids, ("batch", "source")), "lengths": (lengths, ("batch",))})
        case LanguageModel():
            tokens: Inputs = {"tokens": (ids, ("batch", "tokens"))}
            return {"model": Graph(copy, tokens, ("logits",))}
        case TextClassifier() | TextTagger():
            with_exported_layers(copy)
            inputs: Inputs = {"ids": (ids, ("batch", "tokens")), "lengths": (lengths, ("batch",))}
            words: Inputs = {"words": (shorter_ids, ("batch", "words"))} if isinstance(copy, TextTagger) else {}
            return {"model": Graph(copy, inputs | words, ("logits",))}


def _longest(model: Exportable) -> dict[str, int]:
    """Return the maximum sizes of axes, by name, if positions are learned."""
    parts = getattr(model, "parts", None)
    if not isinstance(parts, TransformerParts) or parts.positions.kind != "learned":
        return {}
    return {**dict.fromkeys(("tokens", "source", "target"), parts.context), "past": parts.context - 1}


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
        blocks = parts_of(self.model.decoder, TransformerBlock, "decoder")
        state = TransformerState(tuple(block.begin(memory) for block in blocks), lengths, 0)
        return self.model.predict(target, state)[0]


def _cached_decoding(model: TransformerTranslator, memory: Tensor, lengths: Tensor) -> dict[str, Graph]:
    """Return the graphs of decoding with a cache: the source's keys and values, and one step."""
    with torch.no_grad():
        source = _Begin(model)(memory)
    sides = [f"{part}_{layer}" for layer in range(len(source) // 2) for part in ("key", "value")]
    crossing: Inputs = {
        f"source_{name}": (tensor, _by_position(tensor, "source")) for name, tensor in zip(sides, source, strict=True)
    }
    past: Inputs = {
        f"past_{name}": (tensor[..., : _LONG - 2, :].clone(), _by_position(tensor, "past"))
        for name, tensor in zip(sides, _past_like(model, _BATCH, _LONG), strict=True)
    }
    tokens: Inputs = {
        "tokens": (torch.ones(_BATCH, dtype=torch.int64, device="cpu"), ("batch",)),
        "lengths": (lengths, ("batch",)),
    }
    return {
        "begin": Graph(_Begin(model), {"memory": (memory, ("batch", "source"))}, tuple(crossing)),
        "step": Graph(_ExportedStep(model), tokens | crossing | past, ("logits", *(f"next_{name}" for name in sides))),
    }


def _past_like(model: TransformerTranslator, batch: int, length: int) -> list[Tensor]:
    """Return keys and values of a target, as the layers of a decoder keep them."""
    with torch.no_grad():
        state = model.start(
            torch.ones(batch, 1, dtype=torch.int64, device="cpu"), torch.ones(batch, dtype=torch.int64, device="cpu")
        )
        _, after = model.advance(torch.ones(batch, length, dtype=torch.int64, device="cpu"), state)
    return [part for cache in after.caches if cache.past is not None for part in (cache.past.key, cache.past.value)]


def _by_position(tensor: Tensor, length: str) -> tuple[str | None, ...]:
    """Name the axes of keys or values (B, …, K, F)."""
    return ("batch", *(None,) * (tensor.ndim - 3), length, None)


@final
class _Begin(nn.Module):
    def __init__(self, model: TransformerTranslator) -> None:
        super().__init__()
        self.model = model

    def forward(self, memory: Tensor) -> tuple[Tensor, ...]:
        blocks = parts_of(self.model.decoder, TransformerBlock, "decoder")
        sources = [block.begin(memory).memory for block in blocks]
        return tuple(part for source in sources if source is not None for part in (source.key, source.value))


@final
class _ExportedStep(nn.Module):
    def __init__(self, model: TransformerTranslator) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, lengths: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        half = len(tensors) // 2
        source, past = (
            [Memory(key, value) for key, value in zip(part[::2], part[1::2], strict=True)]
            for part in (tensors[:half], tensors[half:])
        )
        caches = tuple(BlockCache(before, memory) for before, memory in zip(past, source, strict=True))
        state = TransformerState(caches, lengths, past[0].key.shape[-2])
        logits, after = self.model.step(tokens, state)
        memories = [cache.past for cache in after.caches if cache.past is not None]
        return logits, *(part for memory in memories for part in (memory.key, memory.value))


def _recurrent(
    model: RecurrentTranslator, source: Mapping[str, tuple[Tensor, tuple[str | None, ...]]]
) -> dict[str, Graph]:
    """Return the graphs of a recurrent translator: the state before the first step, and one step."""
    encoder = _RecurrentEncoder(model)
    examples = {name: tensor for name, (tensor, _) in source.items()}
    with torch.no_grad():
        state = model.start(examples["source"], examples["lengths"])
    # The layers of a decoder start from one state: as one example, they would become one input.
    parts = {name: tensor.clone() for name, tensor in _parts(state).items()}
    axes = {name: _axes(name, tensor) for name, tensor in parts.items()}
    tokens: Inputs = {
        "tokens": (torch.ones(_BATCH, dtype=torch.int64, device="cpu"), ("batch",)),
        "lengths": source["lengths"],
    }
    states: Inputs = {name: (tensor, axes[name]) for name, tensor in parts.items()}
    with_exported_layers(encoder)
    changing = tuple(f"next_{name}" for name in parts if name.startswith(("hidden", "alignment")))
    return {
        "encoder": Graph(encoder, source, tuple(parts)),
        "step": Graph(_RecurrentStep(model, tuple(parts)), tokens | states, ("logits", *changing)),
    }


def _axes(name: str, tensor: Tensor) -> tuple[str | None, ...]:
    if name in ("keys", "values"):
        return _by_position(tensor, "source")
    return ("batch", "source") if name == "alignment" else ("batch", None)


def _parts(state: RecurrentState) -> dict[str, Tensor]:
    """Return the tensors of a state by name, without the lengths, which are the caller's."""
    hidden = {f"hidden_{index}": part for index, part in enumerate(state.hidden)}
    alignment = {} if state.alignment is None else {"alignment": state.alignment}
    return {"keys": state.keys, "values": state.values, "summary": state.summary, **hidden, **alignment}


@final
class _RecurrentEncoder(nn.Module):
    def __init__(self, model: RecurrentTranslator) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        # A tensor that is several outputs would lose their names.
        return tuple(part.clone() for part in _parts(self.model.start(source, lengths)).values())


@final
class _RecurrentStep(nn.Module):
    def __init__(self, model: RecurrentTranslator, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, tokens: Tensor, lengths: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        state = dict(zip(self.names, tensors, strict=True))
        hidden = tuple(part for name, part in state.items() if name.startswith("hidden"))
        rest = state["keys"], state["values"], lengths, state["summary"]
        logits, after = self.model.step(tokens, RecurrentState(hidden, *rest, alignment=state.get("alignment")))
        return logits, *after.hidden, *(() if after.alignment is None else (after.alignment,))


def _by_equation(model: Exportable) -> Exportable:
    """Copy a model with its attention replaced by plain PyTorch operations, the only ones that ONNX knows."""
    copy = deepcopy(model).eval().float().cpu()
    for layer in copy.modules():
        if isinstance(layer, Attention):
            layer.backend = "reference"
    return copy


def _program(graph: Graph, longest: Mapping[str, int]) -> Any:
    axes = dict.fromkeys(axis for _, names in graph.inputs.values() for axis in names if axis is not None)
    sizes = {axis: torch.export.Dim(axis, min=1, max=longest.get(axis)) for axis in axes}
    shapes: tuple[Any, ...] = tuple(
        {index: sizes[axis] for index, axis in enumerate(names) if axis is not None}
        for _, names in graph.inputs.values()
    )
    examples = tuple(example for example, _ in graph.inputs.values())
    if isinstance(graph.module, _ExportedStep | _RecurrentStep):
        shapes = (*shapes[:2], shapes[2:])  # the others are one argument, `*tensors`
    with torch.no_grad(), compared_by_pairs(), _quiet():
        program = torch.export.export(graph.module, examples, dynamic_shapes=shapes)
        exported = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            verbose=False,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            custom_translation_table=translations(),
        )
    assert exported is not None
    exported.model.producer_name, exported.model.producer_version = "qkv", VERSION
    return exported


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the warnings of PyTorch's exporter about its own deprecated calls and missing torchvision."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)


def _check_parts(model: Exportable) -> None:
    if isinstance(model, TextClassifier) and model.wide is not None:
        hint = "Train without wide under [model]."
        raise UnsupportedError(setting("to"), "a model that reads only tokens", "one with a wide part", hint)
    sizes: RecurrentConfig | TransformerParts = model.config if isinstance(model, RecurrentTranslator) else model.parts
    if sizes.window is not None and not isinstance(model, TextClassifier | TextTagger):
        hint = "Train without " + setting("window") + "."
        if isinstance(sizes, TransformerParts) and sizes.settings:
            hint = "Use " + setting("to", "transformers") + ": the converters to ONNX of that library read the folder."
        raise UnsupportedError(setting("to"), "attention to all earlier positions", "a sliding window", hint)


def _check_libraries() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        expect_enough_memory(error)
        hint = "Install it: in the checkout, pip install '.[export]'."
        raise ConfigError(setting("to"), "an installed library", f"{error}", hint) from None
