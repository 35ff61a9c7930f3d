"""A recording is a list of passes: whatever a program runs, each pass has the weights of one text."""

import copy
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests import pairs
from tests.hub import theirs
from torch import Tensor, nn

import qkv
from qkv.errors import ConfigError, ShapeError, UnsupportedError
from qkv.nn.attention import Attention
from qkv.nn.multihead import MultiHeadAttention
from qkv.recording.recorder import record
from qkv.recording.trace import Trace
from qkv.recording.trace_reader import read

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

CACHE = theirs.name_of_cache()
EARLIER = Path(__file__).parent / "earlier"
SMALL = {
    "vocab_size": 60,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "max_position_embeddings": 128,
}
PAIR = {
    "vocab_size": 60,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "max_position_embeddings": 64,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}


def tiny(name: str = "LlamaForCausalLM", options: dict[str, Any] | None = None, seed: int = 0) -> Any:
    cls = getattr(transformers, name)
    torch.manual_seed(seed)
    model = cls._from_config(cls.config_class(**(options or SMALL)), attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)
    return model


EAGER = {"llama": tiny(), "mistral": tiny("MistralForCausalLM", SMALL | {"sliding_window": 6}), "draft": tiny(seed=9)}
OURS = {name: qkv.hub.attach(copy.deepcopy(model)) for name, model in EAGER.items()}


def ids_of(seed: int, length: int, rows: int = 1) -> Tensor:
    return torch.randint(3, 60, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def maps_of(name: str, ids: Tensor) -> list[Tensor]:
    found: list[Tensor] = list(EAGER[name](ids, output_attentions=True, use_cache=False).attentions)
    return found


def assert_passes(trace: Trace, name: str, texts: list[Tensor]) -> None:
    """Each pass has the weights of one text, for which a model without a cache is the judge."""
    assert len(trace.passes) == len(texts), [one.weights(trace.layers[0]).shape for one in trace.passes]
    for number, text in enumerate(texts):
        for layer, weights in zip(trace.layers, maps_of(name, text), strict=True):
            torch.testing.assert_close(trace.weights(layer, reading=number), weights, rtol=1e-4, atol=1e-5)
            for row in range(len(text)):
                shown = trace.alignment(layer, row, reading=number)
                torch.testing.assert_close(shown, weights[row].mean(0), rtol=1e-4, atol=1e-5)
        (layer_shown, *_) = trace.scene(reading=number).layers
        expected = maps_of(name, text)[0][0]
        torch.testing.assert_close(layer_shown.map().dense(), expected, rtol=1e-4, atol=1e-5)


def read_once(model: Any, name: str, ids: Tensor) -> list[Tensor]:
    model(ids)
    return [ids]


def with_cache(model: Any, name: str, ids: Tensor) -> list[Tensor]:
    return [model.generate(ids, max_new_tokens=5, do_sample=False)[:, :-1]]


def without_cache(model: Any, name: str, ids: Tensor) -> list[Tensor]:
    written = model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=False)
    return [written[:, : ids.shape[1] + step] for step in range(4)]


def prompt_lookup(model: Any, name: str, ids: Tensor) -> list[Tensor]:
    """Repeats, so that some drafts are accepted."""
    ids = torch.cat([ids[:1], ids[:1]], 1)
    return [model.generate(ids, max_new_tokens=8, do_sample=False, prompt_lookup_num_tokens=3)[:, :-1]]


def assisted(model: Any, name: str, ids: Tensor) -> list[Tensor]:
    draft = copy.deepcopy(EAGER["draft"])
    return [model.generate(ids[:1], max_new_tokens=8, do_sample=False, assistant_model=draft)[:, :-1]]


def by_hand(model: Any, name: str, ids: Tensor) -> list[Tensor]:
    past = getattr(model(ids[:, :2], use_cache=True), CACHE)
    for place in range(2, ids.shape[1]):
        past = getattr(model(ids[:, place : place + 1], **{CACHE: past}), CACHE)
    return [ids]


def in_turn(model: Any, name: str, ids: Tensor) -> list[Tensor]:
    """Two texts with a cache of each are continued in turn."""
    texts = [ids, (ids + 7) % 57 + 3]
    pasts = [getattr(model(text[:, :1], use_cache=True), CACHE) for text in texts]
    for place in range(1, ids.shape[1]):
        for text, past in zip(texts, pasts, strict=True):
            model(text[:, place : place + 1], **{CACHE: past})
    return texts


def branches(model: Any, name: str, ids: Tensor) -> list[Tensor]:
    """One beginning that is read once, and two ends."""
    past = getattr(model(ids[:, :-2], use_cache=True), CACHE)
    ends = [ids[:, -2:], (ids[:, -2:] + 11) % 57 + 3]
    for end in ends:
        model(end, **{CACHE: copy.deepcopy(past)})
    return [torch.cat([ids[:, :-2], end], 1) for end in ends]


KINDS: list[Callable[[Any, str, Tensor], list[Tensor]]]
KINDS = [read_once, with_cache, without_cache, prompt_lookup, assisted, by_hand, in_turn, branches]


GOES_BACK = (prompt_lookup, assisted, branches)
"""What a cache with a window cannot do."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [*(("llama", kind) for kind in KINDS), *(("mistral", kind) for kind in KINDS if kind not in GOES_BACK)],
)
@torch.no_grad()
def test_each_kind_of_pass_alone(name: str, kind: Callable[..., list[Tensor]]) -> None:
    with record(OURS[name]) as trace:
        texts = kind(OURS[name], name, ids_of(3, 5))
    assert_passes(trace, name, texts)


def by_generation(model: Any, ids: Tensor, past: Any) -> Tensor:
    written: Tensor = model.generate(ids, max_new_tokens=4, do_sample=False, **{CACHE: past})
    return written[:, :-1]


def by_one_call(model: Any, ids: Tensor, past: Any) -> Tensor:
    model(ids[:, past.get_seq_length() :], **{CACHE: past})
    return ids


def by_single_tokens(model: Any, ids: Tensor, past: Any) -> Tensor:
    for place in range(past.get_seq_length(), ids.shape[1]):
        model(ids[:, place : place + 1], **{CACHE: past})
    return ids


# A static cache writes its window in place until it is full.
@pytest.mark.parametrize(
    ("beginning", "go_on", "name"),
    pairs.in_turn(
        [(3, False), (6, False), (9, False), (6, True), (9, True)],
        [by_generation, by_one_call, by_single_tokens],
        ["llama", "mistral"],
    ),
)
@torch.no_grad()
def test_a_text_whose_beginning_lies_in_an_earlier_cache(
    name: str, go_on: Callable[..., Tensor], beginning: tuple[int, bool]
) -> None:
    """Columns are positions in the text, also of a cache with a window that has dropped the first ones."""
    model, ids, (before, static) = OURS[name], ids_of(5, 13), beginning
    past = transformers.DynamicCache(config=model.config)
    if static:
        past = transformers.StaticCache(config=model.config, max_cache_len=32)
    model(ids[:, :before], use_cache=True, **{CACHE: past})
    with record(model) as trace:
        text = go_on(model, ids, past)
    if static and name == "llama" and go_on is not by_one_call:
        with pytest.raises(UnsupportedError, match="static cache"):
            trace.alignment(trace.layers[0])
        return
    empty = 32 - text.shape[1] if static and name == "llama" else 0  # their weights are 0
    maps = [nn.functional.pad(weights, (0, empty)) for weights in maps_of(name, text)]
    for layer, weights in zip(trace.layers, maps, strict=True):
        torch.testing.assert_close(trace.weights(layer), weights[:, :, before:], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(trace.alignment(layer), weights[0, :, before:].mean(0), rtol=1e-4, atol=1e-5)
        (statistics,) = trace.statistics(layer, "received")
        received = weights[:, :, before:].double().sum(-2)
        torch.testing.assert_close(statistics.received, received, rtol=1e-4, atol=1e-5)


EVENTS = st.tuples(st.sampled_from(KINDS), st.integers(0, 99), st.integers(3, 6), st.booleans())


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(EVENTS, min_size=2, max_size=4))
@torch.no_grad()
def test_whatever_a_program_runs_each_pass_is_one_text(events: list[tuple[Any, int, int, bool]]) -> None:
    """Passes and generations one after another, some of them in another thread while the recording is open."""
    model, texts = OURS["llama"], list[Tensor]()
    with record(model) as trace:
        for kind, seed, length, in_thread in events:

            @torch.no_grad()
            def run(kind: Any = kind, seed: int = seed, length: int = length) -> None:
                texts.extend(kind(model, "llama", ids_of(seed, length)))

            if in_thread:
                thread = threading.Thread(target=run)
                thread.start()
                thread.join()
            else:
                run()
    assert_passes(trace, "llama", texts)
    aside = [one.thread > 0 for one in trace.passes]
    if not all(aside):
        last = next(number for number in reversed(range(len(texts))) if not aside[number])
        expected = maps_of("llama", texts[last])[0]
        torch.testing.assert_close(trace.weights(trace.layers[0]), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_passes_go_to_disk_and_back(tmp_path: Path) -> None:
    model, texts = OURS["llama"], list[Tensor]()
    with record(model) as trace:
        for number, kind in enumerate((branches, with_cache, without_cache)):
            texts += kind(model, "llama", ids_of(number, 5))
    trace.save(tmp_path / "trace.safetensors")
    again = read(tmp_path / "trace.safetensors")
    assert_passes(again, "llama", texts)
    assert [(one.thread, one.step) for one in again.passes] == [(one.thread, one.step) for one in trace.passes]
    first, second = (one.calls[trace.layers[0]][0] for one in again.passes[:2])
    assert first is second, "the beginning that both share is written once"


def test_a_generation_in_a_thread_is_shown() -> None:
    model = OURS["llama"]
    with record(model) as trace:
        thread = threading.Thread(target=model.generate, args=(ids_of(1, 6),), kwargs={"max_new_tokens": 3})
        thread.start()
        thread.join()
    assert [one.thread for one in trace.passes] == [1]
    assert trace.alignment(trace.layers[0]).shape == (8, 8)


def test_which_of_several_threads_is_asked() -> None:
    model = OURS["llama"]
    with record(model) as trace:
        for number in range(2):
            thread = threading.Thread(target=torch.no_grad()(model), args=(ids_of(number, 4 + number),))
            thread.start()
            thread.join()
    with pytest.raises(ConfigError, match="got 2 passes of 2 other threads"):
        trace.weights(trace.layers[0])
    assert [trace.weights(trace.layers[0], reading=number).shape[-1] for number in range(2)] == [4, 5]
    with pytest.raises(ConfigError, match="reading: expected a pass from 0 to 1; got 2"):
        trace.alignment(trace.layers[0], reading=2)


def test_threads_that_record_one_model_get_their_own_passes() -> None:
    model, wrong = OURS["llama"], list[Any]()

    def run(seed: int, length: int) -> None:
        ids = ids_of(seed, length)
        for _ in range(15):
            with torch.no_grad(), record(model) as trace:
                model(ids)
            shapes = {layer: [tuple(call.query.shape) for call in calls] for layer, calls in trace.calls.items()}
            if any(shape != [(1, 4, length, 4)] for shape in shapes.values()):
                wrong.append(shapes)

    threads = [threading.Thread(target=run, args=(number, 4 + number)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@torch.no_grad()
def test_long_calls_in_threads_return_the_output_alone() -> None:
    """The recorder asks for row states by an argument: a setting of the module would reach other threads."""
    layer, wrong = Attention(), list[Any]()
    x = torch.randn(1, 1024, 8)

    def run(recorded: bool) -> None:
        for _ in range(10):
            if recorded:
                with record(layer):
                    found = layer(x, x, x)
            else:
                found = layer(x, x, x)
            if not isinstance(found, Tensor):
                wrong.append(type(found))

    threads = [threading.Thread(target=run, args=(number > 0,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert layer.also is None


@torch.no_grad()
def test_a_translator_without_a_cache_keeps_its_encoder() -> None:
    eager = tiny("BartForConditionalGeneration", PAIR)
    ours, source = qkv.hub.attach(copy.deepcopy(eager)), ids_of(2, 7)
    with record(ours) as trace:
        written = ours.generate(source, max_new_tokens=4, do_sample=False, use_cache=False)
    want = eager(source, decoder_input_ids=written[:, :-1], output_attentions=True)
    assert len(trace.passes) == 4
    names = {layer.name: layer for layer in trace.scene().layers}
    judged = {
        "model.encoder.layers.0.self_attn": want.encoder_attentions[0],
        "model.decoder.layers.1.self_attn": want.decoder_attentions[1],
        "model.decoder.layers.1.encoder_attn": want.cross_attentions[1],
    }
    for name, weights in judged.items():
        torch.testing.assert_close(names[name].map().dense(), weights[0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("by_model", [True, False])
def test_two_targets_share_the_source_that_was_read_once(by_model: bool) -> None:
    ours, source = qkv.hub.attach(tiny("BartForConditionalGeneration", PAIR)), ids_of(2, 7)
    with record(ours) as trace:
        states = ours.get_encoder()(source)
        for length in (3, 5):
            if by_model:
                ours(encoder_outputs=states, decoder_input_ids=ids_of(length, length))
            else:
                ours.model.decoder(ids_of(length, length), encoder_hidden_states=states[0])
    assert len(trace.passes) == 2
    for one, length in zip(trace.passes, (3, 5), strict=True):
        sizes = {layer.name: layer.shape[1:] for layer in one.scene().layers}
        assert sizes["model.encoder.layers.0.self_attn"] == (7, 7)
        assert sizes["model.decoder.layers.0.self_attn"] == (length, length)
        assert sizes["model.decoder.layers.0.encoder_attn"] == (length, 7)


@torch.no_grad()
@pytest.mark.parametrize("cached", [True, False])
def test_hypotheses_of_a_beam_select_their_pass(cached: bool) -> None:
    eager = EAGER["llama"]
    ids = ids_of(4, 5, rows=2)
    options = {"max_new_tokens": 5, "num_beams": 3, "num_return_sequences": 2, "do_sample": False, "use_cache": cached}
    with record(OURS["llama"]) as trace:
        got = OURS["llama"].generate(ids, return_dict_in_generate=True, output_scores=True, **options)
    for number, found in enumerate(qkv.hub.hypotheses(got)):
        text = got.sequences[number : number + 1, : 5 + len(found.ids) - 1]
        want = eager(text, output_attentions=True).attentions[1][0].mean(0)
        shown = trace.alignment(trace.layers[1], number // 2, hypothesis=found)
        torch.testing.assert_close(shown, want, rtol=1e-4, atol=1e-5)


class Twins(nn.Module):
    """One encoder that reads two texts in one pass, as a siamese model does."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        first, second = (self.encoder(x)[0] for x in (one, other))
        return torch.cat([first, second], 1)


@torch.no_grad()
def test_two_texts_within_one_pass_are_passes_of_their_own() -> None:
    twins = Twins(OURS["llama"])
    texts = [ids_of(1, 6), ids_of(2, 4)]
    with record(twins) as trace:
        twins(*texts)
    assert_passes(trace, "llama", texts)


class Shared(nn.Module):
    """A layer that runs several times in a pass, as in a universal Transformer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.layer(x) if isinstance(self.layer, MultiHeadAttention) else self.layer(x, x, x)[0]
        return x


@torch.no_grad()
@pytest.mark.parametrize("layer", [MultiHeadAttention(8, 2), nn.MultiheadAttention(8, 2, batch_first=True)])
def test_a_layer_that_runs_again_in_a_pass_is_another_layer(layer: nn.Module) -> None:
    model, x = Shared(layer), torch.randn(2, 5, 8)
    with record(model) as trace:
        model(x)
        model(x[:1, :3])
    assert [name.rpartition("#")[2] for name in trace.layers[1:]] == ["2", "3"]
    assert [{one.weights(name).shape for name in trace.layers} for one in trace.passes] == [
        {(2, 2, 5, 5)},
        {(1, 2, 3, 3)},
    ]


@torch.no_grad()
def test_a_model_that_reads_one_text_twice_has_two_passes() -> None:
    """Also where only attention to other sequences tells."""
    seam, pooled = Attention(), (torch.randn(1, 1, 8), *torch.randn(2, 1, 5, 8).unbind())
    layer, x = MultiHeadAttention(8, 2), torch.randn(1, 4, 8)
    with record(seam) as trace:
        for _ in range(2):
            seam(*pooled)
    assert [one.weights("").shape for one in trace.passes] == [(1, 1, 5)] * 2
    with record(layer) as trace:
        for _ in range(2):
            layer(x)
    assert [one.weights("attention").shape for one in trace.passes] == [(1, 2, 4, 4)] * 2


@torch.no_grad()
def test_a_failed_pass_does_not_reach_the_next() -> None:
    model = Shared(MultiHeadAttention(8, 2))
    with record(model) as trace:
        with pytest.raises(ShapeError):
            model(torch.randn(1, 3, 7))
        model(torch.randn(1, 3, 8))
    assert len(trace.passes) == 1


def batches() -> Iterator[Tensor]:
    for number, length in enumerate((5, 3, 8)):
        yield ids_of(number, length, rows=2)


@torch.no_grad()
def test_statistics_cover_a_data_set_batch_by_batch() -> None:
    model = OURS["llama"]
    with record(model, heads=[2, 0]) as trace:
        for ids in batches():
            model(ids)
    found = trace.statistics(trace.layers[1], "entropy", "received", "peak", "total", topk=2)
    assert len(found) == 3
    for one, ids in zip(found, batches(), strict=True):
        weights = maps_of("llama", ids)[1][:, [2, 0]].double()
        entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1)
        torch.testing.assert_close(one.entropy, entropy, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(one.received, weights.sum(-2), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(one.peak.double(), weights.amax(-1), rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]
        torch.testing.assert_close(one.weights.double(), weights.topk(2).values, rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="Did you mean"):
        trace.statistics("model.layers.1.self_atn", "entropy")


@torch.no_grad()
def test_statistics_of_a_generation_are_those_of_its_matrix() -> None:
    model = OURS["llama"]
    with record(model) as trace:
        (text,) = with_cache(model, "llama", ids_of(3, 4, rows=2))
    (one,) = trace.statistics(trace.layers[0], "received", "entropy")
    weights = maps_of("llama", text)[0].double()
    torch.testing.assert_close(one.received, weights.sum(-2), rtol=1e-4, atol=1e-5)
    assert one.entropy is not None
    assert one.entropy.shape == weights.shape[:-1]


def test_files_of_version_1_have_a_pass_for_each_batch() -> None:
    """Two searches of a translator, whose rows leave the batch, as the first version of traces stored them."""
    trace = read(EARLIER / "trace-1.safetensors")
    assert len(trace.passes) == 2
    for name, expected in load_file(EARLIER / "trace-1-alignments.safetensors").items():
        layer, reading, row = name.split("|")
        torch.testing.assert_close(trace.alignment(layer, int(row), reading=int(reading)), expected)
    assert trace.tokens == {"source": ("a", "b")}


@torch.no_grad()
def test_a_static_cache_is_refused_with_what_to_do() -> None:
    options = {"max_new_tokens": 3, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    with record(OURS["llama"]) as trace:
        OURS["llama"].generate(ids_of(1, 4), **options)
    assert len(trace.passes) == 1
    with pytest.raises(UnsupportedError, match="generate without a static cache"):
        trace.weights(trace.layers[0])
