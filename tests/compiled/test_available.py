"""Where machine code cannot be loaded, PyTorch's operators serve, and `explain` says why."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import qkv
from qkv.compiled import available, linking
from qkv.scores.kernels import Epanechnikov, Gaussian
from qkv.scores.products import ScaledDot
from qkv.scores.sums import Additive

SCORES = {
    "additive": Additive(torch.linspace(-1, 1, 16)),
    "scaled dot": ScaledDot(),
    "gaussian": Gaussian(1.0),
    "epanechnikov": Epanechnikov(3.0),
}


@pytest.fixture
def unlinked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(code: bytes, name: str) -> None:
        raise RuntimeError("relocation out of range")

    monkeypatch.setattr(linking, "load", refuse)
    available._expect_linker.cache_clear()
    yield
    available._expect_linker.cache_clear()


def test_a_process_that_can_link_says_nothing() -> None:
    available._expect_linker.cache_clear()
    assert available.why_unavailable() is None


@pytest.mark.usefixtures("unlinked")
@pytest.mark.parametrize("name", SCORES)
def test_other_algorithms_serve_and_the_plan_says_why(name: str) -> None:
    # A plan is remembered by its sizes: no other test has these.
    query, key, value = (torch.randn(1, 3, 137, 16) for _ in range(3))
    plan = qkv.explain(query, key, value, score=SCORES[name])
    assert "compiled kernels cannot be linked here: relocation out of range" in dict(plan.refusals).values()
    output, expected = (
        qkv.attention(query, key, value, score=SCORES[name], backend=backend) for backend in ("auto", "reference")
    )
    torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("unlinked")
@pytest.mark.filterwarnings("ignore::qkv.tasks.cut.CutWarning")
@pytest.mark.parametrize("model", ["gru", "lstm", "transformer"])
def test_models_train_and_decode(model: str, tmp_path: Path) -> None:
    pairs = [(f"{a}{b}", f"{b}{a}") for a in "abcdefgh" for b in "abcdefgh"]
    settings = {"model": model, "tokenizer": "char", "width": 24, "heads": 2 if model == "transformer" else None}
    named = {name: value for name, value in settings.items() if value is not None}
    run = qkv.train("translate", data=pairs, out=tmp_path / "run", steps=2, quiet=True, **named)
    assert len(run.load().translate(["ab", "cd"], beam=3)) == 2
