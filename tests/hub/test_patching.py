"""Changed heads of attached models, judged by eager attention that is written out and changed by hand."""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.errors import UnsupportedError

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}
SEEN = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
NEAR = torch.ones(9, 9, dtype=torch.bool).tril(2).triu(-2)


def model_of(family: str) -> Any:
    match family:
        case "bert":
            model = transformers.BertModel(transformers.BertConfig(**SIZES))
        case "albert":
            model = transformers.AlbertModel(transformers.AlbertConfig(**SIZES, embedding_size=16))
        case "llama":  # grouped heads
            model = transformers.LlamaModel(transformers.LlamaConfig(**SIZES, num_key_value_heads=2))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.double().eval()


@contextmanager
def by_hand(model: Any, call: int, head: int, **change: Callable[[Tensor], Tensor]) -> Iterator[list[Any]]:
    """Change weights or output of one head of one call of eager attention; yields all outputs and weights."""
    module = sys.modules[type(model).__module__]
    calls: list[Any] = []
    eager = module.eager_attention_forward

    def attend(layer: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, scaling: float, **_: Any) -> Any:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        weights = (query @ key.mT * scaling + mask).softmax(-1)  # (B, H, Q, K)
        outputs = list((weights @ value).unbind(1))
        if len(calls) == call:
            if "weights" in change:
                outputs[head] = change["weights"](weights[:, head]) @ value[:, head]
            if "output" in change:
                outputs[head] = change["output"](outputs[head])
        output = torch.stack(outputs, 2)  # (B, Q, H, V)
        calls.append((output, weights))
        return output, weights

    module.eager_attention_forward = attend  # type: ignore[attr-defined]
    try:
        yield calls
    finally:
        module.eager_attention_forward = eager  # type: ignore[attr-defined]


def restricted(w: Tensor) -> Tensor:
    kept = w * NEAR
    return kept / kept.sum(-1, keepdim=True).clamp(min=1e-300)


@pytest.mark.parametrize("what", ["zero", "mean", "output", "weights", "function", "mask"])
@pytest.mark.parametrize("family", ["bert", "albert", "llama"])
def test_a_changed_head_is_that_of_eager_attention(family: str, what: str) -> None:
    model = model_of(family)
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    qkv.hub.attach(model)
    ids, other = torch.randint(1, 50, (2, 2, 9)).unbind()
    with torch.no_grad(), qkv.record(model) as trace:
        model(input_ids=other, attention_mask=SEEN)
    with torch.no_grad(), by_hand(eager, -1, 0) as calls:
        eager(input_ids=other, attention_mask=SEEN)
    call, head = 1, 2
    output, weights = calls[call][0][:, :, head], calls[call][1][:, head]
    mean = output[SEEN.bool()].mean(0)
    change, hand = {
        "zero": ("zero", {"output": lambda o: 0 * o}),
        "mean": (("mean", trace), {"output": mean.expand_as}),
        "output": (("output", trace), {"output": lambda _: output}),
        "weights": (("weights", trace), {"weights": lambda _: weights}),
        "function": (("weights", torch.square), {"weights": torch.square}),
        "mask": (NEAR, {"weights": restricted}),
    }[what]
    results = []
    for ran, context in (
        (eager, by_hand(eager, call, head, **hand)),  # type: ignore[arg-type]
        (model, qkv.patch(model, {trace.layers[call]: {head: change}})),
    ):
        with context:
            states = ran(input_ids=ids, attention_mask=SEEN).last_hidden_state[SEEN.bool()]
            states.square().sum().backward()
        results.append([states, *(parameter.grad for parameter in ran.parameters() if parameter.grad is not None)])
    plain = model(input_ids=ids, attention_mask=SEEN).last_hidden_state[SEEN.bool()]
    assert not torch.allclose(results[0][0], plain)
    assert len(results[0]) == len(results[1])
    for mine, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(mine, expected)


def test_a_generation_with_a_cache_follows_the_changed_model() -> None:
    torch.manual_seed(3)
    config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).double().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    qkv.hub.attach(model)
    ids = torch.randint(1, 50, (1, 5))
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(ids, **options)
    assert len(set(plain[0, 5:].tolist())) > 1
    with qkv.record(model) as trace:
        model.generate(ids, **options)
    layer = trace.layers[1]
    with qkv.patch(model, {layer: {0: "zero", 1: ("output", torch.sin)}}):
        found = model.generate(ids, **options)
        assert torch.equal(found, model.generate(ids, **options, use_cache=False))
        best = model(found).logits.argmax(-1)[:, 4:-1]
    assert torch.equal(best, found[:, 5:])
    assert not torch.equal(found, plain)
    with qkv.patch(model, {layer: {0: ("output", trace)}}):  # what it would compute anyway, step by step
        assert torch.equal(model.generate(ids, **options), plain)
        assert torch.equal(model.generate(ids, **options), plain)


def _with(model: Any, implementation: str) -> Any:
    model.set_attn_implementation(implementation)
    return model


def test_a_layer_that_another_implementation_computes_is_named() -> None:
    model = qkv.hub.attach(model_of("bert"))
    ids = torch.ones(1, 4, dtype=torch.int64)
    model(input_ids=ids)
    patched = qkv.patch(model, {"encoder.layer.1.attention.self": "zero"})
    with pytest.raises(UnsupportedError, match=r"no call of encoder\.layer\.1"), patched:
        _with(model, "sdpa")(input_ids=ids)
