"""A prompt is continued by what the model predicts after it, whatever its neighbors in the batch are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from qkv.compiled import available
from qkv.decode.beam import Beam, beam
from qkv.decode.greedy import greedy
from qkv.decode.prompted import Prompted
from qkv.decode.protocol import Hypothesis
from qkv.decode.sampling import Sampling, row_keys, sample
from qkv.errors import ConfigError
from qkv.linalg import matmul
from qkv.linalg.packed import PackedWeight
from qkv.linalg.session import DecodingSession
from qkv.models.language_model import LanguageModel
from qkv.models.parts import PositionParts, TransformerParts

PROMPTS = [[5, 6, 7, 8], [9], [10, 11]]


@pytest.fixture(params=["learned", "rotary", "window"])
def model(request: pytest.FixtureRequest) -> Prompted:
    torch.manual_seed(0)
    windowed = request.param == "window"
    positions = PositionParts("rotary" if windowed else request.param)
    more = {"window": 2, "windowed": (True, False)} if windowed else {}
    network = LanguageModel(TransformerParts(20, 16, 4, 2, 4, 32, 2, context=16, positions=positions, **more))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return Prompted(network.eval())


def batch(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, prompts))
    rows = [prompt + [0] * (longest - len(prompt)) for prompt in prompts]
    return torch.tensor(rows), torch.tensor([len(prompt) for prompt in prompts])


@pytest.mark.parametrize("how", ["greedy", "beam", "sample"])
def test_together_as_alone(model: Prompted, how: str) -> None:
    def continued(prompts: list[list[int]]) -> list[tuple[int, ...]]:
        settings = {"bos": 0, "eos": 1, "limit": 8}
        if how == "greedy":
            return [found.ids for found in greedy(model, *batch(prompts), **settings)]
        if how == "beam":
            return [found[0].ids for found in beam(model, *batch(prompts), search=Beam(3), **settings)]
        keys = torch.tensor(row_keys(prompts))
        found = sample(model, *batch(prompts), sampling=Sampling(seed=2), keys=keys, **settings)
        return [one.ids for one in found]

    assert continued(PROMPTS) == [continued([prompt])[0] for prompt in PROMPTS]


class Plain:
    """A model that is never given a session."""

    def __init__(self, model: Prompted) -> None:
        self.start, self.step, self.select = model.start, model.step, model.select


@pytest.mark.parametrize("how", [greedy, beam])
def test_a_session_keeps_packed_weights_and_changes_no_id(
    model: Prompted, how: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if available.why_unavailable() is not None:
        pytest.skip("no compiled kernels here")
    monkeypatch.setattr(matmul, "_packed_weight_class", lambda: PackedWeight)
    monkeypatch.setattr(matmul, "_MIN_MULTIPLICATIONS", 1)
    settings: dict[str, Any] = {"bos": 0, "eos": 1, "limit": 8}
    network: Any = model.model
    with DecodingSession() as session:
        for _ in range(2):
            expected = how(Plain(model), *batch(PROMPTS), **settings)
            assert ids(how(model, *batch(PROMPTS), session=session, **settings)) == ids(expected)
            with torch.no_grad():
                network.blocks[0].feed_forward.contract.weight.mul_(-2)
        assert {network.output, network.blocks[0].self_attention.output} <= set(session._stored)


def ids(found: Any) -> list[Any]:
    return [one.ids if isinstance(one, Hypothesis) else ids(one) for one in found]


def test_greedy_ids_are_the_likeliest_of_the_whole_text(model: Prompted) -> None:
    (found,) = greedy(model, *batch([PROMPTS[0]]), bos=0, eos=1, limit=6)
    text = list(PROMPTS[0])
    for token in found.ids:
        with torch.no_grad():
            logits = model.model.read(torch.tensor([text]))[0]
        assert int(logits[0, -1].argmax()) == token
        text.append(token)


def test_an_empty_prompt_is_refused(model: Prompted) -> None:
    with pytest.raises(ConfigError, match="source: expected prompts of at least one token"):
        model.start(torch.tensor([[5], [0]]), torch.tensor([1, 0]))
