"""The form that algorithms take on a GPU, run on the CPU: the same numbers as the equation's, whatever the tiles."""

import pytest
import torch
from tests.contract.calls import MECHANISMS
from tests.contract.mechanisms import BATCH, HEADS, MASKS, MaskCase, NormalizerCase, ScoreCase

import qkv
from qkv.algorithms.sdpa import flash, softmax_sink
from qkv.algorithms.tiled import cores, stripes, user_scores
from qkv.engine import tiles
from qkv.engine.describe import Arguments, describe
from qkv.linalg import centering, toeplitz
from qkv.normalizers import sparse

CASES = [(*mechanism, MASKS[index % len(MASKS)]) for index, mechanism in enumerate(MECHANISMS)]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no tensor for one whose numbers are at hand, and make tiles small enough that there are several."""
    for module in (tiles, cores, stripes, user_scores, centering, sparse, toeplitz):
        monkeypatch.setattr(module, "on_host", lambda device: False)
    monkeypatch.setattr(tiles, "RESIDENT", tiles.TileSize(1 << 12, 8))


@pytest.mark.parametrize(("score", "normalizer", "mask"), CASES)
def test_large_tiles_give_what_the_equation_gives(score: ScoreCase, normalizer: NormalizerCase, mask: MaskCase) -> None:
    queries, keys, draw = 67, 59, torch.Generator().manual_seed(1)
    parameters = [
        {name: torch.rand(shape, generator=draw) + 1.2 for name, shape in shapes.items()}
        for shapes in (score.shapes(score.width, score.key_width), normalizer.shapes)
    ]
    widths = (queries, score.width), (keys, score.key_width), (keys, 32)
    leaves = [torch.randn(BATCH, HEADS, *shape, generator=draw) for shape in widths]
    leaves = [(x * 2).round() / 2 if score.grid else x for x in leaves]
    visible = mask.build(queries, keys, draw)
    results = []
    # Rounding decides which of two nearly equal scores is the largest.
    precise = torch.float64 if normalizer.name == "hard" else torch.float32
    for backend, dtype in (("blocked", precise), ("reference", torch.float64)):
        x = [leaf.to(dtype, copy=True).requires_grad_() for leaf in leaves]
        of_score, of_normalizer = (
            {name: parameter.to(dtype, copy=True).requires_grad_() for name, parameter in part.items()}
            for part in parameters
        )
        options = {"score": score.build(of_score), "normalizer": normalizer.build(of_normalizer), "mask": visible}
        output = qkv.attention(*x, **options, backend=backend)
        learned = [*x, *of_score.values(), *of_normalizer.values()]
        gradients = torch.autograd.grad(output.square().sum(), learned, allow_unused=True)
        pairs = zip(gradients, learned, strict=True)
        results.append([output, *(torch.zeros_like(y) if g is None else g for g, y in pairs)])
    for result, expected in zip(*results, strict=True):
        scale = expected.detach().abs().max().clamp(min=1e-12)
        torch.testing.assert_close(result.detach().double() / scale, expected.detach() / scale, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(
    "mask", [None, qkv.masks.causal(), qkv.masks.lengths(torch.tensor([5, 3])), qkv.masks.window(2, 0)]
)
@pytest.mark.parametrize("sink", [0.5, -torch.inf, torch.inf, torch.tensor([0.3, -2.0])])
def test_a_sink_as_a_key_is_the_softmax_with_a_sink(mask: qkv.masks.Mask | None, sink: float | torch.Tensor) -> None:
    sinks = sink.requires_grad_() if isinstance(sink, torch.Tensor) else sink
    x = [torch.randn(2, 2, *shape, requires_grad=True) for shape in ((6, 5), (7, 5), (7, 3))]
    arguments = Arguments(qkv.scores.ScaledDot(), qkv.normalizers.Softmax(sinks), mask, None, 0.0, None, False)
    problem, call, _ = describe(*x, arguments)
    on_device = problem._replace(device="cuda")
    assert softmax_sink.refuses_key(on_device) is None
    output = softmax_sink.run_with_key(on_device, call).output
    expected = qkv.attention(*x, normalizer=arguments.normalizer, mask=mask, backend="reference")
    learned = [*x, sinks] if isinstance(sinks, torch.Tensor) else x
    results = ([y, *torch.autograd.grad(y.square().sum(), learned)] for y in (output, expected))
    for result, right in zip(*results, strict=True):
        torch.testing.assert_close(result, right, atol=1e-5, rtol=1e-5)


def test_widths_are_padded_to_those_that_fused_kernels_take() -> None:
    x = [torch.randn(1, 2, 6, width) for width in (5, 5, 3)]
    problem, call, _ = describe(*x, Arguments(qkv.scores.ScaledDot(), None, None, None, 0.0, None, False))
    inputs = flash.kernel_inputs(problem._replace(device="cuda"), call, flash.products_of(call))
    assert [y.shape[-1] for y in inputs[:3]] == [8, 8, 8]
    torch.testing.assert_close(flash.by_pytorch(problem, inputs)[..., :3], qkv.attention(*x))
