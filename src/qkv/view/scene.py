"""The contents of the viewer, as values: token sequences, and the attention layers between them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from torch import Tensor

from qkv.errors import ConfigError, DtypeError, ShapeError, expect_name
from qkv.introspect.lazy_map import AttentionMap, attention_map
from qkv.normalizers.row_state import RowState
from qkv.shapes import show

OPTIONS = ("score", "normalizer", "mask", "bias", "enable_gqa")
"""The options of a mechanism that a layer can have, as in `qkv.attention`."""


@final
@dataclass(frozen=True, eq=False)
class ProjectedInputs:
    """The inputs of a layer's projections, and the projections.

    Args:
        query_input: (Q, M).
        key_input: (K, M').
        value_input: (K, M'').
        query_weight, key_weight, value_weight: (out, in); None for no projection.
        query_bias, key_bias, value_bias: (out); None for no bias.
    """

    query_input: Tensor
    key_input: Tensor
    value_input: Tensor
    query_weight: Tensor | None = None
    key_weight: Tensor | None = None
    value_weight: Tensor | None = None
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None


@final
@dataclass(frozen=True, eq=False, repr=False)
class Layer:
    """One attention of one item: its inputs and options.

    Args:
        name: its path in the model.
        kind: "self" or "cross".
        queries, keys: the names of the attending and the attended sequence.
        query: (H, Q, D).
        key: (G, K, E); G = H, or a divisor of H with `enable_gqa`.
        value: (G, K, V).
        options: score, normalizer, mask, bias and enable_gqa as for `qkv.attention`, if they differ from its defaults.
        state: row state, (H, Q); None to compute it when first needed.
        output: weight (M, H·V) and bias of the output projection; None if there is none.
        inputs: inputs of the projections; None if there are none.

    Raises:
        ShapeError: the tensors' shapes do not match.
        ConfigError: `qkv.attention` does not have one of the options.

    Example:
        >>> import torch
        >>> layer = Layer("encoder.0", "self", "text", "text", *torch.randn(3, 4, 10, 8))
        >>> layer.heads, layer.map().shape
        (4, (4, 10, 10))
    """

    name: str
    kind: Literal["self", "cross"]
    queries: str
    keys: str
    query: Tensor
    key: Tensor
    value: Tensor
    options: Mapping[str, Any] = field(default_factory=dict)
    state: RowState | None = None
    output: tuple[Tensor, Tensor | None] | None = None
    inputs: ProjectedInputs | None = None

    def __repr__(self) -> str:
        """Return name and sizes, without the tensors."""
        heads, queries, keys = self.shape
        sides = f"{queries:,} {self.queries} × {keys:,} {self.keys}"
        return f"Layer({self.name!r}, {self.kind!r}: {heads} heads, {sides} positions)"

    def __post_init__(self) -> None:
        for name in self.options:
            expect_name("options", name, OPTIONS, "an option of `attention`")
        for argument, tensor in (("query", self.query), ("key", self.key), ("value", self.value)):
            if tensor.ndim != 3:
                hint = "A layer of a scene is one item: its heads, positions, widths."
                raise ShapeError(argument, "(heads, positions, width)", show(tuple(tensor.shape)), hint)
        if self.key.shape[:2] != self.value.shape[:2]:
            got = show(tuple(self.value.shape))
            raise ShapeError("value", f"{self.key.shape[:2]} as key", got, "Every key needs a value.")

    @property
    def heads(self) -> int:
        """H."""
        return self.query.shape[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, Q, K)."""
        return self.query.shape[0], self.query.shape[1], self.key.shape[1]

    def map(self) -> AttentionMap:
        """The weights as a lazy matrix (H, Q, K).

        If the layer has no row state, this computes it in one pass over the matrix: reuse the map.
        """
        return attention_map(self.query, self.key, state=self.state, **self.options)


@final
@dataclass(frozen=True, eq=False)
class ModelAnswer:
    """What a model says about the text of a scene.

    Args:
        text: its answer; can be empty.
        labels: what each row of probabilities is about, such as the token that was written there.
        probabilities: (R, N).
        name: the name of one of the N options.
    """

    text: str
    labels: tuple[str, ...]
    probabilities: Tensor
    name: Callable[[int], str]


Rerun = Callable[[Mapping[str, Mapping[int, Any]]], ModelAnswer]
"""Runs the model of a scene again with changed heads, and with gradients if they are enabled: by layer and head "zero",
"mean" over the text, ("weights", function), or a function from the mechanism of the layer to parts that differ. Its
first pass gives the probabilities."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Scene:
    """The contents of the viewer.

    Args:
        title: the title.
        sequences: tokens by the name of their sequence: "source" and "target", or "text".
        layers: the attentions between them, in the order of the model.
        notes: for a sequence, one word per token: "unknown", "copied", or "".
        opening: the layer and the head that are shown first; no head for the mean over all. None for the layer that
            tells most, see `qkv.view.answers.opening`.
        rerun: runs the model again with changed heads; None if the model is not at hand.

    Raises:
        DtypeError: tokens are not strings.
        ShapeError: a layer's sizes, or the number of notes, differ from the number of tokens.
        ConfigError: a layer or notes belong to an unknown sequence, two layers have the same name, or the layer or
            the head that is shown first does not exist.

    Example:
        >>> import torch
        >>> layer = Layer("decoder", "cross", "target", "source", *torch.randn(3, 1, 2, 4))
        >>> Scene("a dog", {"source": ("ein", "Hund"), "target": ("a", "dog")}, (layer,)).layers[0].shape
        (1, 2, 2)
    """

    title: str
    sequences: Mapping[str, tuple[str, ...]]
    layers: tuple[Layer, ...]
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    opening: tuple[str, int | None] | None = None
    rerun: Rerun | None = None

    def __repr__(self) -> str:
        """Return title and sizes."""
        sides = ", ".join(f"{len(tokens):,} {name} tokens" for name, tokens in self.sequences.items())
        return f"Scene({self.title!r}: {sides}, {len(self.layers):,} layers)"

    def __post_init__(self) -> None:
        for name, tokens in self.sequences.items():
            if not isinstance(tokens, tuple) or not all(isinstance(token, str) for token in tokens):
                hint = 'Give a tuple of tokens, for example ("ein", "Hund").'
                raise DtypeError(f"sequences[{name!r}]", "a tuple of strings", type(tokens).__name__, hint)
        for name, notes in self.notes.items():
            self._expect(name, len(notes), f"notes[{name!r}]")
        for layer in self.layers:
            self._expect(layer.queries, layer.query.shape[1], f"queries of {layer.name}")
            self._expect(layer.keys, layer.key.shape[1], f"keys of {layer.name}")
        names = [layer.name for layer in self.layers]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(
                "layers", "distinct names", f"two layers named {twice!r}", "Give each layer its own name."
            )

        if self.opening is not None:
            layer, head = self.layer(self.opening[0]), self.opening[1]
            if head is not None and not 0 <= head < layer.heads:
                hint = "None shows the mean over all heads."
                raise ConfigError("opening", f"a head from 0 to {layer.heads - 1} of {layer.name}", f"{head}", hint)

    def layer(self, name: str) -> Layer:
        """Return the layer with a name.

        Raises:
            ConfigError: there is none; the message suggests the closest name.
        """
        layers = {layer.name: layer for layer in self.layers}
        return layers[expect_name("layer", name, layers, "the name of a layer")]

    def _expect(self, sequence: str, count: int, what: str) -> None:
        expect_name(what, sequence, self.sequences, "the name of a sequence")
        tokens = len(self.sequences[sequence])
        if tokens != count:
            hint = "Give one token per position."
            raise ShapeError(what, f"{tokens}, the tokens of {sequence!r}", str(count), hint)
