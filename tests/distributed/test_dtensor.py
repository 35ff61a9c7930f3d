"""DTensors divided along batch or heads give what whole tensors give, for any mechanism."""

from typing import Any

import pytest
import torch
from tests.contract.judge import Trial, paired
from tests.contract.mechanisms import SCORES
from tests.distributed import work
from tests.distributed.group import Processes
from tests.distributed.test_sharding import near
from tests.distributed.work import CALLS

from qkv.functional import attention, attention_with_state, attention_with_weights

CLOSED = {"closure": "weight", "closed_module": "weight", "grouped_network": "weight", "user_bias": "amplitude"}
"""The tensors that user-defined functions close over: each process gets its part of their gradients."""


def differing(
    answers: list[Any],
    exact: torch.Tensor,
    slopes: dict[str, torch.Tensor],
    closed: str | None,
) -> list[str]:
    """What is not as in one process, by name."""
    wrong = []
    for output, _, gradients in answers:
        wrong += [] if near(output, exact) else ["output"]
        wrong += [name for name in slopes if name != closed and not near(gradients[name], slopes[name])]
    if closed is not None and not near(sum(gradients[closed] for _, _, gradients in answers), slopes[closed]):
        wrong.append(closed)
    return wrong


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_those_of_whole_tensors(name: str, processes: Processes) -> None:
    leaves = {name: x.requires_grad_() for name, x in work.leaves_of(name).items()}
    exact = attention(leaves["query"], leaves["key"], leaves["value"], **work.options_of(name, leaves))
    slopes = work.pulled(exact, leaves, work.cotangent_of(leaves))
    for count, dim in ((2, 0), (2, 1), (3, 0)):  # two items among three processes: one has none
        answers = processes.run(count, "items", name, dim)
        assert differing(answers, exact, slopes, CLOSED.get(name)) == [], (count, dim)


@pytest.mark.parametrize("score", [score.name for score in SCORES])
def test_mechanisms_are_those_of_whole_tensors(score: str, processes: Processes) -> None:
    cases = [case for at in SCORES if at.name == score for case in paired(at)]
    assert cases
    for index, case in enumerate(cases):
        trial = Trial(case, 0)
        leaves = {name: x.double().requires_grad_() for name, x in trial.inputs.leaves.items()}
        options: dict[str, Any] = {
            "score": case.score.build(trial._own(leaves)),
            "normalizer": case.normalizer.build(leaves),
        }
        exact = attention(leaves["query"], leaves["key"], leaves["value"], mask=trial.inputs.mask, **options)
        slopes = work.pulled(exact, leaves, trial.cotangent(torch.float64))
        closed = "weight" if score == "learned" else None
        answers = processes.run(2, "items", (*case.names, f"{case.dtype}".removeprefix("torch.")), index % 2)
        assert differing(answers, exact, slopes, closed) == [], case


@pytest.mark.parametrize("name", ["sink", "dense", "masks", "dropout", "dropout_entmax", "grouped_sigmoid"])
@pytest.mark.parametrize("also", ["state", "weights"])
def test_states_and_weights_are_those_of_whole_tensors(name: str, also: str, processes: Processes) -> None:
    leaves = work.leaves_of(name)
    function: Any = attention_with_state if also == "state" else attention_with_weights
    output, other = function(leaves["query"], leaves["key"], leaves["value"], **work.options_of(name, leaves))
    for got, more, _ in processes.run(2, "items", name, 1, also):
        assert near(got, output)
        if also == "weights":
            assert near(more, other)
        else:
            assert torch.allclose(more[0], other.value, rtol=1e-12)
            assert other.winner is None or torch.equal(more[1], other.winner)


@pytest.mark.parametrize("dim", [2, 3])
def test_a_divided_sequence_is_refused(dim: int, processes: Processes) -> None:
    for error in processes.run(2, "undivided", dim):
        assert error.startswith("UnsupportedError: query")
        assert "qkv.distributed.shard" in error
