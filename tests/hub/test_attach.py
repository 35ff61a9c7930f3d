"""Models of transformers on qkv's engine: the same results, lazy maps, recordings through caches and beams."""

import copy
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.theirs import name_of_cache
from tests.pairs import in_turn
from torch import Tensor, nn

import qkv
from qkv.errors import AttachError, ConfigError, UnsupportedError
from qkv.hub.attaching import NAME
from qkv.introspect.lazy_map import AttentionMap
from qkv.masks.patterns import Causal, Span

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

IDS = torch.randint(3, 90, (2, 9), generator=torch.Generator().manual_seed(5))
REAL = torch.ones(2, 9, dtype=torch.long)
REAL[1, :3] = 0
SMALL = {
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"vocab_size": 90, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "pad_token_id": 0}
SEQ2SEQ = {
    "vocab_size": 90,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_position_embeddings": 64,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
T5 = {
    "vocab_size": 90,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2 | {"bos_token_id": 1, "eos_token_id": 2}),
    "llama": ("LlamaForCausalLM", SMALL),
    "mistral": ("MistralForCausalLM", SMALL | {"sliding_window": 4}),
    "gemma2": ("Gemma2ForCausalLM", SMALL | {"head_dim": 8, "sliding_window": 4, "attn_logit_softcapping": 2.0}),
    "gpt_oss": (
        "GptOssForCausalLM",
        SMALL | {"head_dim": 8, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 2},
    ),
}
TRANSLATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("BartForConditionalGeneration", SEQ2SEQ),
    "marian": ("MarianMTModel", SEQ2SEQ),
}
if hasattr(import_module("transformers.models.t5.modeling_t5"), "ALL_ATTENTION_FUNCTIONS"):
    TRANSLATORS["t5"] = ("T5ForConditionalGeneration", T5)
"""In earlier versions T5 computes attention itself, and is refused."""
GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_attentions": True, "max_new_tokens": 7}
BEAM = GREEDY | {"num_beams": 3, "num_return_sequences": 2, "output_scores": True, "length_penalty": 0.0}


def model_of(name: str, options: dict[str, Any], **changes: Any) -> Any:
    """A model with random weights, on its own eager attention."""
    cls = getattr(transformers, name)
    torch.manual_seed(3)
    model = cls._from_config(cls.config_class(**options | changes), attn_implementation="eager")
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
    return model.eval()


def pair_of(name: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """A model on its own eager attention, and a copy that is attached."""
    model = model_of(name, options)
    return model, qkv.hub.attach(copy.deepcopy(model))


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_language_models_give_the_same(name: str, padded: bool) -> None:
    eager, ours = pair_of(*DECODERS[name])
    mask = REAL if padded else None
    want, got = (
        model(IDS, attention_mask=mask, output_attentions=True, output_hidden_states=True) for model in (eager, ours)
    )
    real = (REAL if padded else torch.ones_like(REAL)).bool()
    torch.testing.assert_close(got.logits[real], want.logits[real], rtol=1e-5, atol=2e-6)
    assert len(got.attentions) == 2
    for amap, weights in zip(got.attentions, want.attentions, strict=True):
        assert isinstance(amap, AttentionMap)
        shown = weights * real[:, None, :, None]
        torch.testing.assert_close(amap.dense() * real[:, None, :, None], shown, rtol=1e-4, atol=1e-6)
        assert amap.topk(1)[1].shape == (2, 4, 9, 1)


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", *TRANSLATORS])
def test_gradients_are_the_same(name: str) -> None:
    cls, options = (DECODERS | TRANSLATORS)[name]
    eager, ours = pair_of(cls, options)
    # The first real token is predicted from a padding position, whose row sees nothing.
    labels = IDS.where(REAL.cumsum(-1) > 1, -100)
    for model in (eager, ours):
        model(IDS, attention_mask=REAL, labels=labels).loss.backward()
    largest = max(float(x.grad.abs().max()) for x in eager.parameters() if x.grad is not None)
    for (path, mine), theirs in zip(ours.named_parameters(), eager.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5 * largest, msg=path)


@pytest.mark.parametrize("name", DECODERS)
def test_cached_generation_is_recorded(name: str) -> None:
    eager, ours = pair_of(*DECODERS[name])
    want = eager.generate(IDS, attention_mask=REAL, **GREEDY, eos_token_id=None)
    with qkv.record(ours) as trace:
        got = ours.generate(IDS, attention_mask=REAL, **GREEDY, eos_token_id=None)
    assert torch.equal(got.sequences, want.sequences)
    for number, layer in enumerate(trace.layers):
        weights = trace.weights(layer)
        for row in range(2):
            rows, start = weights[row], 0
            for step in want.attentions:
                expected = step[number][row]
                # A cache with a window has dropped the first keys, here they have weight 0.
                end = 9 + start - 9 + 1 if start else 9
                part = rows[:, start : start + expected.shape[-2], :end]
                expected = nn.functional.pad(expected, (end - expected.shape[-1], 0))
                first = 3 if row and not start else 0
                torch.testing.assert_close(part[:, first:], expected[:, first:], rtol=1e-4, atol=1e-6)
                start += expected.shape[-2]
        (shown,) = (each for each in trace.scene(1).layers if each.name == layer)
        torch.testing.assert_close(shown.map().dense()[:, 3:], weights[1][:, 3:], rtol=1e-4, atol=1e-6)


def test_a_generation_keeps_each_key_once_and_its_mask_stays_linear() -> None:
    ours = pair_of(*DECODERS["llama"])[1]
    with qkv.record(ours) as trace:
        ours.generate(IDS, attention_mask=REAL, **GREEDY, eos_token_id=None)
    calls = trace.calls[trace.layers[0]]
    kept = {call.key.untyped_storage().data_ptr() for call in calls}
    assert len(kept) <= 2, "what the prompt gave, and one growing memory"
    mask = trace.scene(1).layers[0].options["mask"]
    assert {type(part) for part in (mask.left, mask.right)} == {Causal, Span}


@pytest.mark.parametrize("name", in_turn(DECODERS | TRANSLATORS))
def test_beams_are_followed(name: str) -> None:
    cls, options = (DECODERS | TRANSLATORS)[name]
    eager, ours = pair_of(cls, options)
    want = eager.generate(IDS, attention_mask=REAL, **BEAM)
    with qkv.record(ours) as trace:
        got = ours.generate(IDS, attention_mask=REAL, **BEAM)
    assert torch.equal(got.sequences, want.sequences)
    translates = name in TRANSLATORS
    steps = want.decoder_attentions if translates else want.attentions
    own = [layer for layer in trace.layers if "encoder.layers" not in layer and not layer.startswith("encoder")]
    own = [layer for layer in own if "encoder_attn" not in layer and "EncDec" not in layer]
    for number, found in enumerate(qkv.hub.hypotheses(got)):
        rows = want.beam_indices[number][: len(found.log_probabilities)].tolist()
        for place, layer in enumerate(own):
            alignment = trace.alignment(layer, number // 2, hypothesis=found)
            last = torch.stack([steps[t][place][row, :, -1].mean(0)[-1] for t, row in enumerate(rows)])
            shown = torch.stack(
                [
                    alignment[8 + t if not translates else t][: 9 + t if not translates else t + 1][-1]
                    for t in range(len(rows))
                ]
            )
            torch.testing.assert_close(shown, last, rtol=1e-4, atol=1e-6)
        if translates:
            crossing = next(layer for layer in trace.layers if "encoder_attn" in layer or "EncDec" in layer)
            alignment = trace.alignment(crossing, number // 2, hypothesis=found)
            expected = torch.stack([want.cross_attentions[t][0][row, :, -1].mean(0) for t, row in enumerate(rows)])
            torch.testing.assert_close(alignment, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt2", *TRANSLATORS])
def test_samples_of_one_text_are_followed(name: str) -> None:
    cls, options = (DECODERS | TRANSLATORS)[name]
    eager, ours = pair_of(cls, options)
    how = {
        "max_new_tokens": 6,
        "do_sample": True,
        "num_return_sequences": 3,
        "return_dict_in_generate": True,
        "output_scores": True,
        "pad_token_id": 0,
        "eos_token_id": 9,
    }
    with qkv.record(ours) as trace:
        torch.manual_seed(0)
        got = ours.generate(IDS, attention_mask=REAL, **how)
    torch.manual_seed(0)
    want = eager.generate(IDS, attention_mask=REAL, **how, output_attentions=True)
    assert torch.equal(got.sequences, want.sequences)
    translates = name in TRANSLATORS
    steps = want.decoder_attentions if translates else want.attentions
    layer = next(each for each in trace.layers if not translates or ("decoder" in each and "encoder_attn" not in each))
    found = qkv.hub.hypotheses(got, end=9)
    new = got.sequences[:, -len(got.scores) :].tolist()
    ended = [ids[: ids.index(9) + 1] if 9 in ids else ids for ids in new]
    assert [list(each.ids) for each in found] == ended
    assert [each.finished for each in found] == [9 in ids for ids in new]
    terms = ours.compute_transition_scores(got.sequences, got.scores, normalize_logits=True)
    for row, each in enumerate(found):
        assert each.log_probabilities == pytest.approx(terms[row, : len(each.ids)].tolist(), rel=1e-4)
        alignment = trace.alignment(layer, row // 3, hypothesis=each)
        for step in range(1, len(each.ids)):
            expected = steps[step][0][row].mean(0)[-1]
            shown = alignment[step if translates else IDS.shape[1] - 1 + step][: expected.shape[-1]]
            torch.testing.assert_close(shown, expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(ConfigError, match="generated: expected outputs with scores"):
        qkv.hub.hypotheses(got.sequences)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_translator_attends_from_target_to_source(name: str) -> None:
    eager, ours = pair_of(*TRANSLATORS[name])
    target = IDS[:, :5]
    with torch.no_grad(), qkv.record(ours, tokenizer=Letters()) as trace:
        got = ours(IDS, attention_mask=REAL, decoder_input_ids=target)
    with torch.no_grad():
        want = eager(IDS, attention_mask=REAL, decoder_input_ids=target)
    torch.testing.assert_close(got.logits, want.logits, rtol=1e-5, atol=2e-6)
    scene = trace.scene(1)
    assert scene.sequences == {
        "source": tuple(f"<{x}>" for x in IDS[1].tolist()),
        "target": tuple(f"<{x}>" for x in target[1].tolist()),
    }
    kinds = [(layer.kind, layer.queries, layer.keys) for layer in scene.layers]
    assert sorted(kinds) == sorted(
        [("self", "source", "source"), ("self", "target", "target"), ("cross", "target", "source")] * 2
    )


class Letters:
    """A tokenizer of transformers, as far as a recorder uses it."""

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"<{number}>" for number in ids]


def test_lengths_that_agree_do_not_confuse_source_and_target() -> None:
    ours = pair_of(*TRANSLATORS["bart"])[1]
    with torch.no_grad(), qkv.record(ours) as trace:
        ours(IDS, decoder_input_ids=IDS)
    kinds = {layer.name: (layer.kind, layer.queries, layer.keys) for layer in trace.scene(0).layers}
    assert kinds["model.encoder.layers.0.self_attn"] == ("self", "source", "source")
    assert kinds["model.decoder.layers.0.self_attn"] == ("self", "target", "target")
    assert kinds["model.decoder.layers.0.encoder_attn"] == ("cross", "target", "source")


def test_tokens_of_a_generation_come_from_the_tokenizer() -> None:
    ours = pair_of(*DECODERS["gpt2"])[1]
    with qkv.record(ours, tokenizer=Letters()) as trace:
        ids = ours.generate(IDS, max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert trace.scene(1).sequences == {"text": tuple(f"<{x}>" for x in ids[1, :-1].tolist())}
    with pytest.raises(
        ConfigError, match=r"tokens: expected names of sequences of the trace; got 'txt'\. Did you mean"
    ):
        trace.scene(1, {"txt": ("a",)})


def test_a_pass_after_a_generation_has_the_rows_of_its_own_batch() -> None:
    ours = pair_of(*DECODERS["gpt2"])[1]
    with torch.no_grad(), qkv.record(ours) as trace:
        ours.generate(IDS, max_new_tokens=3, num_beams=2, eos_token_id=None)
        ours(IDS[1:, :4])
    layer = trace.layers[0]
    with torch.no_grad(), qkv.record(ours) as alone:
        ours(IDS[1:, :4])
    torch.testing.assert_close(trace.alignment(layer, 0), alone.alignment(layer, 0))


def test_layers_that_share_their_weights_are_layers() -> None:
    options = {
        "vocab_size": 90,
        "embedding_size": 16,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    eager, ours = pair_of("AlbertModel", options | {"intermediate_size": 32})
    with torch.no_grad():
        want = eager(IDS, output_attentions=True)
        with qkv.record(ours) as trace:
            ours(IDS)
    assert [name.rpartition("#")[2] for name in trace.layers[1:]] == ["2", "3"]
    for layer, weights in zip(trace.layers, want.attentions, strict=True):
        torch.testing.assert_close(trace.weights(layer), weights, rtol=1e-4, atol=1e-6)


IGNORING: dict[str, tuple[str, dict[str, Any], str]] = {
    "bloom": (
        "BloomModel",
        {"vocab_size": 90, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        r"BloomAttention|h\.0\.self_attention",
    ),
    "falcon": ("FalconModel", SMALL, r"h\.0\.self_attention"),
    "gptj": (
        "GPTJModel",
        {"vocab_size": 90, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8},
        r"h\.0\.attn",
    ),
    "deberta": ("DebertaV2Model", {**SMALL, "num_key_value_heads": None}, r"encoder\.layer\.0\.attention\.self"),
    "xlnet": (
        "XLNetModel",
        {"vocab_size": 90, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 32},
        r"layer\.0\.rel_attn",
    ),
}


@pytest.mark.parametrize("name", IGNORING)
def test_models_that_ignore_the_setting_are_named(name: str) -> None:
    cls, options, path = IGNORING[name]
    model = model_of(cls, options)
    if "ALL_ATTENTION_FUNCTIONS" in vars(sys.modules[type(model).__module__]):
        # A later version of the library follows the setting: then the results must agree.
        with torch.no_grad():
            expected = model(IDS)[0]
            torch.testing.assert_close(qkv.hub.attach(model)(IDS)[0], expected, atol=1e-5, rtol=1e-5)
        return
    with pytest.raises(AttachError, match=path), torch.no_grad():
        qkv.hub.attach(model)(IDS)


class Mixed(nn.Module):
    """Attention of its own beside a projection, as a remote model may have."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return (self.q_proj(x) @ self.k_proj(x).mT).softmax(-1) @ x


def test_one_module_that_computes_attention_itself_is_named_or_left_alone() -> None:
    model = model_of(*DECODERS["gpt2"])
    model.transformer.ln_f = Mixed()
    with pytest.raises(AttachError, match=r"Mixed, which does not use it: transformer\.ln_f"), torch.no_grad():
        qkv.hub.attach(copy.deepcopy(model))(IDS)
    for ignored in ("Mixed", "transformer.ln_f"):
        with torch.no_grad():
            qkv.hub.attach(copy.deepcopy(model), ignore=[ignored])(IDS)


def test_unknown_arguments_are_refused() -> None:
    from qkv.hub.interface import attend

    x = torch.randn(1, 2, 3, 4)
    attend(nn.Identity(), x, x, x, None, position_ids=torch.arange(3), cu_seq_lens_q=None)
    with pytest.raises(AttachError, match=r"Identity: expected arguments that qkv knows; got indices=Tensor"):
        attend(nn.Identity(), x, x, x, None, indices=torch.arange(3))


def test_models_without_attention_say_what_to_do_at_once() -> None:
    with (
        pytest.raises(UnsupportedError, match=r"got GPT2LMHeadModel without any. Attach it first: qkv.hub.attach"),
        qkv.record(model_of(*DECODERS["gpt2"])),
    ):
        pass
    with (
        pytest.raises(UnsupportedError, match=r"got Linear without any. Its attention must run through"),
        qkv.record(nn.Linear(2, 2)),
    ):
        pass
    with pytest.raises(UnsupportedError, match="expected a model of transformers; got Linear"):
        qkv.hub.attach(nn.Linear(2, 2))


def test_recording_changes_no_bit_and_attaching_is_undone() -> None:
    eager, ours = pair_of(*DECODERS["llama"])
    assert set(ours.state_dict()) == set(eager.state_dict())
    with torch.no_grad():
        want = ours(IDS, attention_mask=REAL).logits
        with qkv.record(ours) as trace:
            assert torch.equal(ours(IDS, attention_mask=REAL).logits, want)
        assert trace.calls[trace.layers[0]][0].options["score"].scale is None  # which is said as 1/√D
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in ours.modules())
        ours.config._attn_implementation = "eager"
        assert torch.equal(ours(IDS).logits, eager(IDS).logits)


def test_a_copy_of_an_attached_model_is_attached() -> None:
    twin = copy.deepcopy(pair_of(*DECODERS["gpt2"])[1])
    with qkv.record(twin) as trace:
        twin.generate(IDS, max_new_tokens=2, num_beams=2)
    assert trace.passes[0].lineage.moments
    assert trace.calls[trace.layers[0]]


WHISPER = {
    **{name: SEQ2SEQ[name] for name in SEQ2SEQ if name not in ("max_position_embeddings", "forced_eos_token_id")},
    "num_mel_bins": 8,
    "max_source_positions": 20,
    "max_target_positions": 30,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
BERT = {name: SMALL[name] for name in SMALL if name != "num_key_value_heads"}
KEPT = {"gpt2": DECODERS["gpt2"], "bart": TRANSLATORS["bart"], "bert": ("BertModel", BERT)}


@torch.no_grad()
@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("how", ["pickle", "torch.save"])
def test_an_attached_model_goes_to_disk_and_back(name: str, how: str, tmp_path: Path) -> None:
    ours = pair_of(*KEPT[name])[1]
    want, path = ours(IDS)[0], tmp_path / "model.pt"
    if how == "pickle":
        again = pickle.loads(pickle.dumps(ours))  # noqa: S301
    else:
        torch.save(ours, path)
        again = torch.load(path, weights_only=False)
    assert torch.equal(again(IDS)[0], want)
    with qkv.record(again) as trace:
        again(IDS)
    assert trace.layers
    if hasattr(ours, "generate") and name != "bert":
        with qkv.record(again) as trace:
            again.generate(IDS, max_new_tokens=2, num_beams=2)
        assert trace.passes[0].lineage.moments
        assert again.generate.__class__ is ours.generate.__class__


def test_a_loaded_model_makes_its_attention_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has attached none: the slow test below starts one, which takes many seconds."""
    ours = pair_of(*DECODERS["gpt2"])[1]
    want = ours(IDS)[0]
    torch.save(ours, tmp_path / "model.pt")
    for known in (transformers.AttentionInterface, transformers.AttentionMaskInterface):
        monkeypatch.delitem(known._global_mapping, NAME)
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    with qkv.record(again) as trace:
        assert torch.equal(again(IDS)[0], want)
    assert trace.weights(trace.layers[0]).shape[-1] == IDS.shape[1]


@pytest.mark.slow
def test_a_saved_model_is_attached_in_another_process(tmp_path: Path) -> None:
    ours = pair_of(*DECODERS["gpt2"])[1]
    torch.save(ours, tmp_path / "model.pt")
    # `output_attentions` of a model that was loaded whole is None in transformers itself.
    code = (
        "import sys, torch, qkv; model = torch.load(sys.argv[1], weights_only=False)\n"
        "with qkv.record(model) as trace: model(torch.arange(3, 9)[None])\n"
        "print(len(trace.passes), trace.weights(trace.layers[0]).shape[-1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.pt")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "6"]


@pytest.mark.compiler
@torch.no_grad()
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.parametrize(
    "part",
    [
        pytest.param("model.layers.0.self_attn", id="attention"),
        pytest.param("model.layers.0", id="layer", marks=pytest.mark.slow),
        pytest.param("", id="model", marks=pytest.mark.slow),
    ],
)
def test_compiling_before_the_first_pass_is_no_error(part: str) -> None:
    """The attention holds all that is attached; PyTorch compiles the rest, code of transformers alone, for long."""
    eager, ours = pair_of("LlamaForCausalLM", SMALL | {"num_hidden_layers": 1})
    compiled = ours.get_submodule(part)
    compiled.compile(backend="eager")
    torch.testing.assert_close(ours(IDS).logits, eager(IDS).logits, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()  # type: ignore[no-untyped-call]
    compiled._compiled_call_impl = None
    torch.testing.assert_close(ours(IDS).logits, eager(IDS).logits, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_beams_of_whisper_are_hypotheses() -> None:
    ours = pair_of("WhisperForConditionalGeneration", WHISPER)[1]
    sound = torch.randn(2, 8, 40)
    options = {"num_beams": 3, "max_new_tokens": 5, "return_dict_in_generate": True, "output_scores": True}
    with qkv.record(ours) as trace:
        got = ours.generate(sound, **options)
    found = qkv.hub.hypotheses(got)
    assert len(found) == 2
    for row, one in enumerate(found):
        assert len(one.ids) == len(one.log_probabilities)
        for layer in trace.layers:
            if "encoder_attn" in layer:
                assert trace.alignment(layer, row, hypothesis=one).shape == (len(one.ids), 20)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")
def test_a_model_with_adapters_is_attached() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    adapted = peft.get_peft_model(model_of(*DECODERS["llama"]), config).eval()
    want = adapted(IDS, output_attentions=True)
    assert qkv.hub.attach(adapted) is adapted
    with qkv.record(adapted) as trace:
        got = adapted(IDS, output_attentions=True)
    torch.testing.assert_close(got.logits, want.logits, rtol=1e-4, atol=1e-5)
    for layer, amap, weights in zip(trace.layers, got.attentions, want.attentions, strict=True):
        torch.testing.assert_close(amap.dense(), weights, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(trace.weights(layer), weights, rtol=1e-4, atol=1e-5)
    with qkv.record(adapted) as trace:
        adapted.generate(input_ids=IDS, max_new_tokens=3)
    assert len(trace.passes) == 1


MASKS: dict[str, Callable[[Any], Any]] = {
    "causal": lambda u: u.causal_mask_function,
    "window": lambda u: u.sliding_window_causal_mask_function(3),
    "window both": lambda u: u.sliding_window_bidirectional_mask_function(2),
    "both": lambda u: u.bidirectional_mask_function,
    "chunks": lambda u: u.chunked_causal_mask_function(4, torch.tensor([0, 3])),
    "packed": lambda u: u.packed_sequence_compatibility_function(
        u.sliding_window_causal_mask_function(3), *[POSITIONS, (POSITIONS == 0).cumsum(-1)]
    ),
    "packed oddly": lambda u: u.packed_sequence_compatibility_function(
        u.causal_mask_function, POSITIONS * 2, (POSITIONS == 0).cumsum(-1)
    ),
    "offsets": lambda u: u.add_offsets_to_mask_function(u.causal_mask_function, 3, 1),
    "or": lambda u: u.or_masks(u.sliding_window_overlay(2), lambda b, h, q, k: k < 2),
    "or all": lambda u: u.or_masks(u.causal_mask_function, u.bidirectional_mask_function),
    "block": lambda u: u.or_masks(
        u.causal_mask_function, u.blockwise_overlay(torch.tensor([[0, 0, 1, 1, 1, -1, -1, 2, 2]]).expand(2, -1))
    ),
    "own": lambda u: lambda b, h, q, k: (q + k) % 3 != b,
}
POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
LINEAR = {"causal", "window", "window both", "both", "chunks", "packed", "offsets", "or all"}
PADDINGS: dict[str, Tensor | None] = {
    "none": None,
    "left": REAL.bool(),
    "right": REAL.flip(-1).bool(),
    "holes": torch.arange(18).reshape(2, 9) % 4 != 1,
    "nothing": torch.tensor([[False] * 9, [True] * 9]),
}


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", MASKS)
def test_mask_functions_are_translated_exactly(name: str, padding: str) -> None:
    from transformers import masking_utils

    from qkv.hub.mask_functions import Frame, make_mask, register_closures, translate
    from qkv.masks.base import Grid
    from qkv.masks.lower import lower

    register_closures()  # as `attach` does
    try:
        function = MASKS[name](masking_utils)
    except AttributeError as error:
        pytest.skip(f"this version of transformers has no such mask: {error}")
    for queries, offset in ((9, 0), (1, 8), (4, 5)):
        sizes = {"batch_size": 2, "q_length": queries, "kv_length": 9, "q_offset": offset, "kv_offset": 0}
        given = {**sizes, "mask_function": function, "attention_mask": PADDINGS[padding]}
        want = masking_utils.sdpa_mask(**given, allow_is_causal_skip=False)
        got = make_mask(**given, allow_is_causal_skip=False)
        assert torch.equal(got & True, want)
        vmapped = make_mask(**given, allow_is_causal_skip=False, use_vmap=True)
        assert torch.equal(vmapped.table(), want)
    if name in LINEAR and padding != "holes":
        frame = Frame(2, 9, 9, 0, 0, torch.device("cpu"))
        found = lower(translate(function, PADDINGS[padding], frame), Grid((2, 4), 9, 9, torch.device("cpu")))
        assert found.kind in ("all", "causal", "keys", "bounds")


def test_a_lazy_mask_stays_one_until_it_is_read() -> None:
    from qkv.hub.lazy_mask import LazyMask

    lazy = LazyMask(qkv.masks.causal(), (1, 1, 3, 3), torch.device("cpu"))
    for same in (lazy.detach(), lazy[:, :, :, :3], lazy[..., :9]):
        assert isinstance(same, LazyMask)
    assert torch.equal(lazy[..., :2], torch.ones(3, 2, dtype=torch.bool).tril()[None, None])
    with pytest.raises(UnsupportedError, match="expected a mask that stays as it is; got aten::fill_"):
        lazy.fill_(True)


def test_a_static_cache_generates_the_same() -> None:
    eager, ours = pair_of(*DECODERS["llama"])
    options = {
        "max_new_tokens": 5,
        "do_sample": False,
        "cache_implementation": "static",
        "attention_mask": REAL,
        "disable_compile": True,
        "eos_token_id": None,
    }
    assert torch.equal(ours.generate(IDS, **options), eager.generate(IDS, **options))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_maps_of_a_generation_stay_when_its_cache_is_overwritten(name: str, cache: str) -> None:
    eager, ours = pair_of(*DECODERS[name])
    options = GREEDY | {"cache_implementation": cache, "disable_compile": True, "eos_token_id": None}
    got, want = (model.generate(IDS, **options).attentions for model in (ours, eager))
    for step, expected in zip(got, want, strict=True):
        for amap, weights in zip(step, expected, strict=True):
            torch.testing.assert_close(amap.dense(), weights, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_passes_that_checkpointing_repeats_are_not_recorded(name: str, reentrant: bool) -> None:
    ours = pair_of(*(DECODERS | TRANSLATORS)[name])[1].train()
    with qkv.record(ours) as plain:
        ours(IDS, labels=IDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer versions have another name for it
        ours.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    with qkv.record(ours) as trace:
        ours(IDS, labels=IDS, use_cache=False).loss.backward()
        ours(IDS, labels=IDS, use_cache=False).loss.backward()
    assert ours.get_input_embeddings().weight.grad is not None
    assert trace.layers == plain.layers
    assert [{len(calls) for calls in one.calls.values()} for one in trace.passes] == [{1}, {1}]


def test_what_is_ignored_has_a_name_of_the_model() -> None:
    model = model_of(*DECODERS["gpt2"])
    with pytest.raises(ConfigError, match=r"attach\(ignore\): .*; got 'Mixed'\. Write ignore=\['Mixed'\]\."):
        qkv.hub.attach(model, ignore="Mixed")
    with pytest.raises(ConfigError, match=r'got "transformer\.h\.0\.at"\. Did you mean "transformer\.h\.0\.attn"\?'):
        qkv.hub.attach(model, ignore=["transformer.h.0.at"])
    with pytest.raises(ConfigError, match=r"attach\(ignore\): expected a list of names; got \[0\]\."):
        qkv.hub.attach(model, ignore=[0])  # type: ignore[list-item]
    assert model.config._attn_implementation == "eager"


class Beside(nn.Module):
    """A model of transformers beside an attention of PyTorch."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.own = model, nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.model(ids, output_hidden_states=True).hidden_states[-1]
        output: Tensor = self.own(x, x, x)[0]
        return output


def test_a_part_that_is_not_attached_is_refused_unless_it_is_left_out() -> None:
    both = Beside(model_of(*DECODERS["gpt2"]))
    with (
        pytest.raises(
            UnsupportedError, match=r"GPT2Attention at model\.transformer\.h\.0\.attn, which is not attached"
        ),
        qkv.record(both),
    ):
        pytest.fail("it began to record")
    with torch.no_grad(), qkv.record(both, layers=["own"]) as trace:
        both(IDS)
    assert trace.layers == ["own"]
    qkv.hub.attach(both.model)  # type: ignore[type-var]
    with torch.no_grad(), qkv.record(both) as trace:
        both(IDS)
    assert {len(calls) for calls in trace.calls.values()} == {1}
    assert len(trace.layers) == 3


def test_an_implementation_that_was_changed_since_is_an_error_at_the_end() -> None:
    ours = pair_of(*DECODERS["llama"])[1]
    with torch.no_grad():
        ours(IDS)
        ours.set_attn_implementation("sdpa")
        with (
            pytest.raises(
                UnsupportedError, match=r"got model\.layers\.0\.self_attn, which ran without\. .*attach it again"
            ),
            qkv.record(ours),
        ):
            ours(IDS)
        with pytest.raises(UnsupportedError, match="which ran without"), qkv.record(ours):
            ours.generate(IDS, max_new_tokens=2)
        qkv.hub.attach(ours)
        with qkv.record(ours) as trace:
            ours(IDS)
    assert {len(calls) for calls in trace.calls.values()} == {1}


def test_a_pass_that_fails_within_a_layer_is_not_taken_for_one_without_attention() -> None:
    ours = pair_of(*DECODERS["llama"])[1]
    with qkv.record(ours) as trace, pytest.raises(RuntimeError):
        ours.model.layers[0].self_attn(torch.zeros(1, 3, 7), None, None)
    assert not any(trace.calls.values())


@pytest.mark.parametrize("name", TRANSLATORS)
def test_an_encoder_or_a_decoder_alone_is_recorded(name: str) -> None:
    ours = pair_of(*TRANSLATORS[name])[1]
    with torch.no_grad(), qkv.record(ours) as trace:
        states = ours.get_encoder()(IDS, attention_mask=REAL)
    assert {layer.kind for layer in trace.scene(0).layers} == {"self"}
    with torch.no_grad(), qkv.record(ours) as trace:
        ours(encoder_outputs=states, attention_mask=REAL, decoder_input_ids=IDS[:, :4])
    assert {(layer.kind, layer.queries, layer.keys) for layer in trace.scene(0).layers} == {
        ("self", "target", "target"),
        ("cross", "target", "source"),
    }
    with qkv.record(ours) as trace:
        ours.generate(encoder_outputs=states, attention_mask=REAL, max_new_tokens=3, num_beams=2)
    assert sorted(map(len, trace.calls.values()))[:2] == [0, 0], "of the encoder"


def test_a_text_whose_beginning_was_not_recorded_is_named() -> None:
    ours = pair_of(*DECODERS["llama"])[1]
    with torch.no_grad():
        past = getattr(ours(IDS[:, :3]), name_of_cache())
        with qkv.record(ours) as trace:
            ours(IDS[:, 3:], **{name_of_cache(): past})
    rest = IDS.shape[1] - 3
    with pytest.raises(UnsupportedError, match=rf"got {rest} of {rest + 3} positions of .*: a cache held the others"):
        trace.scene()
    assert trace.weights(trace.layers[0]).shape[-2:] == (rest, rest + 3)
