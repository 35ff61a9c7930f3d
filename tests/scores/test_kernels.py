"""Distance kernels: how their bandwidth reaches the backends."""

import pytest
import torch
from tests.contract.calls import refused
from tests.contract.mechanisms import ON_CPU

from qkv.functional import attention
from qkv.scores.base import Score
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance, squared_distance

KERNELS = [SquaredDistance, Gaussian, Boxcar, Epanechnikov, lambda h: Epanechnikov(h, 1)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("backend", ON_CPU)
def test_a_bandwidth_in_half_precision_is_its_number(backend: str, dtype: torch.dtype, autocast: bool) -> None:
    """Bandwidths of any type are used in at least float32: the same bits as in float32."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 40, 6).unbind()
    h = torch.tensor([1.7, 2.9]).to(dtype)
    for kernel in KERNELS:
        if refused(backend, query, key, value, score=kernel(h.float())):
            continue
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found, expected = (attention(query, key, value, score=kernel(x), backend=backend) for x in (h, h.float()))
        assert torch.equal(found, expected)


@pytest.mark.parametrize("score", [kernel(torch.tensor([200.0, 1e-3], dtype=torch.float16)) for kernel in KERNELS])
def test_the_scale_of_a_half_bandwidth_stays_in_range(score: Score) -> None:
    """In float16 the inverse of 200² has five bits, and that of 0.001² is infinite."""
    scale = score.prepare(torch.zeros(2, 3, 4).half(), torch.zeros(2, 3, 4).half()).scale
    assert isinstance(scale, torch.Tensor)
    bandwidth: torch.Tensor = score.bandwidth  # type: ignore[attr-defined]
    torch.testing.assert_close(scale.flatten(), bandwidth.float() ** -2)


@pytest.mark.parametrize("bandwidth", [1e-200, 1e-20, 1e-15, 1.0, 1e15, 1e30, 1e200])
def test_squared_distances_are_those_of_quotients(bandwidth: float) -> None:
    """h² would overflow or underflow long before ‖q−k‖/h does."""
    query = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
    key = torch.tensor([[3.0, 4.0], [0.0, 0.5]], dtype=torch.float64) * bandwidth
    expected = torch.tensor([[25.0, 0.25]], dtype=torch.float64)
    torch.testing.assert_close(squared_distance(query, key, bandwidth), expected)
    torch.testing.assert_close(squared_distance(query, key, torch.tensor(bandwidth, dtype=torch.float64)), expected)
    a, b, scale, _ = Gaussian(bandwidth).prepare(query, key)
    torch.testing.assert_close((a[:, None] - b).square().sum(-1) * scale, expected)
