"""Where machine code cannot be loaded, PyTorch's operators serve, and `explain` says why."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import qkv
from qkv.compiled import available, library
from qkv.compiled.target import CHOICE
from qkv.scores.kernels import Epanechnikov, Gaussian
from qkv.scores.products import ScaledDot
from qkv.scores.sums import Additive

SCORES = {
    "additive": Additive(torch.linspace(-1, 1, 16)),
    "scaled dot": ScaledDot(),
    "gaussian": Gaussian(1.0),
    "epanechnikov": Epanechnikov(3.0),
}
pytestmark = pytest.mark.skipif(CHOICE.target is None, reason="no compiled kernels here")


def nothing(path: Path) -> None:
    """Leave the folder empty, as an installation without kernels."""


def garbage(path: Path) -> None:
    path.write_bytes(b"no library")


def empty(path: Path) -> None:
    path.write_bytes(b"")


REASONS = {
    nothing: "this installation holds no compiled kernels for ",
    garbage: "cannot be loaded here: ",
    empty: "here: ",
}


@pytest.fixture(params=REASONS, ids=lambda spoil: spoil.__name__)
def reason(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    assert CHOICE.target is not None
    request.param(tmp_path / f"{CHOICE.target.name}.so")
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    library.why_unavailable.cache_clear()
    yield REASONS[request.param]
    library.why_unavailable.cache_clear()


def test_a_process_with_kernels_says_nothing() -> None:
    assert available.why_unavailable() is None


@pytest.mark.parametrize("name", SCORES)
def test_other_algorithms_serve_and_the_plan_says_why(name: str, reason: str) -> None:
    # A plan is remembered by its sizes: no other test has these, and each reason has its own.
    query, key, value = (torch.randn(1, 3, 130 + len(reason), 16) for _ in range(3))
    plan = qkv.explain(query, key, value, score=SCORES[name])
    assert any(reason in why for why in dict(plan.refusals).values()), plan.refusals
    output, expected = (
        qkv.attention(query, key, value, score=SCORES[name], backend=backend) for backend in ("auto", "reference")
    )
    torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("reason", [nothing], indirect=True)
@pytest.mark.usefixtures("reason")
@pytest.mark.filterwarnings("ignore::qkv.tasks.length.CutWarning")
@pytest.mark.parametrize("model", ["gru", pytest.param("lstm", marks=pytest.mark.slow), "transformer"])
def test_models_train_and_decode(model: str, tmp_path: Path) -> None:
    pairs = [(f"{a}{b}", f"{b}{a}") for a in "abcdefgh" for b in "abcdefgh"]
    settings = {"model": model, "tokenizer": "char", "width": 24, "heads": 2 if model == "transformer" else None}
    named = {name: value for name, value in settings.items() if value is not None}
    run = qkv.train("translate", data=pairs, out=tmp_path / "run", steps=2, quiet=True, **named)
    assert len(run.load().translate(["ab", "cd"], beam=3)) == 2
