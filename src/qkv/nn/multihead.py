"""Multi-head attention: several attentions in parallel, each in its own subspace."""

import warnings
from collections.abc import Mapping
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn

from qkv.argument_names import CALL, LAYER, explain_arguments
from qkv.biases import Bias
from qkv.errors import CheckpointError, ConfigError, UnsupportedError, expect_name
from qkv.functional import attention_with_state
from qkv.linalg.matmul import apply_layer
from qkv.linalg.session import DecodingSession
from qkv.masks.base import Mask
from qkv.nn.attention import Also, Attention
from qkv.nn.biases import BiasModule, at_positions, bias_of
from qkv.nn.decoding.cache import Memory
from qkv.nn.inputs import expect_optional_sizes, expect_sizes
from qkv.nn.mechanism import MechanismConfig
from qkv.nn.normalizers import NormalizerModule, module_or_value
from qkv.nn.positions import Rotary
from qkv.nn.projections import Projections, projections_of_torch
from qkv.nn.scores import CalledScore, DotScore, FixedScore, ScoreModule, ScoreParts, initialize_linear, score_of
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Softmax
from qkv.normalizers.kinds import BLURRED, as_normalizer, optional_normalizer
from qkv.normalizers.row_state import RowState, merge
from qkv.scores.base import Score
from qkv.scores.pointwise import KERNEL_SHAPES
from qkv.scores.products import ScaledDot
from qkv.shapes import nearest_divisors
from qkv.values.checked import checked
from qkv.values.hooks import through_hooks
from qkv.values.parameters import expect_floats
from qkv.values.plain_modules import plain_weights

Part = Literal["value", "output"]
_NAMES_OF_TORCH = ("in_proj_weight", "q_proj_weight")
"""Weights of PyTorch's layer, of which it has one or the other."""


@checked
@final
class MultiHeadAttention(nn.Module):
    """Concat(head_1, …, head_H) W_O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), for any score and normalizer.

    Args:
        width: M, width of the query input and of the output.
        heads: H.
        key_width: width of the key input; None for `width`.
        value_width: width of the value input; None for `key_width`.
        key_heads: G, the heads of keys and values, a divisor of H (grouped-query attention); None for H.
        score: the name of a score, see `qkv.nn.MechanismConfig`, with parameters per head if learned; or a value of
            `qkv.scores`; or a module of `qkv.nn` for heads of width M/H; or a `MechanismConfig`, which has a normalizer
            too.
        normalizer: a value of `qkv.normalizers` or a learned module of `qkv.nn`; None for the score's default.
        dropout: the fraction of weights dropped in training.
        bias: whether projections have a bias; "inputs" gives one to those of query, key and value alone.
        leave_out: "value" for no value projection; "output" for no output projection: heads are concatenated but not
            mixed.
        positions: positions for self-attention: `nn.Rotary()`, `nn.AlibiBias(heads)` or `nn.RelativeBias(reach,
            heads)`; None if the inputs contain them.
        head_width: D; None for M/H.
        norms: norms of each head's queries and keys, before rotary positions; None for none.
        extra_key: whether each head has one more key and value, learned, which every query sees whatever the mask (the
            `add_bias_kv` of PyTorch's layer). A key with score 0 and value 0 is `Softmax(sink=0.0)`.

    Raises:
        ConfigError: heads do not divide the width or each other, a name is unknown, or the score does not support
            these positions.
        UnsupportedError: an extra key, and a normalizer whose weights of a key depend on all the others.

    Source: Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023, "GQA", section 2.2; Su et al. 2021, "RoFormer".

    Example:
        >>> attend = MultiHeadAttention(width=32, heads=4)
        >>> x, memory = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
        >>> attend(x).shape, attend(x, memory).shape
        (torch.Size([2, 5, 32]), torch.Size([2, 5, 32]))
    """

    @explain_arguments(LAYER)
    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        key_heads: int | None = None,
        score: str | Score | ScoreModule | MechanismConfig = "scaled_dot",
        normalizer: Normalizer | NormalizerModule | None = None,
        dropout: float = 0.0,
        bias: bool | Literal["inputs"] = True,
        leave_out: tuple[Part, ...] = (),
        positions: Rotary | BiasModule | None = None,
        head_width: int | None = None,
        norms: tuple[nn.Module, nn.Module] | None = None,
        extra_key: bool = False,
    ) -> None:
        super().__init__()
        if bias not in (True, False, "inputs"):
            raise ConfigError("bias", 'True, False or "inputs"', repr(bias), 'With "inputs" the output has none.')
        expect_sizes(width=width, heads=heads)
        expect_optional_sizes(key_heads=key_heads, key_width=key_width, value_width=value_width, head_width=head_width)
        groups = heads if key_heads is None else key_heads
        _check_heads(width, heads, groups, leave_out, divides=head_width is None)
        head = width // heads if head_width is None else head_width
        key_width = width if key_width is None else key_width
        value_width = key_width if value_width is None else value_width
        self.width, self.heads, self.key_heads = width, heads, groups
        sizes = (heads * head, groups * head, 0 if "value" in leave_out else groups * head)
        self.projections = Projections((width, key_width, value_width), sizes, head, bias=bool(bias))
        self.query_norm = None if norms is None else norms[0]
        self.key_norm = None if norms is None else norms[1]
        self.score = _score(score, head, heads, groups)
        self.positions = positions
        _check_positions(positions, self.score, head)
        if isinstance(score, MechanismConfig) and normalizer is None:
            normalizer = score.normalizer_part(heads)
        elif _blurs(self.score, normalizer):
            warnings.warn(f"score and normalizer: {BLURRED}", stacklevel=3)
        self.normalizer, fixed = module_or_value(normalizer)
        self.attention = Attention(normalizer=fixed, dropout=dropout, also="state" if extra_key else None)
        self.extra_key = nn.Parameter(torch.empty(groups, 1, head)) if extra_key else None
        value_head = head if sizes[2] else value_width
        self.extra_value = nn.Parameter(torch.empty(groups, 1, value_head)) if extra_key else None
        if extra_key:
            _check_mergeable(normalizer)
        joined = sizes[0] if sizes[2] else heads * value_width
        self.output = None if "output" in leave_out else nn.Linear(joined, width, bias=bias is True)
        self.register_load_state_dict_pre_hook(refuse_weights_of_torch)  # type: ignore[no-untyped-call]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters: each projection by Glorot's rule, biases zero.

        Queries of an unscaled dot product start smaller by a factor of √D (Raffel et al. 2020, T5): scores then start
        with the spread of scaled ones, where the softmax has a gradient.
        """
        head = self.projections.head
        self.projections.reset_parameters(head**-0.5 if isinstance(self.score, DotScore) else 1.0)
        for extra in (self.extra_key, self.extra_value):
            if extra is not None:
                nn.init.xavier_normal_(extra.data.transpose(0, 1).flatten(1))
        initialize_linear(self.output)

    @explain_arguments(CALL)
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Tensor | Bias | None = None,
        session: DecodingSession | None = None,
    ) -> Tensor:
        """Compute attention.

        Args:
            query: (B, Q, M).
            key: (B, K, key width); None for self-attention.
            value: (B, K, value width); None for `key`.
            mask: True where a query may attend; broadcasts to (B, H, Q, K).
            bias: added to the scores; broadcasts to (B, H, Q, K).
            session: keeps packed weights for a decoding, here and in the methods below.

        Returns:
            (B, Q, M); (B, Q, H·V) without an output projection.

        Raises:
            ShapeError: an input does not have the layer's width.
            DtypeError: an input is not a dense tensor of floating-point numbers, or is on another device.
        """
        if key is None and value is None:
            q, memory = self.extend(query, None, session)
        else:
            key = query if key is None else key
            q, memory = self.project_query(query, session), self.project_memory(key, value, session)
        return self._attend(q, memory, mask=mask, bias=bias, session=session)

    def project_query(self, query: Tensor, session: DecodingSession | None = None) -> Tensor:
        """Project queries by head for the score: (B, Q, M) to (B, H, Q, F)."""
        if self.positions is not None:
            hint = "Positions are relative to one sequence: create the cross-attention layer without them."
            raise ConfigError("positions", "none between two sequences", type(self.positions).__name__, hint)
        return self._query(self.projections.query(query, session), self._score())

    def project_memory(
        self, key: Tensor, value: Tensor | None = None, session: DecodingSession | None = None
    ) -> Memory:
        """Project keys and values by head, once per sentence: (B, K, width) to (B, G, K, F) and (B, G, K, V)."""
        value = key if value is None else value
        return self._remember(*self.projections.memory(key, value, session), self._score())

    def extend(
        self, x: Tensor, past: Memory | None, session: DecodingSession | None = None, at: int | None = None
    ) -> tuple[Tensor, Memory]:
        """Project new positions for self-attention, and append their keys and values to those kept.

        Args:
            x: (B, N, M), the new positions.
            past: what was kept; None at the start.
            session: gives memory for keys and values too.
            at: the one position of all of them, if they are alternatives; None if they follow one another.

        Returns:
            The new queries by head, and all keys and values.
        """
        q, k, v = self.projections.together(x, session)
        score = self._score()
        memory, query = self._remember(k, v, score), self._query(q, score)
        if isinstance(self.positions, Rotary):
            start = 0 if past is None else past.end
            query, key = (_rotated(self.positions, side, start, at) for side in (query, memory.key))
            memory = Memory(key, memory.value)
        return query, memory if past is None else past.append(memory, session)

    def attend(
        self,
        query: Tensor,
        memory: Memory,
        *,
        mask: Mask | Tensor | None = None,
        bias: Tensor | Bias | None = None,
        session: DecodingSession | None = None,
        indices: Tensor | None = None,
    ) -> Tensor:
        """Compute attention with projected queries, keys and values, within the hooks of this layer.

        Args:
            query: (B, H, Q, F), from `project_query` or `extend`.
            memory: from `project_memory` or `extend`.
            mask: True where a query may attend.
            bias: added to the scores.
            session: as for `forward`.
            indices: the position of each key (K,), if the queries, whose keys are the last ones, are alternatives; None
                if the keys follow one another.

        Returns:
            (B, Q, M).
        """
        options = {"mask": mask, "bias": bias, "session": session, "indices": indices}
        return through_hooks(self, self._attend, query, memory, **options)

    def _attend(
        self,
        query: Tensor,
        memory: Memory,
        mask: Mask | Tensor | None = None,
        bias: Tensor | Bias | None = None,
        session: DecodingSession | None = None,
        indices: Tensor | None = None,
    ) -> Tensor:
        result = self._call(query, memory, mask, bias, indices)
        return self._join(result if self.extra_key is None else self._with_extra(query, result), session)

    def attend_with_weights(
        self, query: Tensor, memory: Memory, *, mask: Mask | Tensor | None = None, bias: Tensor | Bias | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `attend`, and return the applied weights too, through which the graph of the output passes.

        Args:
            query, memory, mask, bias: as `attend` takes them.

        Returns:
            (B, Q, M), and the weights (B, H, Q, K).

        Raises:
            UnsupportedError: the layer has an extra key, which no column of the weights stands for.
        """
        if self.extra_key is not None:
            hint = "Call attend, which returns the output alone."
            raise UnsupportedError("attend_with_weights", "a layer without an extra key", "one", hint)
        heads, weights = self._call(query, memory, mask, bias, also="weights")
        return self._join(heads), weights

    def _call(
        self,
        query: Tensor,
        memory: Memory,
        mask: Mask | Tensor | None,
        bias: Tensor | Bias | None,
        indices: Tensor | None = None,
        also: Also | None = None,
    ) -> Any:
        """Return what the attention returns, by head."""
        if self.positions is not None and not isinstance(self.positions, Rotary):
            expect_floats("query", query, 3)
            if bias is not None:
                hint = "Omit one of the two, or expand the position bias and add them."
                raise ConfigError("bias", "no bias, because the layer's positions already are one", "both", hint)
            count = query.shape[-2]
            if indices is None:
                bias = bias_of(self.positions, count, memory.length, memory.length - count)
            else:
                bias = at_positions(self.positions, indices, count)
        return self.attention(
            query,
            memory.key,
            memory.value,
            score=self._score().projected(),
            normalizer=optional_normalizer(self.normalizer),
            mask=mask,
            bias=bias,
            enable_gqa=self.key_heads != self.heads,
            # Not by the attribute: another thread may call the module at the same time.
            **({} if also is None else {"also": also}),
        )

    def _join(self, heads: Tensor, session: DecodingSession | None = None) -> Tensor:
        """Put the heads side by side, and project them."""
        joined, output = heads.transpose(-3, -2).flatten(-2), self.output
        return joined if output is None else apply_layer(output, joined, session)

    def _with_extra(self, query: Tensor, result: tuple[Tensor, RowState]) -> Tensor:
        """Merge attention over the keys with attention over the extra one, which no mask hides."""
        assert self.extra_key is not None
        assert self.extra_value is not None
        key = self._score().project_key(self.extra_key).to(query.dtype)
        value = self.extra_value.to(query.dtype)
        score, normalizer = self.attention.mechanism(self._score().projected(), optional_normalizer(self.normalizer))
        extra = attention_with_state(
            query,
            key.expand(*query.shape[:-3], *key.shape),
            value.expand(*query.shape[:-3], *value.shape),
            score=score,
            # The other part has the sink.
            normalizer=Softmax() if isinstance(normalizer, Softmax) else normalizer,
            dropout=self.attention.dropout if self.training else 0.0,
            enable_gqa=self.key_heads != self.heads,
        )
        return merge([result, extra])[0]

    def _score(self) -> ScoreParts:
        score = score_of(self.score)
        if isinstance(score, CalledScore) and self.key_heads != self.heads:
            hint = "Give each head its own keys, or remove the hook and pass another score when the layer is created."
            ours = isinstance(self.score, ScoreModule)
            changed = "with hooks or another forward" if ours else "in the place of the layer's score"
            got = f"{type(self.score).__name__} {changed}, and {self.key_heads} key heads"
            raise UnsupportedError("score", "parameters that are read, with grouped heads", got, hint)
        return score

    def _query(self, q: Tensor, score: ScoreParts) -> Tensor:
        return score.project_query(q if self.query_norm is None else self.query_norm(q))

    def _remember(self, k: Tensor, v: Tensor, score: ScoreParts) -> Memory:
        if not self.projections.sizes[2]:
            v = v.unsqueeze(-3).expand(*v.shape[:-2], self.key_heads, *v.shape[-2:])
        return Memory(score.project_key(k if self.key_norm is None else self.key_norm(k)), v)

    @classmethod
    def from_torch(cls, other: nn.MultiheadAttention) -> "MultiHeadAttention":
        """Convert a PyTorch layer, copying its weights, and which of them learn.

        PyTorch's masks mean the opposite of ours: there, True masks a key.

        Args:
            other: a layer; `add_bias_kv` becomes `extra_key`, and `add_zero_attn` a softmax with a sink of 0.

        Returns:
            A layer whose output equals `other`'s, for inputs with the batch first.

        Example:
            >>> theirs = nn.MultiheadAttention(8, 2, batch_first=True)
            >>> x = torch.randn(1, 3, 8)
            >>> torch.allclose(MultiHeadAttention.from_torch(theirs)(x), theirs(x, x, x)[0], atol=1e-6)
            True
        """
        weight = other.out_proj.weight
        with weight.device:  # whatever the default device is
            ours = cls(
                other.embed_dim,
                other.num_heads,
                key_width=other.kdim,
                value_width=other.vdim,
                dropout=other.dropout,
                bias=other.in_proj_bias is not None,
                normalizer=Softmax(sink=0.0) if other.add_zero_attn else None,
                extra_key=other.bias_k is not None,
            ).to(weight.dtype)
        _transfer(ours._pairs(other))
        return ours.train(other.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """Convert to a PyTorch layer, copying the weights, and which of them learn.

        Returns:
            A layer with `batch_first=True` whose output equals this one's.

        Raises:
            UnsupportedError: PyTorch's layer does not support this score, normalizer, grouping or missing projection;
                or a projection has hooks, or is an adapter or quantized.
        """
        score, norm = self.score.value(), self.attention.normalizer
        scaled = isinstance(score, ScaledDot) and score.scale is None and score.softcap is None
        sink = norm.sink if isinstance(norm, Softmax) else None
        zero = isinstance(sink, float | int) and sink == 0
        softmax = self.normalizer is None and (norm is None or (isinstance(norm, Softmax) and (sink is None or zero)))
        has_equal_sizes = set(self.projections.sizes) == {self.width} and self.query_norm is None
        has_equal_biases = self.output is not None and (
            (plain_weights(self.output, "output")[1] is None) == (self.projections.part(0)[1] is None)
        )
        if self.output is None or not (
            has_equal_biases and has_equal_sizes and scaled and softmax and self.key_heads == self.heads
        ):
            hint = "It needs a scaled dot product under softmax, all projections and as many key heads as heads."
            raise UnsupportedError("layer", "a layer that nn.MultiheadAttention supports", "more than that", hint)
        weight = self.output.weight
        with weight.device:
            theirs = nn.MultiheadAttention(
                self.width,
                self.heads,
                self.attention.dropout,
                bias=self.output.bias is not None,
                kdim=self.projections.widths[1],
                vdim=self.projections.widths[2],
                add_bias_kv=self.extra_key is not None,
                add_zero_attn=zero,
                batch_first=True,
            ).to(weight.dtype)
        _transfer([(their, mine) for mine, their in self._pairs(theirs)])
        return theirs.train(self.training)

    def _pairs(self, other: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor]]:
        """Pair each of our parameters with PyTorch's, as views."""
        assert self.output is not None
        ours = [*map(self.projections.part, range(3)), plain_weights(self.output, "output")]
        pairs: list[tuple[Tensor | None, Tensor | None]] = []
        for mine, theirs in zip(ours, projections_of_torch(other), strict=True):
            pairs += zip(mine, theirs, strict=True)
        for extra, their in ((self.extra_key, other.bias_k), (self.extra_value, other.bias_v)):
            pairs.append((extra, None if extra is None or their is None else their.view_as(extra)))
        return [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]


def refuse_weights_of_torch(module: nn.Module, state_dict: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """Say how weights of PyTorch's layer are converted, before they are loaded into a layer of this library.

    Raises:
        CheckpointError: the state dict has the names of `torch.nn.MultiheadAttention`.

    Example:
        >>> MultiHeadAttention(8, 2).load_state_dict(nn.MultiheadAttention(8, 2).state_dict())
        Traceback (most recent call last):
        qkv.errors.CheckpointError: state_dict: expected the weights of MultiHeadAttention; got in_proj_weight, ...
    """
    name = next((f"{prefix}{part}" for part in _NAMES_OF_TORCH if f"{prefix}{part}" in state_dict), None)
    if name is not None:
        hint = (
            "Load them into PyTorch's layer, and convert it: qkv.nn.MultiHeadAttention.from_torch(layer); within a "
            "layer of PyTorch, wrap that in qkv.nn.TorchMultiheadAttention."
        )
        got = f"{name}, a weight of torch.nn.MultiheadAttention"
        raise CheckpointError("state_dict", f"the weights of {type(module).__name__}", got, hint)


def _transfer(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy weights, as pairs (to, from) of parameters or of their rows, and whether they learn.

    Where several parameters are one in the other layer, that one learns if any of them does.
    """
    learns: dict[Tensor, bool] = {}
    with torch.no_grad():
        for to, source in pairs:
            to.copy_(source)
            parameter = _parameter_of(to)
            learns[parameter] = learns.get(parameter, False) or _parameter_of(source).requires_grad
    for parameter, learns_any in learns.items():
        parameter.requires_grad_(learns_any)


def _parameter_of(rows: Tensor) -> Tensor:
    return rows if rows._base is None else rows._base


def _rotated(positions: Rotary, x: Tensor, start: int, at: int | None) -> Tensor:
    """Rotate queries or keys (..., N, D) that follow one another from `start` on, or are all at one position."""
    if at is None:
        return positions(x, start)  # type: ignore[no-any-return]
    rotated: Tensor = positions(x.unsqueeze(-2), at).squeeze(-2)
    return rotated


def _score(score: str | Score | ScoreModule | MechanismConfig, head: int, heads: int, groups: int) -> ScoreModule:
    if isinstance(score, str):
        score = MechanismConfig(score=score)
    if isinstance(score, MechanismConfig):
        return score.score_module(head, head, heads=heads, key_heads=groups)
    return score if isinstance(score, ScoreModule) else FixedScore(score)


def _blurs(score: ScoreParts, normalizer: Normalizer | NormalizerModule | None) -> bool:
    """Return whether a softmax is asked for, with a sink or without, of scores that are kernels."""
    softmax = isinstance(optional_normalizer(normalizer), Softmax)
    return softmax and isinstance(score.value().pointwise, KERNEL_SHAPES)


def _check_mergeable(normalizer: Normalizer | NormalizerModule | None) -> None:
    if normalizer is not None and not (value := as_normalizer(normalizer)).mergeable:
        hint = "Use softmax, or omit the extra key."
        raise UnsupportedError(
            "normalizer", "one whose rows can be merged, with an extra key", type(value).__name__, hint
        )


def _check_positions(positions: object, score: ScoreModule, head: int) -> None:
    if positions is None or isinstance(positions, BiasModule):
        return
    if not isinstance(positions, Rotary):
        hint = "Positions that are added to embeddings are a layer before this one: nn.PositionEmbedding."
        raise ConfigError(
            "positions", "nn.Rotary(), a bias such as nn.AlibiBias(heads), or None", repr(positions), hint
        )
    if score.projected().core not in ("dot", "distance"):
        got = type(score.projected()).__name__
        hint = "Of rotated vectors, only dot products and distances depend just on the difference of positions."
        raise ConfigError("score", "a dot product or a distance, with rotary positions", got, hint)
    rotated = positions.rotated(head)
    if rotated % 2 or not rotated:
        hint = "Rotary positions rotate pairs: choose another number of heads, or another share."
        raise ConfigError("heads", "an even number of rotated features per head", f"{rotated} of {head}", hint)


def _check_heads(width: int, heads: int, groups: int, leave_out: tuple[str, ...], *, divides: bool) -> None:
    if heads < 1 or (divides and width % heads):
        hint = nearest_divisors(width, heads)
        raise ConfigError("heads", f"a divisor of the width {width}", str(heads), hint)
    if groups < 1 or heads % groups:
        raise ConfigError("key_heads", f"a divisor of {heads} heads", str(groups), "1 means one shared key head.")
    for name in leave_out:
        expect_name("leave_out", name, get_args(Part))
