"""The language model: causal, equal with and without a cache, for every kind of position, score and head."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from qkv.errors import ConfigError, ShapeError
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.language_model import DecoderState, LanguageModel
from qkv.nn.blocks import BlockCache
from qkv.nn.decoding.cache import Memory

SMALL = DecoderConfig(size=23, width=24, heads=4, feed_forward=32, layers=2, context=32, dropout=0.0)
KINDS: list[dict[str, Any]] = [
    {},
    {"positions": "learned"},
    {"positions": "sinusoidal"},
    {"positions": "none"},
    {"positions": "alibi"},
    {"positions": "relative", "window": 6, "key_heads": 2},
    {"key_heads": 2},
    {"key_heads": 1, "window": 5},
    {"window": 1, "positions": "sinusoidal"},
    {"score": "bilinear"},
    {"score": "additive", "positions": "learned"},
    {"normalizer": "sparsemax"},
    {"normalizer": "entmax", "window": 7},
    {"normalizer": "sigmoid"},
    {"tied": False, "activation": "gelu", "bias": False},
]


def model_of(changes: dict[str, Any]) -> LanguageModel:
    torch.manual_seed(0)
    model = LanguageModel(replace(SMALL, **changes)).eval()
    for parameter in model.parameters():  # blocks start as identities: nothing would be tested
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(params=KINDS, ids=lambda changes: ",".join(f"{k}={v}" for k, v in changes.items()) or "default")
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return model_of(request.param)


TOKENS = torch.randint(0, 23, (3, 16), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_with_a_cache_as_without(model: LanguageModel) -> None:
    whole = model(TOKENS)
    first, state = model.read(TOKENS[:, :4])
    found = [first]
    for column in TOKENS[:, 4:9].unbind(1):
        logits, state = model.step(column, state)
        found.append(logits[:, None])
    last, state = model.read(TOKENS[:, 9:], state)
    torch.testing.assert_close(torch.cat([*found, last], 1), whole, rtol=0, atol=2e-4)
    assert state.position == TOKENS.shape[1]


@torch.no_grad()
def test_padding_on_the_left_changes_nothing(model: LanguageModel) -> None:
    padding, length = torch.tensor([0, 3, 9]), TOKENS.shape[1]
    real = torch.arange(length) >= padding[:, None]
    tokens = TOKENS.where(real, 0)
    together = model(tokens, padding)
    first, state = model.read(tokens[:, :11], padding=padding)
    rows = torch.tensor([2, 0])
    last, state = model.read(tokens[rows, 11:], model.select(state, rows))
    found = torch.cat([first[rows], last], 1)
    torch.testing.assert_close(found[real[rows]], together[rows][real[rows]], rtol=0, atol=2e-4)
    for row, count in enumerate(padding.tolist()):
        torch.testing.assert_close(together[row, count:], model(TOKENS[row, None, count:])[0], rtol=0, atol=2e-4)
    assert torch.equal(model(TOKENS, padding)[real], together[real])


@torch.no_grad()
def test_no_token_sees_a_later_one(model: LanguageModel) -> None:
    changed = TOKENS.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 23
    before, after = model(TOKENS), model(changed)
    torch.testing.assert_close(after[:, :9], before[:, :9], rtol=0, atol=1e-5)
    assert (after[:, 9:] - before[:, 9:]).abs().amin() < (after[:, 9] - before[:, 9]).abs().amax()


@torch.no_grad()
def test_rows_of_a_state_go_on_by_themselves(model: LanguageModel) -> None:
    _, state = model.read(TOKENS[:, :8])
    together, _ = model.step(TOKENS[:, 8], state)
    rows = torch.tensor([2, 0])
    alone, _ = model.step(TOKENS[rows, 8], model.select(state, rows))
    torch.testing.assert_close(alone, together[rows], rtol=0, atol=2e-5)


@torch.no_grad()
def test_a_window_hides_what_is_too_far_back_and_its_cache_stays_small() -> None:
    model = model_of({"window": 3, "layers": 1})
    changed = TOKENS.clone()
    changed[:, 2] = (changed[:, 2] + 1) % 23
    before, after = model(TOKENS), model(changed)
    torch.testing.assert_close(after[:, 6:], before[:, 6:], rtol=0, atol=1e-5)
    assert (after[:, 5] - before[:, 5]).abs().max() > 1e-3, "three back is still seen"
    _, state = model.read(TOKENS)
    past = state.caches[0].past
    assert past is not None
    assert (past.length, past.first) == (3, TOKENS.shape[1] - 3)


@torch.no_grad()
def test_rotary_positions_make_a_shifted_text_the_same() -> None:
    model = model_of({})
    moved = DecoderState((BlockCache(Memory(*(torch.zeros(3, 4, 0, 6),) * 2, first=900)),) * 2, 900)
    torch.testing.assert_close(model.read(TOKENS, moved)[0], model(TOKENS), rtol=0, atol=2e-3)


def test_every_parameter_learns() -> None:
    model = LanguageModel(replace(SMALL, positions="learned"))
    for _ in range(2):  # zero weights pass a gradient from the second update on
        model(TOKENS).logsumexp(-1).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.01)
    dead = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert [name for name in dead if not name.endswith("bias")] == []


def test_a_new_model_predicts_evenly() -> None:
    following = TOKENS.roll(1, 0).flatten()
    loss = torch.nn.functional.cross_entropy(model_at_start().flatten(0, 1), following)
    assert loss.item() == pytest.approx(torch.log(torch.tensor(23.0)).item(), abs=0.2)


def model_at_start() -> torch.Tensor:
    torch.manual_seed(0)
    found: torch.Tensor = LanguageModel(SMALL)(TOKENS).detach()
    return found


def test_learned_positions_end_with_the_context() -> None:
    with pytest.raises(ShapeError, match="at most 32 positions; got 33"):
        model_of({"positions": "learned"})(torch.zeros(1, 33, dtype=torch.int64))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 5}, "heads.*divisor of width.*5 for width 24"),
        ({"key_heads": 0}, "key_heads.*at least 1"),
        ({"key_heads": 3}, "key_heads.*divisor of 4 heads"),
        ({"positions": "rotery"}, 'positions.*Did you mean "rotary"'),
        ({"score": "additive", "positions": "rotary"}, "sinusoidal, .* with additive under softmax; got .*rotary"),
        ({"width": 20}, "heads.*even width per head"),
    ],
)
def test_sizes_that_do_not_fit_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LanguageModel(replace(SMALL, **changes))
