"""What the viewer shows: token sequences, and the attention layers between them, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from torch import Tensor

from qkv.errors import ConfigError, DtypeError, ShapeError, error_message, nearest
from qkv.introspect.lazy_map import AttentionMap, attention_map
from qkv.normalizers.row_state import RowState
from qkv.shapes import show

OPTIONS = ("score", "normalizer", "mask", "bias", "enable_gqa")
"""What of a mechanism a layer may name, as `qkv.attention` does."""


@final
@dataclass(frozen=True, eq=False)
class Inputs:
    """What the projections of a layer were given, and the projections.

    Args:
        query_input: (Q, M).
        key_input: (K, M').
        value_input: (K, M'').
        query_weight, key_weight, value_weight: (out, in); None if the input is taken as it is.
        query_bias, key_bias, value_bias: (out); None if nothing is added.
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
@dataclass(frozen=True, eq=False)
class Layer:
    """One attention of one item: what it was given, and what it makes of it.

    Args:
        name: its path in the model.
        kind: whether a sequence looks at itself.
        queries, keys: the names of the sequences that look and are looked at.
        query: (H, Q, D).
        key: (G, K, E); G = H, or a divisor of H with `enable_gqa`.
        value: (G, K, V).
        options: score, normalizer, mask, bias and enable_gqa as for `qkv.attention`, where they are not its defaults.
        state: of the rows, (H, Q); None to compute it when it is first needed.
        output: weight (M, H·V) and bias of the projection of the joined heads; None if there is none.
        inputs: what the projections were given; None if there are none.

    Raises:
        ShapeError: tensors that do not fit together.
        ConfigError: an option that `qkv.attention` does not have.

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
    inputs: Inputs | None = None

    def __post_init__(self) -> None:
        for name in self.options:
            if name not in OPTIONS:
                raise ConfigError(
                    error_message("options", "what `attention` takes", repr(name), nearest(name, OPTIONS))
                )
        for argument, tensor in (("query", self.query), ("key", self.key), ("value", self.value)):
            if tensor.ndim != 3:
                hint = "A layer of a scene is one item: its heads, positions, widths."
                raise ShapeError(error_message(argument, "(heads, positions, width)", show(tuple(tensor.shape)), hint))
        if self.key.shape[:2] != self.value.shape[:2]:
            got = show(tuple(self.value.shape))
            raise ShapeError(error_message("value", f"{self.key.shape[:2]} as key", got, "Every key needs its value."))

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

        Where the layer has no row state this computes it, one pass over the matrix: keep the map.
        """
        return attention_map(self.query, self.key, state=self.state, **self.options)


@final
@dataclass(frozen=True, eq=False)
class Scene:
    """What the viewer shows.

    Args:
        title: a line above it.
        sequences: the tokens by the name of their sequence: "source" and "target", or "text".
        layers: the attentions between them, in the order of the model.
        notes: for a sequence, one word for each token: "unknown", "copied", or "".

    Raises:
        DtypeError: tokens that are not strings.
        ShapeError: a layer whose positions are not the tokens of its sequences, or notes that are not.
        ConfigError: a layer or notes of a sequence that is not there; two layers of one name.

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

    def __post_init__(self) -> None:
        for name, tokens in self.sequences.items():
            if not isinstance(tokens, tuple) or not all(isinstance(token, str) for token in tokens):
                hint = 'Give the tokens one by one, for instance ("ein", "Hund").'
                raise DtypeError(
                    error_message(f"sequences[{name!r}]", "a tuple of strings", type(tokens).__name__, hint)
                )
        for name, notes in self.notes.items():
            self._expect(name, len(notes), f"notes[{name!r}]")
        for layer in self.layers:
            self._expect(layer.queries, layer.query.shape[1], f"queries of {layer.name}")
            self._expect(layer.keys, layer.key.shape[1], f"keys of {layer.name}")
        names = [layer.name for layer in self.layers]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(
                error_message("layers", "one of each name", f"two of {twice!r}", "Give each its own name.")
            )

    def layer(self, name: str) -> Layer:
        """The layer of a name.

        Raises:
            ConfigError: there is none; gives the nearest.
        """
        found = next((layer for layer in self.layers if layer.name == name), None)
        if found is None:
            hint = nearest(name, [layer.name for layer in self.layers])
            raise ConfigError(error_message("layer", "the name of a layer", repr(name), hint))
        return found

    def _expect(self, sequence: str, count: int, what: str) -> None:
        if sequence not in self.sequences:
            hint = nearest(sequence, self.sequences)
            raise ConfigError(error_message(what, "the name of a sequence", repr(sequence), hint))
        tokens = len(self.sequences[sequence])
        if tokens != count:
            hint = "Each position needs one token."
            raise ShapeError(error_message(what, f"{tokens}, the tokens of {sequence!r}", str(count), hint))
