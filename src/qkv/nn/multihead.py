"""Multi-head attention: several attentions beside each other, each in a subspace of its own."""

from typing import Literal, final

import torch
from torch import Tensor, nn

from qkv.biases import Bias
from qkv.errors import ConfigError, ShapeError, UnsupportedError, error_message, nearest
from qkv.linalg.matmul import Linear, kept_weight, linear
from qkv.linalg.session import Session
from qkv.masks.base import Mask
from qkv.nn.attention import Attention
from qkv.nn.biases import BiasModule
from qkv.nn.decoding.cache import Memory
from qkv.nn.normalizers import NormalizerModule
from qkv.nn.positions import Rotary
from qkv.nn.projections import Projections
from qkv.nn.scores import FixedScore, ScoreModule, build_score, xavier_uniform
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Softmax
from qkv.scores.base import Score
from qkv.scores.products import ScaledDot

Part = Literal["value", "output"]


@final
class MultiHeadAttention(nn.Module):
    """Concat(head_1, …, head_H) W_O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), for any score and normalizer.

    Args:
        width: M, of the queries' input and of the output.
        heads: H.
        key_width: of the keys' input; None for `width`.
        value_width: of the values' input; None for `key_width`.
        key_heads: G, the heads of keys and values, a divisor of H (grouped-query attention); None for H.
        score: "scaled_dot", "dot", "bilinear" or "additive", the learned ones with parameters for each head; or a
            value of `qkv.scores`; or a module of `qkv.nn` for heads of width M/H.
        normalizer: from scores to weights: a value, or a module of `qkv.nn` that learns; None for the score's own.
        dropout: the share of weights dropped in training.
        bias: whether projections add a bias.
        leave_out: "value" so that every head attends over the values as they come; "output" so that heads are
            concatenated but not mixed.
        positions: for self-attention, where tokens stand: `nn.Rotary()`, `nn.AlibiBias(heads)` or
            `nn.RelativeBias(reach, heads)`; None where the inputs tell.

    Raises:
        ConfigError: heads that do not divide the width, or each other; an unknown name; positions that the score does
            not keep.

    Source: Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023, "GQA", section 2.2; Su et al. 2021, "RoFormer".

    Example:
        >>> attend = MultiHeadAttention(width=32, heads=4)
        >>> x, memory = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
        >>> attend(x).shape, attend(x, memory).shape
        (torch.Size([2, 5, 32]), torch.Size([2, 5, 32]))
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        key_heads: int | None = None,
        score: str | Score | ScoreModule = "scaled_dot",
        normalizer: Normalizer | NormalizerModule | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        leave_out: tuple[Part, ...] = (),
        positions: Rotary | BiasModule | None = None,
    ) -> None:
        super().__init__()
        groups = heads if key_heads is None else key_heads
        _check(width, heads, groups, leave_out)
        head = width // heads
        key_width = width if key_width is None else key_width
        value_width = key_width if value_width is None else value_width
        self.width, self.heads, self.key_heads = width, heads, groups
        self.input_widths = (width, key_width, value_width)
        sizes = (width, groups * head, 0 if "value" in leave_out else groups * head)
        self.projections = Projections(self.input_widths, sizes, bias=bias)
        self.score = _score(score, head, heads, groups)
        self.positions = positions
        _check_positions(positions, self.score, head)
        self.normalizer = normalizer if isinstance(normalizer, NormalizerModule) else None
        fixed = None if isinstance(normalizer, NormalizerModule) else normalizer
        self.attention = Attention(normalizer=fixed, dropout=dropout)
        joined = width if sizes[2] else heads * value_width
        self.output = None if "output" in leave_out else Linear(joined, width, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew: each projection by Glorot's rule, biases zero."""
        self.projections.reset_parameters()
        if self.output is not None:
            xavier_uniform(self.output.weight)
            if self.output.bias is not None:
                nn.init.zeros_(self.output.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Tensor | Bias | None = None,
        session: Session | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            query: (B, Q, M).
            key: (B, K, key width); None for self-attention.
            value: (B, K, value width); None for `key`.
            mask: True where a query may attend; broadcasts to (B, H, Q, K).
            bias: added to the scores; broadcasts to (B, H, Q, K).
            session: keeps packed weights for a decoding, here and in the methods below.

        Returns:
            (B, Q, M); (B, Q, H·V) where the output projection is left out.

        Raises:
            ShapeError: an input whose width is not the layer's.
        """
        if key is None and value is None:
            q, memory = self.extend(query, None, session)
        else:
            key = query if key is None else key
            q, memory = self.project_query(query, session), self.project_memory(key, value, session)
        return self.attend(q, memory, mask=mask, bias=bias, session=session)

    def project_query(self, query: Tensor, session: Session | None = None) -> Tensor:
        """Queries by head, as the score wants them: (B, Q, M) to (B, H, Q, F)."""
        self._expect("query", query, 0)
        if self.positions is not None:
            hint = "Positions compare places in one sequence: make the layer of cross-attention without them."
            raise ConfigError(
                error_message("positions", "none between two sequences", type(self.positions).__name__, hint)
            )
        return self.score.project_query(_by_head(self.projections.query(query, session), self.heads))

    def project_memory(self, key: Tensor, value: Tensor | None = None, session: Session | None = None) -> Memory:
        """Keys and values by head, once per sentence: (B, K, width) to (B, G, K, F) and (B, G, K, V)."""
        value = key if value is None else value
        self._expect("key", key, 1)
        self._expect("value", value, 2)
        return self._remember(*self.projections.memory(key, value, session))

    def extend(self, x: Tensor, past: Memory | None, session: Session | None = None) -> tuple[Tensor, Memory]:
        """Project new positions for self-attention, and put their keys and values behind those kept.

        Args:
            x: (B, N, M), the new positions.
            past: what was kept; None at the start.
            session: gives memory for keys and values too.

        Returns:
            The new queries by head, and all keys and values.
        """
        for index, name in enumerate(("query", "key", "value")):
            self._expect(name, x, index)
        q, k, v = self.projections.together(x, session)
        memory = self._remember(k, v)
        query = self.score.project_query(_by_head(q, self.heads))
        if isinstance(self.positions, Rotary):
            start = 0 if past is None else past.end
            query, key = self.positions(query, start), self.positions(memory.key, start)
            memory = Memory(key, memory.value)
        return query, memory if past is None else past.append(memory, session)

    def attend(
        self,
        query: Tensor,
        memory: Memory,
        *,
        mask: Mask | Tensor | None = None,
        bias: Tensor | Bias | None = None,
        session: Session | None = None,
    ) -> Tensor:
        """Attend with what was projected before.

        Args:
            query: (B, H, Q, F), from `project_query` or `extend`.
            memory: from `project_memory` or `extend`.
            mask: True where a query may attend.
            bias: added to the scores.

        Returns:
            (B, Q, M).
        """
        if isinstance(self.positions, BiasModule):
            if bias is not None:
                hint = "Leave out one of the two, or write the positions' bias out and add them."
                raise ConfigError(error_message("bias", "none beside positions that are a bias", "both", hint))
            bias = self.positions.value(offset=memory.length - query.shape[-2])
        heads: Tensor = self.attention(
            query,
            memory.key,
            memory.value,
            score=self.score.projected(),
            normalizer=None if self.normalizer is None else self.normalizer.value(),
            mask=mask,
            bias=bias,
            enable_gqa=self.key_heads != self.heads,
        )
        joined = heads.transpose(-3, -2).flatten(-2)
        if self.output is None:
            return joined
        return linear(joined, self.output.weight, self.output.bias, kept_weight(session, self.output))

    def _remember(self, k: Tensor, v: Tensor) -> Memory:
        whole = not self.projections.sizes[2]
        values = v.unsqueeze(-3).expand(*v.shape[:-2], self.key_heads, *v.shape[-2:]) if whole else None
        return Memory(
            self.score.project_key(_by_head(k, self.key_heads)),
            _by_head(v, self.key_heads) if values is None else values,
        )

    def _expect(self, name: str, x: Tensor, index: int) -> None:
        if x.ndim < 2 or x.shape[-1] != self.input_widths[index]:
            expected = f"shape (B, N, {self.input_widths[index]})"
            hint = "The layer was made for that width: see key_width and value_width."
            raise ShapeError(error_message(name, expected, f"{tuple(x.shape)}", hint))

    @classmethod
    def from_torch(cls, other: nn.MultiheadAttention) -> "MultiHeadAttention":
        """The same layer as one of PyTorch's, weights copied.

        Its masks mean the opposite of ours: True there hides a key.

        Args:
            other: without `bias_k`, `bias_v` and `add_zero_attn`.

        Returns:
            A layer whose output equals `other`'s, for inputs with the batch first.

        Raises:
            UnsupportedError: an option that has no counterpart.

        Example:
            >>> theirs = nn.MultiheadAttention(8, 2, batch_first=True)
            >>> x = torch.randn(1, 3, 8)
            >>> torch.allclose(MultiHeadAttention.from_torch(theirs)(x), theirs(x, x, x)[0], atol=1e-6)
            True
        """
        if other.bias_k is not None or other.add_zero_attn:
            hint = "Convert a layer without bias_k, bias_v and add_zero_attn."
            raise UnsupportedError(error_message("other", "projections and heads alone", "an extra key", hint))
        ours = cls(
            other.embed_dim,
            other.num_heads,
            key_width=other.kdim,
            value_width=other.vdim,
            dropout=other.dropout,
            bias=other.in_proj_bias is not None,
        ).to(other.out_proj.weight)
        with torch.no_grad():
            for mine, theirs in ours._pairs(other):
                mine.copy_(theirs)
        return ours.train(other.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """The same layer as PyTorch's, weights copied.

        Returns:
            A layer with `batch_first=True` whose output equals this one's.

        Raises:
            UnsupportedError: a score, normalizer, grouping or missing projection that PyTorch's layer does not have.
        """
        score, norm = self.score.value(), self.attention.normalizer
        scaled = isinstance(score, ScaledDot) and score.scale is None and score.softcap is None
        softmax = self.normalizer is None and (norm is None or (isinstance(norm, Softmax) and norm.sink is None))
        if self.output is None or not (
            scaled and softmax and self.key_heads == self.heads and self.projections.sizes[2]
        ):
            hint = "Only scaled dot products under softmax, as many key heads as heads, all projections."
            raise UnsupportedError(
                error_message("layer", "what nn.MultiheadAttention can express", "more than that", hint)
            )
        theirs = nn.MultiheadAttention(
            self.width,
            self.heads,
            self.attention.dropout,
            bias=self.output.bias is not None,
            kdim=self.input_widths[1],
            vdim=self.input_widths[2],
            batch_first=True,
        ).to(self.output.weight)
        with torch.no_grad():
            for mine, their in self._pairs(theirs):
                their.copy_(mine)
        return theirs.train(self.training)

    def _pairs(self, other: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor]]:
        """Each parameter of ours beside PyTorch's, as views."""
        assert self.output is not None
        joint = other.in_proj_weight
        weights = (other.q_proj_weight, other.k_proj_weight, other.v_proj_weight) if joint is None else joint.chunk(3)
        biases = (None,) * 3 if other.in_proj_bias is None else other.in_proj_bias.chunk(3)
        pairs: list[tuple[Tensor | None, Tensor | None]] = []
        pairs += [(self.output.weight, other.out_proj.weight), (self.output.bias, other.out_proj.bias)]
        for index in range(3):
            weight, bias = self.projections.part(index)
            pairs += [(weight, weights[index]), (bias, biases[index])]
        return [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]


def _by_head(x: Tensor, heads: int) -> Tensor:
    """(B, N, H·D) to (B, H, N, D)."""
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-3, -2)


def _score(score: str | Score | ScoreModule, head: int, heads: int, groups: int) -> ScoreModule:
    if isinstance(score, str):
        return build_score(score, head, head, heads=heads, key_heads=groups)
    return score if isinstance(score, ScoreModule) else FixedScore(score)


def _check_positions(positions: Rotary | BiasModule | None, score: ScoreModule, head: int) -> None:
    if not isinstance(positions, Rotary):
        return
    if score.projected().core not in ("dot", "distance"):
        got = type(score.projected()).__name__
        hint = "Only dot products and distances of rotated vectors depend on the difference of positions alone."
        raise ConfigError(error_message("score", "a dot product or a distance, beside rotary positions", got, hint))
    if head % 2:
        hint = "Rotary positions turn pairs: choose another number of heads."
        raise ConfigError(error_message("heads", "an even width of each head", f"{head}", hint))


def _check(width: int, heads: int, groups: int, leave_out: tuple[str, ...]) -> None:
    if heads < 1 or width % heads:
        raise ConfigError(error_message("heads", f"a divisor of the width {width}", str(heads), "Try 4 or 8."))
    if groups < 1 or heads % groups:
        raise ConfigError(
            error_message("key_heads", f"a divisor of {heads} heads", str(groups), "1 shares one key head.")
        )
    for name in leave_out:
        if name not in ("value", "output"):
            valid = ("value", "output")
            raise ConfigError(error_message("leave_out", '"value" or "output"', repr(name), nearest(name, valid)))
