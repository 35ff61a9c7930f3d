"""Every setting of config.json means what it means in `transformers`, or is refused by name."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from tests.hub import theirs
from tests.hub.published import CASES, PAIRS, inputs
from tests.hub.test_families import load, logits_of

from qkv.errors import CheckpointError
from qkv.hub.families.load import FAMILIES
from qkv.hub.folder import CONFIG

pytestmark = pytest.mark.filterwarnings("ignore")
CLOSE, SEED = 2e-5, 3
DROP: Any = object()
"""Stands for a setting that is missing."""

Changes = dict[str, Any]
_SCALED: Changes = {"factor": 2.0, "original_max_position_embeddings": 16}
_ROPES: list[Changes] = [
    {"partial_rotary_factor": 0.5},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}},
    {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0, "partial_rotary_factor": 0.5}},
    {"rope_parameters": DROP, "rope_theta": 100.0},
    {"rope_parameters": DROP, "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    {"rope_parameters": DROP, "rope_theta": 100.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_parameters": DROP, "rope_theta": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"rope_scaling": {}},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}},
    {"rope_scaling": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **_SCALED}},
    {"rope_scaling": {"rope_type": "yarn", "attention_factor": 0.7, "beta_fast": 8, "truncate": False, **_SCALED}},
    {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
]
_PLAIN = {"rope_type": "default", "rope_theta": 200.0}
_TWO_ROPES: list[Changes] = [
    {"rope_parameters": {"full_attention": _PLAIN}},
    {"rope_parameters": {"full_attention": {**_PLAIN, "partial_rotary_factor": 0.5}, "sliding_attention": _PLAIN}},
    {"rope_parameters": {"full_attention": {**_PLAIN, "rope_type": "linear", "factor": 2.0}}},
    {"rope_parameters": {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}},
    {"rope_parameters": DROP, "rope_theta": 100.0, "rope_local_base_freq": 50.0},
]
_ACTIVATIONS: tuple[Any, ...] = ("gelu", "relu", "silu", "gelu_new", "gelu_fast", "quick_gelu", "tanh")
_BIASES: list[Changes] = [{"attention_bias": True}, {"mlp_bias": True}]
_HIDDEN_ACT: list[Changes] = [{"hidden_act": name} for name in _ACTIVATIONS]
_HIDDEN_ACTIVATION: list[Changes] = [{"hidden_activation": name} for name in _ACTIVATIONS]
_WINDOWS: list[Changes] = [
    {"sliding_window": 3},
    {"layer_types": DROP},
    {"layer_types": DROP, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "use_sliding_window": True},
    {"layer_types": DROP, "sliding_window_pattern": 2},
]
_GEMMA: list[Changes] = [
    {"attn_logit_softcapping": 2.0},
    {"final_logit_softcapping": 2.0},
    {"query_pre_attn_scalar": 7},
    {"use_bidirectional_attention": True},
    {"head_dim": 6},
]
_READERS: list[Changes] = [
    {"is_decoder": True},
    {"position_embedding_type": "relative_key"},
    {"type_vocab_size": 1},
    {"pad_token_id": 3},
    {"tie_word_embeddings": False},
]
_MODERNBERT: list[Changes] = [
    {"rope_parameters": DROP, "global_rope_theta": 100.0, "local_rope_theta": 50.0},
    {"rope_parameters": DROP},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"layer_types": DROP},
    {"layer_types": DROP, "global_attn_every_n_layers": 2},
    {"local_attention": 3},
    {"decoder_bias": False},
    {"tie_word_embeddings": False},
    *({name: True} for name in ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")),
]
_FEED_FORWARDS = ("relu", "silu", "gated-gelu", "gated-silu", "gated-relu", "gelu_new")
_PAIR: list[Changes] = [
    {"scale_embedding": False},
    {"tie_word_embeddings": False},
    {"share_encoder_decoder_embeddings": False},
    {"decoder_ffn_dim": 20},
    *({"activation_function": name} for name in _ACTIVATIONS),
]
_T5: list[Changes] = [
    *({"feed_forward_proj": name} for name in _FEED_FORWARDS),
    *({"feed_forward_proj": name, "dense_act_fn": DROP, "is_gated_act": DROP} for name in _FEED_FORWARDS),
    {"dense_act_fn": "silu"},
    {"is_gated_act": True},
    {"is_gated_act": None},
    {"scale_decoder_outputs": None},
    {"scale_decoder_outputs": False},
    {"tie_word_embeddings": False},
    {"tie_word_embeddings": False, "scale_decoder_outputs": DROP},
    {"relative_attention_num_buckets": 7},
    {"relative_attention_max_distance": 6},
    {"num_decoder_layers": 1},
]
VARIED: dict[str, list[Changes]] = {
    "gpt2": [
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"reorder_and_upcast_attn": True},
        {"n_inner": 20},
        {"layer_norm_epsilon": 0.5},
        *({"activation_function": name} for name in _ACTIVATIONS),
    ],
    "gpt_neox": [*_ROPES, *_HIDDEN_ACT, {"use_parallel_residual": False}, {"rotary_pct": 0.5}, *_BIASES],
    "llama": [*_ROPES, *_BIASES, *_HIDDEN_ACT, {"pretraining_tp": 2}],
    "mistral": [*_ROPES, *_BIASES, *_WINDOWS],
    "qwen2": [*_ROPES, *_BIASES, *_WINDOWS],
    "qwen3": [*_ROPES, *_BIASES, *_WINDOWS],
    "gemma": [*_ROPES, *_BIASES, *_HIDDEN_ACT, *_GEMMA, {"hidden_act": "relu", "hidden_activation": "silu"}],
    "gemma2": [*_ROPES, *_BIASES, *_HIDDEN_ACT, *_HIDDEN_ACTIVATION, *_GEMMA, *_WINDOWS],
    "gemma3": [*_ROPES, *_TWO_ROPES, *_BIASES, *_HIDDEN_ACTIVATION, *_GEMMA, *_WINDOWS],
    "bert": [*_READERS, *_HIDDEN_ACT],
    "roberta": [*_READERS, *_HIDDEN_ACT],
    "distilbert": [{"sinusoidal_pos_embds": True}, *_READERS, *({"activation": name} for name in _ACTIVATIONS)],
    "modernbert": [
        *_TWO_ROPES,
        *_HIDDEN_ACTIVATION,
        *_MODERNBERT,
        *({"classifier_activation": name} for name in _ACTIVATIONS),
    ],
    "modernbert_texts": [{"classifier_pooling": "mean"}, {"classifier_pooling": "max"}, {"classifier_bias": True}],
    "roberta_texts": [*_HIDDEN_ACT],
    "marian": _PAIR,
    "pegasus": _PAIR,
    "t5": _T5,
    "t5_gated": _T5,
}
OF_EACH_READER = (
    *("gpt2", "gpt_neox", "llama", "mistral", "gemma2", "gemma3"),
    *("bert", "distilbert", "modernbert", "marian", "t5"),
)
"""Families of the fast suite: the others' settings are read by the same functions."""
FIRST_READER = {
    name: [
        changes
        for changes in VARIED[name]
        if not any(changes in VARIED[other] for other in OF_EACH_READER[: OF_EACH_READER.index(name)])
    ]
    for name in OF_EACH_READER
}
"""Of each of these the settings that no family before it has: what one reader does with a setting the others do."""
ONLY_NEWER = {("gemma", "gelu")}
"""Version 5.6 computes the exact function for Gemma's "gelu"; those before and after it, as here, the approximation."""


def changed(table: Changes, changes: Changes) -> Changes:
    return {name: value for name, value in {**table, **changes}.items() if value is not DROP}


def fault(name: str, table: Changes, folder: Path) -> str:
    """Compare the logits of a model with these settings; "" if they agree, or if either library refuses the settings.

    Of what `transformers` cannot compute either, nothing is asked.
    """
    cls, given = getattr(transformers, CASES[name].model), inputs()
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps(table))
    try:
        torch.manual_seed(SEED)
        model = cls(cls.config_class.from_pretrained(folder)).eval()
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                if "embed_positions" not in path or name not in PAIRS:
                    parameter.normal_(0, 0.6 if parameter.ndim > 1 else 0.3)
        theirs.write(model, folder)
        (folder / CONFIG).write_text(json.dumps(table))
        model = cls.from_pretrained(folder, attn_implementation="eager").eval()
        expected = theirs.logits(model, name, given)
    except Exception:
        return ""
    try:
        found = logits_of(load(folder), given)
    except CheckpointError:
        return ""
    off = float((found - expected).abs().max() / expected.abs().max())
    return "" if off <= CLOSE or not expected.isfinite().all() else f"{off:.2g}"


def configuration(name: str, folder: Path) -> Changes:
    theirs.write(theirs.make(name, SEED), folder)
    table: Changes = json.loads((folder / CONFIG).read_text())
    return table


@pytest.mark.parametrize("name", OF_EACH_READER)
def test_logits_agree_or_the_setting_is_refused(name: str, tmp_path: Path) -> None:
    """Every fourth setting, starting one later for each family; all of them in the test below."""
    compare(name, FIRST_READER[name][OF_EACH_READER.index(name) % 4 :: 4], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIED)
def test_every_family_agrees_or_refuses_the_setting(name: str, tmp_path: Path) -> None:
    compare(name, VARIED[name], tmp_path)


def compare(name: str, varied: list[Changes], tmp_path: Path) -> None:
    table, faults = configuration(name, tmp_path / "first"), {}
    for number, changes in enumerate(varied):
        if (name, changes.get("hidden_act")) in ONLY_NEWER and transformers.__version__.startswith("5.6."):
            continue
        if off := fault(name, changed(table, changes), tmp_path / f"{number}"):
            faults[str(changes)] = off
    assert faults == {}


def every_setting(table: Changes) -> Iterator[Changes]:
    """Every setting missing, null, and with another value of its kind."""
    for key, value in table.items():
        if key in ("architectures", "model_type", "dtype", "torch_dtype", "transformers_version"):
            continue
        yield {key: DROP}
        yield {key: None}
        match value:
            case bool():
                yield {key: not value}
            case int():
                yield {key: value + 1}
            case float():
                yield {key: 0.25}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_setting_that_is_missing_or_another_agrees_or_is_refused(name: str, tmp_path: Path) -> None:
    table, faults = configuration(name, tmp_path / "first"), {}
    for number, changes in enumerate(every_setting(table)):
        if off := fault(name, changed(table, changes), tmp_path / f"{number}"):
            faults[str(changes)] = off
    assert faults == {}


@pytest.mark.parametrize("name", CASES)
def test_every_synonym_of_a_setting_is_known(name: str) -> None:
    theirs_ = getattr(transformers, CASES[name].config)
    assert dict(FAMILIES[theirs_.model_type].synonyms) == theirs_.attribute_map


@pytest.mark.parametrize("name", CASES)
def test_special_tokens_that_no_file_names_are_theirs(name: str) -> None:
    cls = getattr(transformers, CASES[name].config)
    usual, defaults = cls().to_dict(), FAMILIES[cls.model_type].defaults
    for mark in ("pad", "bos", "eos", "decoder_start"):
        assert defaults.get(f"{mark}_token_id") == usual.get(f"{mark}_token_id")


_BESIDE: Changes = {"rope_scaling": {"rope_type": "yarn", **_SCALED}, "original_max_position_embeddings": 4}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2", {"num_attention_heads": 2}),
        ("distilbert", {"num_attention_heads": 2}),
        ("t5", {"num_attention_heads": 2, "head_dim": 4}),
        ("llama", {"rope_parameters": DROP, "rope_theta": 100.0, **_BESIDE}),
    ],
)
def test_the_setting_that_wins_where_two_say_the_same(name: str, changes: Changes, tmp_path: Path) -> None:
    table = changed(configuration(name, tmp_path / "first"), changes)
    assert fault(name, table, tmp_path / "second") == ""
    assert load(tmp_path / "second").parts.heads == changes.get("num_attention_heads", 4)


@pytest.mark.parametrize(
    ("name", "changes", "setting"),
    [
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}}, "partial"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights"),
        ("gemma", {"hidden_act": "quick_gelu"}, "hidden_act"),
        ("gemma3", {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}}, "rope_type"),
        ("gemma3", {"rope_parameters": {"sliding_attention": {"type": "linear", "factor": 2.0}}}, "type"),
        ("llama", {"rope_parameters": {"type": "dynamic", "factor": 2.0}}, "type"),
        ("mistral", {"per_layer_config": {"1": {"sliding_window": 2}}}, "per_layer_config"),
        ("bert", {"quantization_config": {"quant_method": "bitnet"}}, "quantization_config"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(name: str, changes: Changes, setting: str, tmp_path: Path) -> None:
    table = configuration(name, tmp_path / "model")
    (tmp_path / "model" / CONFIG).write_text(json.dumps(changed(table, changes)))
    with pytest.raises(CheckpointError, match=setting):
        load(tmp_path / "model")
