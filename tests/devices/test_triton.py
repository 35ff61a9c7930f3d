"""The Triton kernels in Triton's interpreter, judged like any backend; their machine code; when `auto` takes them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.launches import machine_code
from benchmarks.launches.counting import fake_cuda, has_guard
from tests.contract.criterion import failed
from tests.contract.judge import Case, Trial
from tests.contract.mechanisms import MASK, NORMALIZER, SCORE
from torch import Tensor

import qkv
from qkv.algorithms.additive import triton
from qkv.errors import ConfigError, UnsupportedError
from qkv.planner import certificates, plan
from qkv.tasks import tune

M = qkv.masks
NAME = "additive.triton"
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
CASES = [
    ("additive", "softmax", "none", F32),
    ("additive", "softmax", "lengths", BF16),
    ("additive_per_head", "softmax", "causal_offset", F32),
    ("additive_per_head", "softmax", "window", F16),
    ("additive_projected", "softmax", "lengths_both", F32),
    ("additive_projected", "softmax", "causal", BF16),
    ("additive_projected", "softmax_sink", "causal_and_span", F32),
]


@pytest.mark.parametrize(("score", "normalizer", "mask", "dtype"), CASES)
def test_kernels_are_exact(score: str, normalizer: str, mask: str, dtype: torch.dtype) -> None:
    trial = Trial(Case(SCORE[score], NORMALIZER[normalizer], MASK[mask], dtype))
    assert trial.refusal(NAME) is None
    assert not failed(trial.shares(NAME))


def drawn(queries: int, keys: int, width: int = 6, values: int = 5) -> list[Tensor]:
    draw = torch.Generator().manual_seed(queries * keys)
    shapes = (2, queries, width), (2, keys, width), (2, keys, values), (width,)
    return [torch.randn(shape, generator=draw) for shape in shapes]


def call(x: list[Tensor], mask: Any = None, backend: str = NAME, dtype: torch.dtype = F32) -> list[Tensor]:
    """Return the output and the gradients of query, key, value and vector."""
    leaves = [y.to(dtype, copy=True).requires_grad_() for y in x]
    output = qkv.attention(*leaves[:3], score=qkv.scores.Additive(leaves[3]), mask=mask, backend=backend)
    return [output.detach(), *torch.autograd.grad(output.square().sum(), leaves)]


def assert_like_the_equation(x: list[Tensor], mask: Any = None) -> None:
    """Compare the largest errors with those of the equation in float32, of one draw."""
    exact, literal = (call(x, mask, "reference", dtype) for dtype in (torch.float64, F32))
    for result, right, other in zip(call(x, mask), exact, literal, strict=True):
        limit = 4 * (other - right).abs().max() + 2.0**-21 * right.abs().max()
        assert (result - right).abs().max() <= limit


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 130), (17, 129), (33, 7)])
def test_sizes_that_fill_no_tile(queries: int, keys: int) -> None:
    assert_like_the_equation(drawn(queries, keys), M.causal(align="end"))


@pytest.mark.parametrize("spread", [1e-4, 0.05, 6.0, 40.0, "mixed"])
def test_features_of_every_range(spread: float | str) -> None:
    """Small ones and those beyond the factors are computed each; between, with a cap or without one."""
    x = drawn(20, 30, width=10)
    of_feature = torch.logspace(-3, 1.7, 10) if spread == "mixed" else torch.tensor(spread)
    assert_like_the_equation([x[0] * of_feature, x[1] * of_feature, x[2], x[3] * 2])


def test_far_centers_and_large_weights() -> None:
    x = drawn(9, 11)
    assert_like_the_equation([x[0] - 70.0, x[1] + 70.0, x[2], x[3]])
    # One weight of most rows is nearly 1: the gradient of its score is a difference of two equal numbers.
    assert_like_the_equation([*x[:3], x[3] * torch.tensor([5000.0, 1e-3, 1.0, 1.0, 1.0, 1.0])])


def test_rows_without_keys_give_zero() -> None:
    x = drawn(5, 6)
    results = call(x, M.lengths(torch.tensor([0, 4])))
    assert all(not result[0].any() for result in results[:4])
    assert all(result.isfinite().all() for result in results)
    assert not results[2][1, 4:].any()


def test_hidden_keys_change_no_bit() -> None:
    x, mask = drawn(5, 140), M.lengths(torch.tensor([3, 131]))
    changed = [y.clone() for y in x]
    for y in changed[1:3]:
        y[0, 3:], y[1, 131:] = torch.nan, torch.inf
    for result, other in zip(call(x, mask), call(changed, mask), strict=True):
        assert torch.equal(result, other)


def test_what_is_not_finite_reaches_the_rows_that_see_it() -> None:
    x = drawn(4, 5)
    x[1][1, 2, 3] = torch.nan
    output = call(x, M.causal())[0]
    assert output.isnan().any(-1).tolist() == [[False] * 4, [False, False, True, True]]


def test_the_state_and_second_derivatives() -> None:
    x = [y.double().requires_grad_() for y in drawn(3, 4)]
    results = []
    for backend, dtype in ((NAME, F32), ("reference", torch.float64)):
        leaves = [y.detach().to(dtype).requires_grad_() for y in x]
        options = {"score": qkv.scores.Additive(leaves[3]), "backend": backend}
        output, state = qkv.attention_with_state(*leaves[:3], **options)
        (slope,) = torch.autograd.grad(output.sum() + state.value.sum(), leaves[0], create_graph=True)
        results.append([state.value, slope, *torch.autograd.grad(slope.square().sum(), leaves[1:])])
    for result, exact in zip(*results, strict=True):
        torch.testing.assert_close(result.double(), exact, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("reason", "options"),
    [
        ("not an interval", {"mask": torch.ones(4, 5, dtype=torch.bool)}),
        ("there is a bias", {"bias": torch.zeros(4, 5)}),
        ("dropped", {"dropout": 0.5}),
        ("mean, not softmax", {"normalizer": qkv.normalizers.Mean()}),
    ],
)
def test_the_rest_is_refused(reason: str, options: dict[str, Any]) -> None:
    x = drawn(4, 5)
    with pytest.raises(UnsupportedError, match=reason):
        qkv.attention(*x[:3], score=qkv.scores.Additive(x[3]), backend=NAME, **options)


def test_the_table_is_what_is_compiled(tmp_path: Path) -> None:
    """The kernel that most other ones contain, for the newest GPU of the table."""
    code = "import json; from benchmarks.launches.machine_code import count; print(json.dumps(count('forward', 90)))"
    environment = {**os.environ, triton.INTERPRETED: "0", "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("LD_PRELOAD", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stored = json.loads(machine_code.STORED.read_text(encoding="utf-8"))
    counted = json.loads(done.stdout)
    if stored["triton"] == certificates.versions()["triton"]:
        assert counted == stored["kernels"]["forward"]["90"]
    assert counted["scores"] < 6
    assert counted["scores, capped"] < 7


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A GPU of this name, without certificates."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(certificates, "this_device", lambda: "Tested GPU, sm_90")
    monkeypatch.delenv(triton.INTERPRETED)
    for cache in (plan._cached_plan, certificates._rows):
        cache.cache_clear()  # type: ignore[attr-defined]
    yield "Tested GPU, sm_90"
    for cache in (plan._cached_plan, certificates._rows):
        cache.cache_clear()  # type: ignore[attr-defined]


def rows(error: float = 0.5, milliseconds: float = 1.0) -> list[dict[str, Any]]:
    kind = {"algorithm": NAME, "dtype": "float32", "gradient": False, "error": error}
    times = ((100, 3.0, 2.0), (10**6, milliseconds, 2.0))
    return [kind | {"pairs": pairs, "milliseconds": ours, "composed": other} for pairs, ours, other in times]


def explained(queries: int = 1024, backend: str = "auto") -> plan.Plan:
    plan._cached_plan.cache_clear()
    with fake_cuda(), torch.device("cuda"):
        x = [torch.empty(8, size, 64) for size in (queries, 1024, 1024)]
        return qkv.explain(*x, score=qkv.scores.Additive(torch.empty(64)), backend=backend)


def why_not(chosen: plan.Plan) -> str:
    return dict(chosen.refusals)[NAME]


def test_auto_takes_only_what_is_certified(device: str) -> None:
    assert "no certificate of this GPU: run qkv tune --device cuda" in why_not(explained())
    certificates.store(device, rows())
    chosen = explained()
    assert chosen.algorithm == NAME
    assert f"certified on {device} by {certificates.path()}" in chosen.why
    assert "3 ms on this GPU, and PyTorch's operators 2" in why_not(explained(queries=1))
    for worse, reason in ((rows(error=1.5), "1.5 times the limit"), (rows(milliseconds=2.5), "it took 2.5 ms")):
        certificates.store(device, worse)
        assert reason in why_not(explained())


def test_a_backend_asked_for_by_name_says_what_its_certificate_does(device: str) -> None:
    assert "no certificate of this GPU: run qkv tune --device cuda" in explained(backend=NAME).why
    for measured, sentence in (
        (rows(), f"certified on {device} by {certificates.path()}"),
        (rows(error=1.5), "its errors on this GPU were 1.5 times the limit"),
        (rows(milliseconds=2.5), "it took 2.5 ms on this GPU, and PyTorch's operators 2"),
    ):
        certificates.store(device, measured)
        assert sentence in explained(backend=NAME).why


def test_a_certificate_is_of_these_versions(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates.store(device, rows())
    monkeypatch.setattr(certificates, "versions", lambda: {"torch": "9"})
    certificates._rows.cache_clear()
    assert "other versions" in why_not(explained())


def test_a_file_that_is_no_certificate_is_an_error(device: str) -> None:
    certificates.path().parent.mkdir()
    certificates.path().write_text('{"Tested GPU, sm_90": 3}')
    with pytest.raises(ConfigError, match=r"certificates\.json\. Remove it"):
        explained()


@pytest.mark.skipif(not has_guard(), reason="gradients of fake CUDA tensors need a guard")
def test_a_certified_call_gets_as_far_as_the_launch(device: str) -> None:
    certificates.store(device, rows())
    plan._cached_plan.cache_clear()
    with fake_cuda(), torch.device("cuda"):
        x = [torch.empty(8, 1024, 64) for _ in range(3)]
        with pytest.raises(Exception, match="launched"):
            stop_at_launch(x)


def stop_at_launch(x: list[Tensor]) -> None:
    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            raise RuntimeError(f"launched with {grid}")

    with pytest.MonkeyPatch.context() as patch:
        from qkv.algorithms.additive import triton_kernels

        patch.setattr(triton_kernels, "choose", Kernel())
        qkv.attention(*x, score=qkv.scores.Additive(torch.empty(64)))


def test_measurements_of_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "DTYPES", (F32,))
    monkeypatch.setattr(tune, "_errors", lambda *_: 0.5)
    monkeypatch.setattr(tune, "_HEADS", 1)
    monkeypatch.setattr(tune, "_WIDTH", 4)
    measured = list(tune.measure(torch.device("cpu"), sizes=(20,), repeats=1))
    assert [(row.algorithm, row.gradient, row.pairs) for row in measured] == [(NAME, x, 400) for x in (False, True)]
    assert all(row.milliseconds > 0 for row in measured), measured
