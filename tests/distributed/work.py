"""What each process of a group does in the tests; every process calls the same function, with the group."""

import os
from collections.abc import Callable, Mapping, Sequence
from time import sleep
from typing import Any

import torch
import torch.distributed as dist
from tests.contract.judge import Case, Trial
from tests.contract.mechanisms import MASK, NORMALIZER, SCORE
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor import Shard as Sharded

from benchmarks import one_sequence
from qkv import biases, functional
from qkv.biases import Bias
from qkv.decode.greedy import greedy
from qkv.distributed import Layout, Shard, explain, fully_shard, shard
from qkv.distributed.peers import Peers
from qkv.errors import QkvError, TrainingError
from qkv.introspect import attention_map
from qkv.masks import causal, documents, lengths, window
from qkv.models import (
    ClassifierConfig,
    DecoderConfig,
    LanguageModel,
    RecurrentConfig,
    RecurrentTranslator,
    TextClassifier,
    TransformerConfig,
    TransformerTranslator,
)
from qkv.normalizers import Entmax, Hard, Mean, Sigmoid, Softmax
from qkv.recording import Trace, record
from qkv.scores import Boxcar, Gaussian

Counts = Sequence[int]


def attention(*tensors: Tensor, part: Shard, **options: Any) -> Tensor:
    """The attention of one process's part."""
    with part:
        return functional.attention(*tensors, **options)


def case_of(score: str, normalizer: str, mask: str, dtype: str) -> Case:
    return Case(SCORE[score], NORMALIZER[normalizer], MASK[mask], getattr(torch, dtype))


def part_of(x: Tensor, layout: Layout, dim: int = -2) -> Tensor:
    """The part of this process."""
    return x.index_select(dim, layout.positions(dist.get_rank()))


def contract(
    group: dist.ProcessGroup,
    names: tuple[str, str, str, str],
    turn: int,
    dtype: str,
    layout: str,
    method: str,
    counts: tuple[Counts, Counts],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Output and gradients of this process's part of a case of the contract."""
    trial = Trial(case_of(*names), turn)
    kind = getattr(torch, dtype)
    queries, keys = (Layout(layout, tuple(count)) for count in counts)
    leaves = {
        name: (part_of(x, queries) if name == "query" else part_of(x, keys) if name in ("key", "value") else x)
        .to(kind)
        .requires_grad_()
        for name, x in trial.inputs.leaves.items()
    }
    output = attention(
        leaves["query"],
        leaves["key"],
        leaves["value"],
        score=trial.case.score.build(trial._own(leaves)),
        normalizer=trial.case.normalizer.build(leaves),
        mask=trial.inputs.mask,
        part=Shard(Peers(group), layout, method),
    )
    cotangent = part_of(trial.cotangent(kind), queries)
    gradients = torch.autograd.grad(output, list(leaves.values()), cotangent, materialize_grads=True)
    return output.detach(), dict(zip(leaves, gradients, strict=True))


def assembled(
    answers: Sequence[tuple[Tensor, Mapping[str, Tensor]]], queries: Layout, keys: Layout
) -> tuple[Tensor, dict[str, Tensor]]:
    """The output and the gradients of the whole sequence, in float64; those of parameters are summed."""
    output = joined([output for output, _ in answers], queries)
    gradients = {}
    for name in answers[0][1]:
        parts = [gradients[name].double() for _, gradients in answers]
        layout = queries if name == "query" else keys if name in ("key", "value") else None
        gradients[name] = sum(parts[1:], start=parts[0]) if layout is None else joined(parts, layout)
    return output, gradients


def joined(parts: Sequence[Tensor], layout: Layout, dim: int = -2) -> Tensor:
    """The whole tensor, in float64."""
    shape = list(parts[0].shape)
    shape[dim] = layout.length
    whole = torch.full(shape, torch.nan, dtype=torch.float64)
    for rank, part in enumerate(parts):
        whole.index_copy_(dim, layout.positions(rank), part.double())
    return whole


Q, K = 23, 29
"""Queries and keys of the calls below."""


def _leaves(query_heads: int = 2, heads: int = 2, **others: tuple[int, ...]) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(5)
    shapes = {"query": (2, query_heads, Q, 6), "key": (2, heads, K, 6), "value": (2, heads, K, 3), **others}
    return {name: torch.randn(shape, generator=g, dtype=torch.float64) for name, shape in shapes.items()}


class Waves(Bias):
    """A user-defined bias whose amplitude is a tensor that it closes over."""

    def __init__(self, amplitude: Tensor) -> None:
        self.amplitude = [2 * amplitude]

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return self.amplitude[0] * torch.sin(rows_Q1 * 0.7 + columns_K * 0.3)


def _network(weight: Tensor) -> Any:
    doubled = 2 * weight
    return lambda query, key: torch.tanh(query[..., :, None, :] * doubled + key[..., None, :, :]).sum(-1)


DROPPED = {"dropout": 0.4}
CALLS: dict[str, Any] = {
    "alibi": lambda x: {"bias": biases.alibi(x["slopes"]), "mask": causal(K - Q)},
    "alibi_number": lambda x: {"bias": biases.alibi(0.3)},
    "relative": lambda x: {"bias": biases.relative(x["table"]), "mask": window(9, 4)},
    "tensor_bias": lambda x: {"bias": x["bias"], "mask": lengths(torch.tensor([7, K]), torch.tensor([Q, 3]))},
    "row_bias": lambda x: {"bias": x["row_bias"]},
    "user_bias": lambda x: {"bias": Waves(x["amplitude"])},
    "biased_sigmoid": lambda x: {"bias": biases.alibi(x["slopes"]), "normalizer": Sigmoid(), "mask": causal(2)},
    "biased_sum": lambda x: {"bias": x["bias"], "score": Boxcar(3.0)},
    "closure": lambda x: {"score": _network(x["weight"]), "mask": causal(2)},
    "closed_module": lambda x: {"score": _network(x["weight"]), "normalizer": Mean()},
    "nothing_visible": lambda x: {"mask": lengths(torch.tensor([0, 0]))},
    "masks": lambda x: {"mask": ~(causal(3) & ~lengths(torch.tensor([5, 20]))) | documents(_ids(Q), _ids(K))},
    "dense": lambda x: {"mask": torch.arange(Q * K).view(Q, K) % 3 > 0, "normalizer": Hard()},
    "sink": lambda x: {"normalizer": Softmax(x["sink"]), "mask": lengths(torch.tensor([0, 12]))},
    "grouped": lambda x: {"enable_gqa": True, "mask": causal(1) | window(0, 9)},
    "grouped_sigmoid": lambda x: {"enable_gqa": True, "normalizer": Sigmoid(), "mask": causal(1)},
    "grouped_network": lambda x: {"enable_gqa": True, "score": _network(x["weight"])},
    "dropout": lambda x: {**DROPPED, "mask": causal(5)},
    "dropout_grouped": lambda x: {**DROPPED, "enable_gqa": True, "normalizer": Sigmoid()},
    "dropout_mean": lambda x: {**DROPPED, "normalizer": Mean(), "mask": window(8, 8)},
    "dropout_entmax": lambda x: {**DROPPED, "normalizer": Entmax(), "bias": biases.alibi(x["slopes"])},
    "dropout_gaussian": lambda x: {**DROPPED, "score": Gaussian(2.0)},
    "dropout_hard": lambda x: {**DROPPED, "normalizer": Hard(), "mask": causal(9)},
}
OTHERS: dict[str, tuple[int, ...]] = {
    "slopes": (2,),
    "table": (2, 9),
    "bias": (2, 1, Q, K),
    "row_bias": (Q, 1),
    "amplitude": (2, 1, 1),
    "weight": (6,),
    "sink": (2,),
}


def _ids(count: int) -> Tensor:
    return torch.arange(count) // 7


def leaves_of(name: str) -> dict[str, Tensor]:
    """The tensors of a call, whole; those that it does not use get a gradient of 0."""
    return _leaves(4 if "grouped" in name else 2, **OTHERS)


def options_of(name: str, leaves: dict[str, Tensor]) -> dict[str, Any]:
    return {**CALLS[name](leaves), "generator": torch.Generator().manual_seed(3)}


def pulled(output: Tensor, leaves: dict[str, Tensor], cotangent: Tensor) -> dict[str, Tensor]:
    found = torch.autograd.grad(output, list(leaves.values()), cotangent, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def cotangent_of(leaves: dict[str, Tensor]) -> Tensor:
    g = torch.Generator().manual_seed(7)
    return torch.randn(*leaves["query"].shape[:-1], 3, generator=g, dtype=torch.float64)


def call(
    group: dist.ProcessGroup, name: str, layout: str, method: str, counts: tuple[Counts, Counts]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Output and gradients of a call, which sends as many bytes as its plan says."""
    queries, keys = (Layout(layout, tuple(count)) for count in counts)
    leaves = {
        name: (part_of(x, queries) if name == "query" else part_of(x, keys) if name in ("key", "value") else x)
        for name, x in leaves_of(name).items()
    }
    leaves = {name: x.clone().requires_grad_() for name, x in leaves.items()}
    part = Shard(Peers(group), layout, method)
    tensors = leaves["query"], leaves["key"], leaves["value"]
    options = options_of(name, leaves)
    with part:
        plan = explain(*tensors, **options)
        before = part.peers.sent
        output = functional.attention(*tensors, **options)
    forward = part.peers.sent
    gradients = pulled(output, leaves, part_of(cotangent_of(leaves_of(name)), queries))
    measured = forward - before, part.peers.sent - forward
    assert measured == (plan.sent, plan.sent_backward), (measured, plan)
    return output.detach(), gradients


def also(group: dist.ProcessGroup, name: str, what: str, counts: tuple[Counts, Counts]) -> tuple[Tensor, Any]:
    """Output, and row state or weights, of a call."""
    queries, keys = (Layout("zigzag", tuple(count)) for count in counts)
    leaves = leaves_of(name)
    tensors = part_of(leaves["query"], queries), part_of(leaves["key"], keys), part_of(leaves["value"], keys)
    function: Any = functional.attention_with_weights if what == "weights" else functional.attention_with_state
    with Shard(Peers(group), "zigzag", "auto"):
        output, other = function(*tensors, **options_of(name, leaves))
    return output, other if what == "weights" else (other.value, other.winner)


def state_gradients(group: dist.ProcessGroup, counts: tuple[Counts, Counts]) -> tuple[Tensor, dict[str, Tensor]]:
    """The log-sum-exp of a call as its output, and the gradients of a function of both."""
    queries, keys = (Layout("zigzag", tuple(count)) for count in counts)
    leaves = {
        name: (part_of(x, queries) if name == "query" else part_of(x, keys)).clone().requires_grad_()
        for name, x in _leaves().items()
    }
    with Shard(Peers(group), "zigzag", "ring"):
        output, state = functional.attention_with_state(*leaves.values(), mask=causal(), normalizer=Softmax(sink=0.5))
    both = torch.cat([output, state.lse.unsqueeze(-1)], -1)
    return both.detach(), pulled(both, leaves, torch.linspace(-1, 1, both.numel(), dtype=both.dtype).view(both.shape))


def different(group: dist.ProcessGroup, what: str) -> str:
    """The error of a call that the processes do not make alike."""
    rank = dist.get_rank(group)
    x = torch.randn(2, 3, 4 + (what == "width") * rank)
    mask = causal() if what == "mask" and rank else None
    part = Shard(Peers(group), "zigzag", "auto")
    try:
        if what == "map" and rank == 1:  # what a recording does after each call
            part.join(x)
        attention(x.requires_grad_(what == "gradient" and rank == 1), x, x, mask=mask, part=part)
    except TrainingError as error:
        return f"{error}"
    return "none"


def model_of(positions: str, **options: Any) -> LanguageModel:
    torch.manual_seed(0)
    settings = {"size": 11, "width": 16, "heads": 2, "layers": 2, "context": 64, **options}
    model = LanguageModel(DecoderConfig(positions=positions, **settings)).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def tokens_of(length: int) -> Tensor:
    return torch.randint(0, 11, (2, length), generator=torch.Generator().manual_seed(1))


def model(
    group: dist.ProcessGroup, positions: str, options: dict[str, Any], layout: str, counts: Counts
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of this process's tokens, and this process's part of the gradients of a model that knows of no shard."""
    network, where = model_of(positions, **options), Layout(layout, tuple(counts))
    with shard(group, layout=layout):
        logits = network(part_of(tokens_of(where.length), where, -1))
        logits.sin().sum().backward()
    return logits.detach(), {name: x.grad for name, x in network.named_parameters() if x.grad is not None}


def recorded(
    group: dist.ProcessGroup, positions: str, options: dict[str, Any], layout: str, counts: Counts
) -> dict[str, list[Tensor]]:
    """Weights and statistics of each layer of a model that a shard runs."""
    network, where = model_of(positions, **options), Layout(layout, tuple(counts))
    with shard(group, layout=layout), torch.no_grad():
        with record(network) as trace:
            network(part_of(tokens_of(where.length), where, -1))
        inside = trace.weights(trace.layers[0])
    assert torch.equal(trace.weights(trace.layers[0]), inside)
    assert trace.scene().layers
    return {layer: described(trace, layer) for layer in trace.layers}


@torch.no_grad()
def described(trace: Trace, layer: str) -> list[Tensor]:
    found = trace.statistics(layer, "received", "entropy", "peak")[0]
    assert found.received is not None
    assert found.entropy is not None
    assert found.peak is not None
    return [trace.weights(layer), trace.alignment(layer), found.received, found.entropy, found.peak]


def map_of_rows(
    group: dist.ProcessGroup, name: str, layout: str, counts: tuple[Counts, Counts], with_state: bool
) -> tuple[Tensor, list[Tensor]]:
    """A map of this process's rows as a matrix, and what each key receives over all; it sends what its plan says."""
    queries, keys = (Layout(layout, tuple(count)) for count in counts)
    leaves = leaves_of(name)
    tensors = part_of(leaves["query"], queries), part_of(leaves["key"], keys), part_of(leaves["value"], keys)
    options = CALLS[name](leaves)
    part = Shard(Peers(group), layout, "auto")
    with part:
        plan = explain(*tensors, **options)
        state = functional.attention_with_state(*tensors, **options)[1] if with_state else None
        before = part.peers.sent
        amap = attention_map(*tensors[:2], state=state, **options)
        assert part.peers.sent - before == plan.mapped[0]
        found = amap.statistics("received")
        assert found.received is not None
        received = [amap.received(), found.received]
    return amap.dense(), received


def _record_layer() -> None:
    layer = torch.nn.MultiheadAttention(4, 2)
    with record(layer):
        layer(*torch.randn(3, 3, 1, 4))


def _open_viewer() -> None:
    network = model_of("rotary")
    with record(network) as trace:
        network(tokens_of(4))
    trace.scene()


def _differentiate_twice() -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(functional.attention(x, x, x).sum(), x, create_graph=True)
    slope.sum().backward()


def _attend(**options: Any) -> Tensor:
    return functional.attention(*torch.randn(3, 2, 3, 4).unbind(), **options)


REFUSED: dict[str, Callable[[], object]] = {
    "padding": lambda: model_of("rotary")(tokens_of(4), padding=torch.tensor([1, 0])),
    "cache": lambda: model_of("rotary").read(tokens_of(4), model_of("rotary").read(tokens_of(4))[1]),
    "layer of PyTorch": _record_layer,
    "viewer": _open_viewer,
    "explain": lambda: functional.explain(*torch.randn(3, 2, 3, 4).unbind()),
    "second derivative": _differentiate_twice,
    "ring": lambda: _attend(normalizer=Entmax()),
}
WRONG: dict[str, Callable[[], object]] = {
    "bias": lambda: _attend(bias=torch.zeros(3, 3)),
    "mask": lambda: _attend(mask=torch.ones(3, 3, dtype=torch.bool)),
}


def refused(group: dist.ProcessGroup, what: str) -> str:
    """The error of what a shard does not do."""
    with shard(group, method="ring" if what == "ring" else "auto"):
        try:
            (REFUSED | WRONG)[what]()
        except QkvError as error:
            return f"{type(error).__name__}: {error}"
    return "none"


def items(
    group: dist.ProcessGroup, call: str | tuple[str, str, str, str], dim: int, also: str | None = None
) -> tuple[Tensor, Any, dict[str, Tensor]]:
    """Output, what `also` names, and gradients of a call of DTensors that are divided along batch or heads."""
    if isinstance(call, str):
        leaves, cotangent = leaves_of(call), cotangent_of(leaves_of(call))
    else:
        trial = Trial(case_of(*call), 0)
        leaves = {name: x.double() for name, x in trial.inputs.leaves.items()}
        cotangent = trial.cotangent(torch.float64)
    mesh = DeviceMesh.from_group(group, "cpu")
    leaves = {
        name: (distribute_tensor(x, mesh, [Sharded(dim)]) if name in ("query", "key", "value") else x.clone())
        .detach()
        .requires_grad_()
        for name, x in leaves.items()
    }
    if isinstance(call, str):
        options = options_of(call, leaves)
    else:
        case, mask = trial.case, trial.inputs.mask
        options = {
            "score": case.score.build(trial._own(leaves)),
            "normalizer": case.normalizer.build(leaves),
            "mask": mask,
        }
    function = getattr(functional, "attention" if also is None else f"attention_with_{also}")
    result = function(leaves["query"], leaves["key"], leaves["value"], **options)
    output, other = (result, None) if also is None else result
    assert output.placements == (Sharded(dim),)
    found = torch.autograd.grad(output.full_tensor(), list(leaves.values()), cotangent, allow_unused=True)
    gradients = {
        name: torch.zeros(x.shape) if grad is None else grad.full_tensor() if isinstance(grad, DTensor) else grad
        for (name, x), grad in zip(leaves.items(), found, strict=True)
    }
    if also == "state":
        other = tuple(None if x is None else x.full_tensor().detach() for x in (other.value, other.winner))
    return output.full_tensor().detach(), other.full_tensor().detach() if also == "weights" else other, gradients


def undivided(group: dist.ProcessGroup, dim: int) -> str:
    """The error of DTensors that are divided along the sequence or the features."""
    x = distribute_tensor(torch.randn(2, 4, 6, 8), DeviceMesh.from_group(group, "cpu"), [Sharded(dim)])
    try:
        functional.attention(x, x, x)
    except QkvError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def _like(network: torch.nn.Module) -> torch.nn.Module:
    """The network in float64, with parameters that all matter."""
    torch.manual_seed(0)
    for parameter in network.double().parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return network.train()


def _lengths(tokens: Tensor) -> Tensor:
    return torch.full(tokens.shape[:1], tokens.shape[1])


def _of_next(logits: Tensor, tokens: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _loss_of_labels(network: torch.nn.Module, tokens: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(network(tokens, _lengths(tokens)), tokens[:, 0] % 3)


def _loss_of_translation(network: torch.nn.Module, tokens: Tensor) -> Tensor:
    return _of_next(network(tokens, _lengths(tokens), tokens[:, :-1]), tokens)


def _read_twice(network: Any) -> list[Tensor]:
    read, state = network.read(tokens_of(4))
    return [read, network.read(tokens_of(2), state)[0], network.advance(tokens_of(4))[0]]


def _decode(network: Any) -> list[Tensor]:
    tokens, scores = tokens_of(4), []
    state = network.start(tokens, _lengths(tokens))
    for step in range(3):
        logits, state = network.step(tokens[:, step], state)
        scores.append(logits)
    found = greedy(network, tokens, _lengths(tokens), bos=1, eos=2, limit=5)
    return [*scores, *(torch.tensor(one.log_probabilities, dtype=torch.float64) for one in found)]


SMALL: dict[str, Any] = {"size": 11, "width": 16, "dropout": 0.0}
BLOCKS: dict[str, Any] = {"heads": 2, "feed_forward": 24}
DIVIDED: dict[str, tuple[Callable[[], torch.nn.Module], Callable[..., Tensor], Callable[[Any], list[Tensor]]]] = {
    "language model": (
        lambda: model_of("rotary", dropout=0.0).train(),
        lambda network, tokens: _of_next(network(tokens[:, :-1]), tokens),
        _read_twice,
    ),
    "translator": (
        lambda: _like(TransformerTranslator(TransformerConfig(**SMALL, **BLOCKS))),
        _loss_of_translation,
        _decode,
    ),
    "recurrent translator": (
        lambda: _like(RecurrentTranslator(RecurrentConfig(**SMALL))),
        _loss_of_translation,
        _decode,
    ),
    "classifier": (
        lambda: _like(
            TextClassifier(ClassifierConfig(model="transformer", labels=3, word_dropout=0.0, **SMALL, **BLOCKS))
        ),
        _loss_of_labels,
        lambda network: [network(tokens_of(5), _lengths(tokens_of(5)))],
    ),
}
"""Models whose parameters FSDP2 divides: how each is built, its loss, and what it predicts."""


def fully_sharded(
    group: dist.ProcessGroup, kind: str
) -> tuple[list[float], dict[str, Tensor], dict[str, Tensor], list[Tensor]]:
    """Losses, first gradients and last parameters of a training whose processes have a row each; and predictions."""
    build, loss_of, predict = DIVIDED[kind]
    network = fully_shard(build(), DeviceMesh.from_group(group, "cpu"))
    losses, gradients = train(network, loss_of, tokens_of(7)[dist.get_rank(group)][None])
    with torch.no_grad():
        predicted = predict(network.eval())
    return losses, gradients, {name: x.full_tensor() for name, x in network.state_dict().items()}, predicted


def train(
    network: torch.nn.Module, loss_of: Callable[..., Tensor], tokens: Tensor
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and first gradients of three updates."""
    # The gradient of a key's bias is nothing but rounding, which a smaller eps would let move it.
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, eps=1e-4)
    losses, gradients = [], {}
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(network, tokens)
        loss.backward()
        for name, x in network.named_parameters():
            if x.grad is not None:
                gradients.setdefault(name, x.grad.full_tensor() if isinstance(x.grad, DTensor) else x.grad.clone())
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients


def memory(group: dist.ProcessGroup, what: str, tokens: int, layout: str) -> float:
    """The most MiB of tensors that live at once in a step of one attention, or of a language model of one layer."""
    part = shard(group, layout=layout)
    return (
        one_sequence.attend(part, tokens, "plain")
        if what == "attention"
        else one_sequence.train(part, tokens, "causal")
    ).mib


def halves(group: dist.ProcessGroup, layout: str) -> tuple[Tensor, Tensor]:
    """A tensor that is split and joined, and the part."""
    with shard(group, layout=layout) as part:
        x = torch.arange(14).view(2, 7)
        split = part.split(x, 1)
        return split, part.join(split, 1)


def dying(group: dist.ProcessGroup, calls: int, slow: int) -> None:
    """Run forward and backward passes; process 1 ends after some blocks, and another one takes its time for each."""
    made = 0

    def score(query: Tensor, key: Tensor) -> Tensor:
        nonlocal made
        made += 1
        if dist.get_rank(group) == 1 and made > calls:
            os._exit(1)
        if dist.get_rank(group) == slow:
            sleep(0.1)
        return query @ key.mT

    x = torch.randn(2, 50, 4, requires_grad=True)
    attention(x, x, x, score=score, part=Shard(Peers(group), "contiguous", "ring")).sum().backward()
