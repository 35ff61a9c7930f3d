"""PyTorch's own cases of flex_attention: its results and gradients, within the factors that its tests allow."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.flex.pytorch_cases import BUILTIN, Case, all_cases
from tests.pairs import fast
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, noop_mask
from torch.nn.attention.flex_attention import flex_attention as pytorchs

import qkv

FROZEN = Path(__file__).parent / "pytorch_cases.txt"
NAMES = FROZEN.read_text(encoding="utf-8").splitlines()
FACTORS = {torch.float32: 10.0, torch.float64: 10.0, torch.bfloat16: 1.1}
"""How many times the error of PyTorch's equation in the same dtype the mean error may be, as in PyTorch's tests."""


def test_every_frozen_case_is_tested() -> None:
    torch.manual_seed(0)
    assert [case.name for case in all_cases()] == NAMES


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    return {case.name: case for case in all_cases()}


def reference(case: Case, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """PyTorch's own equation, on the full matrix, and the log-sum-exp."""
    from torch._higher_order_ops.flex_attention import math_attention

    score = case.same or case.score or BUILTIN["identity"][0]
    scale = tensors[0].shape[-1] ** -0.5
    output, lse, _ = math_attention(*tensors, score, (case.mask or noop_mask,), scale, {})
    return output, lse * torch.log(torch.tensor(2.0, dtype=torch.float64)).to(lse.dtype)


def ours(case: Case, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    grouped = case.query[1] != case.key[1]
    found: Any = qkv.flex_attention(
        *tensors, case.score, case.block_mask(), enable_gqa=grouped, return_aux=AuxRequest(lse=True)
    )
    return found[0], found[1].lse


def results(
    case: Case, attend: Callable[[Case, list[Tensor]], tuple[Tensor, Tensor]], inputs: list[Tensor], upstream: Tensor
) -> list[Tensor]:
    """Output, log-sum-exp, and gradients of the inputs and of what the score function learns."""
    tensors = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in inputs]
    output, lse = attend(case, tensors)
    wanted = [*tensors, *case.learned]
    gradients = torch.autograd.grad(output, wanted, upstream.to(output.dtype), allow_unused=True)
    pairs = zip(gradients, wanted, strict=True)
    return [output, lse, *(torch.zeros_like(x) if g is None else g for g, x in pairs)]


MANY = ("test_kv_batch_broadcast", "test_builtin_score_mods_different_block_size", "test_non_equal_head_dims")


FEW = [name for name in NAMES if not name.startswith(MANY)][::2]
"""Of the others every second one: the list repeats kinds of functions with other sizes."""


@pytest.mark.parametrize("name", fast(NAMES, *FEW))
def test_case(name: str, cases: dict[str, Case]) -> None:
    case = cases[name]
    torch.manual_seed(len(name))
    inputs = case.tensors()
    upstream = torch.randn(*case.query[:3], inputs[2].shape[-1], dtype=case.dtype)
    exact = results(case, reference, [x.double() for x in inputs], upstream)
    lse = exact[1].to(torch.promote_types(case.dtype, torch.float32))
    theirs, found = results(case, reference, inputs, upstream), results(case, ours, inputs, upstream)
    for which, (gold, one, other) in enumerate(zip(exact, theirs, found, strict=True)):
        assert other.shape == one.shape
        assert other.dtype == one.dtype
        infinite = gold.isinf()
        assert torch.equal(other.isinf(), infinite)
        allowed, error = ((gold - x.double())[~infinite].abs().mean() for x in (one, other))
        # Where PyTorch happens to be exact: the rounding of the result, and of sums that are 0.
        rounding = torch.finfo(other.dtype).eps * gold[~infinite].abs().mean() + 4 * torch.finfo(lse.dtype).eps
        assert infinite.all() or error <= FACTORS[case.dtype] * allowed + rounding, f"result {which}"


@pytest.mark.parametrize("name", [name for name in NAMES if "stride_ordering" in name])
def test_output_is_laid_out_like_the_query(name: str, cases: dict[str, Case]) -> None:
    inputs = cases[name].tensors()
    output = ours(cases[name], inputs)[0]
    expected = [i for i in sorted(range(4), key=inputs[0].stride, reverse=True) if inputs[0].shape[i] > 1]
    assert [i for i in sorted(range(4), key=output.stride, reverse=True) if output.shape[i] > 1] == expected


@pytest.mark.parametrize("name", ["test_causal_block", "test_natten_2d", "test_silu_on_score", "test_GQA alibi_bias"])
def test_equation_is_what_pytorchs_function_returns(name: str, cases: dict[str, Case]) -> None:
    case = cases[name]
    inputs = case.tensors()
    grouped = case.query[1] != case.key[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output = pytorchs(*inputs, case.score, case.block_mask(), enable_gqa=grouped)
    assert torch.equal(output, reference(case, inputs)[0])
