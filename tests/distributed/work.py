"""What each process of a group does in the tests; every process calls the same function."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from tests.contract.judge import Case, Trial
from tests.contract.mechanisms import MASK, NORMALIZER, SCORE
from torch import Tensor

from qkv.distributed import Layout, Shard, attention
from qkv.distributed.peers import Peers

Counts = Sequence[int]


def case_of(score: str, normalizer: str, mask: str, dtype: str) -> Case:
    return Case(SCORE[score], NORMALIZER[normalizer], MASK[mask], getattr(torch, dtype))


def part_of(x: Tensor, layout: Layout, dim: int = -2) -> Tensor:
    """The part of this process."""
    return x.index_select(dim, layout.positions(dist.get_rank()))


def contract(
    names: tuple[str, str, str, str], turn: int, dtype: str, layout: str, method: str, counts: tuple[Counts, Counts]
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
        part=Shard(Peers(), layout, method),
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
