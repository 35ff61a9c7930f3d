"""A cache is known by what it is, wherever it stands; keys from an unknown one are an error, never other maps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.hub import theirs
from torch import Tensor

import qkv
from qkv.errors import UnsupportedError
from qkv.recording.trace import Trace

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

IDS = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(2))
SIZES = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}


class Duck:
    """A cache of no library: it does what one does."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_cache"], name)


class Opaque:
    """Holds a cache, and says nothing of it."""

    def __init__(self, cache: Any) -> None:
        self.held = cache


class Model(transformers.LlamaModel):  # type: ignore[misc, name-defined]
    """A Llama that takes its cache under any name, at any place and in any form, or keeps it."""

    kept: Any = None
    used: Any = None

    def forward(self, input_ids: Tensor, *further: Any, **named: Any) -> Any:
        given = [x for x in (self.kept, *further, *named.values()) if x is not None]
        self.used = cache_in(given[0]) if given else transformers.DynamicCache()
        return super().forward(input_ids, use_cache=True, **{theirs.name_of_cache(): self.used})


def cache_in(x: Any) -> Any:
    if isinstance(x, Opaque):
        return x.held
    if isinstance(x, Tensor):
        return transformers.DynamicCache([(key, value) for key, value in x])
    if isinstance(x, dict):
        return cache_in(next(iter(x.values())))
    if isinstance(x, tuple):
        return transformers.DynamicCache(x) if isinstance(x[0], tuple) else cache_in(x[0])
    return x


def pairs_of(cache: Any) -> tuple[tuple[Tensor, Tensor], ...] | None:
    return None if cache is None else tuple((layer.keys, layer.values) for layer in cache.layers)


def stacked(cache: Any) -> Tensor | None:
    return None if cache is None else torch.stack([torch.stack(pair) for pair in pairs_of(cache) or ()])


def read(step: Callable[[Model, Tensor, Any], None], before: int = 0) -> tuple[Trace, Trace]:
    """A text read with a cache, token by token after its beginning, and in one pass; its beginning before recording."""
    torch.manual_seed(3)
    model = qkv.hub.attach(Model(transformers.LlamaConfig(**SIZES)).eval())
    with torch.no_grad():
        cache = transformers.DynamicCache()
        if before:
            model(IDS[:, :before], cache)
        with qkv.record(model) as trace:
            for start, end in ((before, 3), (3, 4), (4, 5), (5, 7)):
                step(model, IDS[:, start:end], cache)
        model.kept = None
        with qkv.record(model) as once:
            model(IDS)
    return trace, once


KNOWN: dict[str, Callable[[Model, Tensor, Any], None]] = {
    "another name": lambda model, ids, cache: model(ids, memory=cache),
    "by position": lambda model, ids, cache: model(ids, None, cache),
    "in a tuple": lambda model, ids, cache: model(ids, state=(cache, 3)),
    "in a dict": lambda model, ids, cache: model(ids, {"text": cache}),
    "pairs of tensors for each layer": lambda model, ids, cache: model(ids, past=pairs_of(model.used)),
    "another class": lambda model, ids, cache: model(ids, memory=Duck(cache)),
}


@pytest.mark.parametrize("how", KNOWN)
def test_a_cache_is_known_by_what_it_is(how: str) -> None:
    trace, once = read(KNOWN[how])
    assert len(trace.passes) == 1
    for layer in once.layers:
        torch.testing.assert_close(trace.weights(layer), once.weights(layer), rtol=1e-4, atol=1e-6)


def keep(model: Model, ids: Tensor, cache: Any) -> None:
    model.kept = cache
    model(ids)


UNKNOWN: dict[str, tuple[Callable[[Model, Tensor, Any], None], str]] = {
    "an object": (lambda model, ids, cache: model(ids, memory=Opaque(cache)), "memory=Opaque"),
    "an object by position": (lambda model, ids, cache: model(ids, Opaque(cache)), "argument 1=Opaque"),
    "an object in a dict": (lambda model, ids, cache: model(ids, state={"text": Opaque(cache)}), "state=dict"),
    "one tensor": (lambda model, ids, cache: model(ids, memory=stacked(model.used)), "memory"),
    "an attribute of the model": (keep, r"=DynamicCache in layers\.0\.self_attn"),
}


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("how", UNKNOWN)
def test_keys_from_an_unknown_cache_are_an_error_that_names_it(how: str, before: int) -> None:
    step, name = UNKNOWN[how]
    with pytest.raises(UnsupportedError, match=rf"; got .*{name}.*: layers\.0\.self_attn has more keys"):
        read(step, before)


def test_a_layer_that_projects_more_keys_than_queries_needs_no_cache() -> None:
    """Keys of the text and of the latents are one sequence, queries the latents alone."""
    module = pytest.importorskip("transformers.models.idefics2.modeling_idefics2")
    config = transformers.models.idefics2.configuration_idefics2.Idefics2PerceiverConfig(
        hidden_size=16, resampler_n_latents=3, resampler_depth=2, resampler_n_heads=2, resampler_head_dim=8,
        num_key_value_heads=1,
    )  # fmt: skip
    model = qkv.hub.attach(module.Idefics2PerceiverResampler(config).eval())
    with torch.no_grad(), qkv.record(model) as trace:
        for _ in range(2):
            model(context=torch.randn(2, 6, 16), attention_mask=torch.ones(2, 6))
    assert [one.weights(trace.layers[0]).shape for one in trace.passes] == [(2, 2, 3, 9)] * 2
