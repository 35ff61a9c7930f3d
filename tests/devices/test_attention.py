"""Every mechanism on fake CUDA tensors: no device is mixed, nothing is read, and launches are few; `make test-gpu`."""

from typing import Any

import pytest
import torch
from benchmarks.launches.__main__ import CASES as NAMES
from benchmarks.launches.__main__ import count
from benchmarks.launches.counting import Counter, fake_cuda
from tests.devices.calls import CASES, Case, drawn, expect_no_waiting, name_of
from tests.devices.test_table import ROWS

import qkv
from qkv.errors import UnsupportedError

S, N, M = qkv.scores, qkv.normalizers, qkv.masks


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_outputs_states_and_weights_stay_on_the_device(case: Case) -> None:
    with fake_cuda():
        x, options, _ = drawn(case, gradient=False)
        with Counter() as counter:
            results = [qkv.attention(*x, **options), *qkv.attention_with_weights(*x, **options)]
            try:
                output, state = qkv.attention_with_state(*x, **options)
                results += [output, state.value]
                results.append(qkv.attention_map(*x[:2], **options)[0, 1, 10:20, 0:64])
            except UnsupportedError:
                assert case[1].name == "identity" or case[0].name == "learned"
        assert all(result.is_cuda for result in results)
    expect_no_waiting(counter)


@pytest.mark.parametrize(
    ("limit", "options"),
    [
        (90, {"score": S.ScaledDot(softcap=30.0), "mask": M.causal()}),
        (90, {"score": S.Gaussian(8.0), "mask": M.causal()}),
        (20, {}),
        (60, {"score": S.Dot(), "normalizer": N.Mean(), "mask": M.causal()}),
        (220, {"normalizer": N.Entmax(), "mask": M.causal()}),
    ],
)
def test_launches_are_few(limit: int, options: dict[str, Any]) -> None:
    with fake_cuda():
        x = [torch.empty(1, 8, 2048, 64, device="cuda") for _ in range(3)]
        with Counter() as counter:
            qkv.attention(*x, **options)
    expect_no_waiting(counter)
    assert 0 < sum(counter.launches.values()) <= limit, counter.launches


def test_the_counter_counts_what_waits_and_what_computes() -> None:
    with fake_cuda():
        x = torch.empty(3, 4, device="cuda")
        with Counter() as counter:
            y = (x + 1).mT.view(4, 3)[:2].exp_()
            float(y.sum())
            bool((x > 0).all())
            x.nonzero()
            x.cpu()
    assert counter.launches == {"add": 1, "exp_": 1, "sum": 1, "gt": 1, "all": 1}
    assert (counter.reads.total(), counter.copies.total()) == (3, 1)


def test_mixed_devices_are_an_error() -> None:
    with fake_cuda(), torch.no_grad(), pytest.raises(RuntimeError, match="device"):
        torch.empty(3, device="cuda") + torch.empty(3)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_gradients_stay_on_the_device(case: Case) -> None:
    with fake_cuda():
        x, options, learned = drawn(case, gradient=True)
        with Counter() as counter:
            output = qkv.attention(*x, **options)
            gradients = torch.autograd.grad(output.sum(), learned, allow_unused=True)
        assert output.is_cuda
        assert all(g is None or g.is_cuda for g in gradients)
        assert sum(g is not None for g in gradients) > 0
    expect_no_waiting(counter)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_is_what_is_counted(name: str) -> None:
    counted, stored = count(name, "auto"), dict(ROWS[name])
    del stored["composed"], stored["torch"], counted["torch"]
    assert counted == stored
