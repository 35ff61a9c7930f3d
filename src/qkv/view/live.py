"""A trained network as data for a page that computes: weights of int8, and what every attention is."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

import torch
from torch import nn

from qkv.checkpoint.disk import save_file
from qkv.errors import ConfigError, UnsupportedError, setting
from qkv.files import expect_suffix
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.nn.attention import Attention
from qkv.nn.biases import AlibiBias, RelativeBias
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.pooling import Pool
from qkv.nn.positions import Rotary
from qkv.nn.scores import AdditiveScore, BilinearScore, LearnedScore, ScoreModule
from qkv.normalizers.base import Normalizer
from qkv.normalizers.catalog import NORMALIZERS
from qkv.normalizers.kinds import optional_normalizer
from qkv.normalizers.steps import equation_of as normalizer_equation
from qkv.scores.base import Score
from qkv.scores.catalog import SCORES
from qkv.scores.free import Uniform
from qkv.scores.steps import equation_of as score_equation
from qkv.scores.sums import Additive
from qkv.view.answers.head import HeadIndex, default_normalizer, part_of
from qkv.view.bundle import framed, one_file
from qkv.view.layer_names import short_names
from qkv.view.tensors import Tensors, quantized

LARGEST = 50 << 20
"""Maximum bytes of a page."""
_SCORES_OF = (".score.", ".normalizer.")
M = TypeVar("M", bound=nn.Module)


def lacks(what: str, hint: str) -> UnsupportedError:
    """Return the error about a model that a page cannot compute.

    Example:
        >>> print(lacks("copied words", "Train without."))
        live: expected what a page can compute; got copied words. Train without.
    """
    return UnsupportedError(setting("live"), "what a page can compute", what, hint)


def rounded_to_int8(model: M) -> M:
    """Return a copy of a model with the weights that its page has: each row of a matrix is a scale times int8.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> _ = layer.weight.data.copy_(torch.tensor([[1.27, 0.504]]))
        >>> rounded_to_int8(layer).weight.data
        tensor([[1.2700, 0.5000]])
    """
    copy = deepcopy(model)
    with torch.no_grad():
        for parameter in copy.parameters():
            if parameter.ndim > 1:
                steps, scales = quantized(parameter)
                parameter.copy_(steps.float() * scales)
    return copy


@final
class Network:
    """The weights and the attentions of a model, as the page reads them (`static/network.js`).

    Args:
        model: the model, with weights of `rounded_to_int8`.

    Attributes:
        tensors: the weights, by their names in the model.
        attentions: the attentions by their path in the model, in its order.

    Raises:
        UnsupportedError: an attention has a part that a page cannot compute.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.tensors = Tensors(torch.int8)
        self._add_weights()
        names = [name for name, module in model.named_modules() if isinstance(module, Attention)]
        self.attentions = {
            name: self._attention(name) | {"short": short}
            for name, short in zip(names, short_names(names), strict=True)
        }

    def _add_weights(self) -> None:
        listed = self.tensors.listed
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            if any(part in f".{name}" for part in _SCORES_OF):
                continue
            stored = self.tensors.add(name, parameter)["tensor"]
            listed[name] = listed[stored]

    def _attention(self, name: str) -> dict[str, Any]:
        parent_name = name.removesuffix("attention").removesuffix(".")
        parent, attention = self.model.get_submodule(parent_name), self.model.get_submodule(name)
        heads, groups, module, positions = 1, 1, getattr(parent, "score", None), None
        if isinstance(parent, MultiHeadAttention):
            heads, groups, positions = parent.heads, parent.key_heads, parent.positions
        elif not isinstance(parent, Pool | RecurrentTranslator):
            raise lacks(f"an attention of {type(parent).__name__}", "Use a model that was trained with the defaults.")
        cross = "cross" in name or not isinstance(parent, MultiHeadAttention) or name.startswith("multihead")
        score = _pool_score(parent) if isinstance(parent, Pool) else _projected(module)
        own = optional_normalizer(parent.normalizer) or optional_normalizer(attention.normalizer)
        normalizer = default_normalizer(score) if own is None else own
        first = HeadIndex(heads, groups, 0)
        of_score, of_weights = score_equation(part_of(score, first)), normalizer_equation(part_of(normalizer, first))
        return {
            "kind": "cross" if cross else "self",
            "heads": heads,
            "groups": groups,
            "score": self._part(f"{name}.score", SCORES, score, heads, groups, module),
            "normalizer": self._part(f"{name}.normalizer", NORMALIZERS, normalizer, heads, groups),
            "project": self._projections(name, module, heads, groups),
            "rotary": _base(positions) if isinstance(positions, Rotary) else None,
            "bias": self._bias(name, positions, heads),
            "equation": f"{of_score}; {of_weights}; o = Σ w v",
        }

    def _part(
        self, name: str, catalog: Any, value: Score | Normalizer, heads: int, groups: int, module: object = None
    ) -> dict[str, Any]:
        """Describe a score or normalizer: its name, and its numbers by head."""
        if isinstance(module, LearnedScore):
            tensors = {"query_weight": module.query.weight, "query_bias": module.query.bias}
            tensors |= {"key_weight": module.key.weight, "vector": module.vector}
            return {"name": "learned", "heads": [self.tensors.numbers(name, tensors)] * heads}
        part = self.tensors.part(name, catalog, value, heads, groups)
        if part is None:
            raise lacks(f"the function {type(value).__name__}", "Use a score and a normalizer with a name.")
        return part

    def _projections(self, name: str, score: object, heads: int, groups: int) -> dict[str, Any]:
        """Return the matrices that a score applies once to queries and keys, one for each head."""
        query = key = None
        if isinstance(score, AdditiveScore):
            query, key = score.query_weight, score.key_weight
        elif isinstance(score, BilinearScore):
            query = score.weight
        columns = {"columns": True} if isinstance(score, BilinearScore) else {}  # qᵀM
        sides = {"query": (query, heads), "key": (key, groups)}
        return {
            side: None
            if weight is None
            else [
                self.tensors.add(f"{name}.{side}.{head}", weight if weight.ndim == 2 else weight[head]) | columns
                for head in range(count)
            ]
            for side, (weight, count) in sides.items()
        }

    def _bias(self, name: str, positions: object, heads: int) -> dict[str, Any] | None:
        if isinstance(positions, AlibiBias):
            slopes = -positions(1, 2)[:, 0, 1]
            return {"name": "alibi", "heads": [float(slope) for slope in slopes.expand(heads)]}
        if isinstance(positions, RelativeBias):
            tables = positions.table.expand(heads, -1)
            stored = [self.tensors.add(f"{name}.bias.{head}", tables[head]) for head in range(heads)]
            return {"name": "relative", "heads": stored}
        if positions is None or isinstance(positions, Rotary):
            return None
        raise lacks(f"positions of {type(positions).__name__}", "Train with other positions.")


def _projected(module: object) -> Score:
    if not isinstance(module, ScoreModule):
        hint = "Train with another score than " + setting("score", "location") + "."
        raise lacks(f"a score of {type(module).__name__}", hint)
    return module.projected()


def _pool_score(pool: Pool) -> Score:
    if pool.vector is not None:
        return Additive(pool.vector)
    if pool.score is None:
        return Uniform()
    if isinstance(pool.score, AdditiveScore | BilinearScore):
        return pool.score.projected()
    return pool.score.value()


def _base(positions: Rotary) -> float:
    if positions.share != 1 or positions.scaling is not None:
        raise lacks("scaled rotary positions", "Train with the usual ones.")
    return positions.base


class LiveModel(NamedTuple):
    """What a page that computes needs besides the weights.

    Attributes:
        network: weights and attentions.
        parts: the rest of the model, see `Parts` in `static/models.js`.
        tokenizers: the vocabularies of sources and targets, as their JSON.
        labels: of a classifier.
        longest: maximum tokens of a text.
    """

    network: Network
    parts: Mapping[str, Any]
    tokenizers: Mapping[str, Any]
    labels: tuple[str, ...]
    longest: int


@final
@dataclass(frozen=True, repr=False)
class LivePage:
    """A page that runs a model.

    Args:
        text: the page.
        title: the name of the page.
        checked: how many texts were answered with the weights before and after rounding.
        differ: how many of their answers differ.
    """

    text: str
    title: str
    checked: int
    differ: int

    def save(self, path: str | Path) -> None:
        """Write the page, a file `.html`; an existing one is replaced.

        Raises:
            ConfigError: the name has another suffix, or the file cannot be written.
        """
        expect_suffix("path", file := Path(path), (".html",))
        save_file(file, self.text.encode())

    def __repr__(self) -> str:
        """Return the title, and the size."""
        return f"LivePage({self.title!r}: {len(self.text) / 1e6:.1f} MB, {self.differ} of {self.checked} texts differ)"

    def _repr_html_(self) -> str:
        return framed(self.text, self.title, 960)  # the text to type stands above the views


def live_data(model: LiveModel) -> dict[str, Any]:
    """Return a model as JSON, as `model` in `static/answering.js` reads it."""
    network = model.network
    stored = {"tensors": network.tensors.listed, "attentions": network.attentions}
    return {**model._asdict(), "network": stored, "bytes": network.tensors.packed()}


def live_page(model: LiveModel, texts: Sequence[str], title: str, compared: Mapping[str, Any]) -> str:
    """Build a page that computes: it reads a text that is typed, answers, and shows what every layer attends to.

    Args:
        model: the model.
        texts: examples; the first one is read first.
        title: the name of the run.
        compared: how many texts were `checked`, how many of them `differ` in their answer from that with the weights
            before rounding, and the `opening`: the layer that is shown first, and its head, or None for the mean.

    Returns:
        The page, one file that works from disk and makes no requests.

    Raises:
        ConfigError: the page would be larger than 50 MB.
    """
    content = {**live_data(model), **compared, "texts": texts, "title": title}
    text = one_file("play.js", content)
    if len(text) > LARGEST:
        count = sum(parameter.numel() for parameter in model.network.model.parameters())
        hint = f"It has {count:,} parameters of one byte each: train a smaller model, or omit " + setting("live") + "."
        raise ConfigError(setting("live"), f"a page of at most {LARGEST >> 20} MB", f"{len(text) / 2**20:.0f} MB", hint)
    return text
