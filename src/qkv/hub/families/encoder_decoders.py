"""Families of encoder-decoders: Marian, Pegasus, BART, mBART, M2M-100 with NLLB, T5."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from qkv.hub.families.decoders import projection_rules, tied
from qkv.hub.families.family import ACTIVATIONS, Family, Setting, read_settings, write_settings
from qkv.hub.families.keys import SettingsReader
from qkv.hub.families.rules import Same, WeightRule, named
from qkv.models.parts import PositionParts, TransformerParts
from qkv.nn.choices import Activation
from qkv.nn.norms import NormParts

_BOTH = ("weight", "bias")


_BART_SETTINGS = (
    Setting("vocab_size", "size"),
    Setting("d_model", "width"),
    Setting("encoder_attention_heads", "heads"),
    Setting("encoder_ffn_dim", "feed_forward"),
    Setting("encoder_layers", "layers", "layers"),
    Setting("decoder_layers", "decoder_layers", "layers"),
    Setting("max_position_embeddings", "context"),
    Setting("activation_function", "activation", "choice"),
    Setting("dropout", "dropout", "share"),
    Setting("attention_dropout", "attention_dropout", "share"),
)


def _bart(norm_place: Literal["before", "after"], keys: SettingsReader, **parts: Any) -> TransformerParts:
    """Return the parts that BART and its relatives share; those of Marian and Pegasus where `parts` has no others."""
    for name in ("attention_heads", "ffn_dim"):
        if keys.size(f"encoder_{name}") != keys.size(f"decoder_{name}"):
            keys.refuse(f"decoder_{name}", f"{keys.size(f'encoder_{name}')}, as in the encoder")
    same = read_settings(_BART_SETTINGS, keys)
    if keys.get("decoder_vocab_size") not in (None, keys.size("vocab_size")):
        keys.refuse("decoder_vocab_size", f"{keys.size('vocab_size')}, the size of the one vocabulary")
    shared = keys.flag("share_encoder_decoder_embeddings")
    defaults = {
        "norms": NormParts("layer", 1e-5, norm_place, final=norm_place == "before"),
        "positions": PositionParts("halves"),
        "embed_scale": same["width"] ** 0.5 if keys.flag("scale_embedding") else 1.0,
        "tied": tied(keys),
        "source_size": None if shared else keys.size("vocab_size"),
        "output_bias": True,
    }
    return TransformerParts(**{**same, **defaults, **parts})


def _bart_itself(norm_place: Literal["before", "after"], keys: SettingsReader) -> TransformerParts:
    """Return the parts of BART, and of mBART, which has norms before each sublayer."""
    norms = NormParts("layer", 1e-5, norm_place, final=norm_place == "before", embedding=True)
    return _bart(norm_place, keys, norms=norms, positions=PositionParts("learned", skipped=_FIRST))


def _m2m(keys: SettingsReader) -> TransformerParts:
    # Their wavelengths end at exactly 2π·10,000: the root is one less than half the width, as in tensor2tensor.
    half = keys.size("d_model") // 2
    if half < 2 or keys.size("d_model") % 2:
        keys.refuse("d_model", "an even number from 4 on")
    if keys.token("decoder_start_token_id") == keys.token("pad_token_id"):
        keys.refuse("decoder_start_token_id", "another token than the padding, which has no position")
    first = 1 + (keys.token("pad_token_id") or 0)
    positions = PositionParts("halves", skipped=first, base=10_000.0 ** (half / (half - 1)))
    return _bart("before", keys, positions=positions, output_bias=False)


def _bart_settings(parts: TransformerParts) -> dict[str, Any]:
    return {
        **write_settings(_BART_SETTINGS, parts),
        "is_encoder_decoder": True,
        "decoder_attention_heads": parts.heads,
        "decoder_ffn_dim": parts.feed_forward,
        "scale_embedding": parts.embed_scale != 1,
        "share_encoder_decoder_embeddings": parts.source_size is None,
        "forced_eos_token_id": None,
        "tie_word_embeddings": parts.tied,
    }


def _bart_rules(config: TransformerParts) -> list[WeightRule]:
    separate = config.source_size is not None
    rules = named("embed", "model.decoder.embed_tokens" if separate else "model.shared", ["weight"])
    rules += named("embed_source", "model.encoder.embed_tokens", ["weight"]) if separate else []
    for side, ours in (("encoder", "source_"), ("decoder", "")):
        if config.positions.kind == "learned":
            rules += named(f"{ours}positions", f"model.{side}.embed_positions", ["weight"])
        if config.norms.embedding:
            rules += named(f"{ours}embed_norm", f"model.{side}.layernorm_embedding", _BOTH)
    for side, count in (("encoder", config.layers), ("decoder", config.decoder_layers)):
        for i in range(count):
            ours, theirs = f"{side}.{i}", f"model.{side}.layers.{i}"
            attentions = [("self", "self_attn")] + ([("cross", "encoder_attn")] if side == "decoder" else [])
            for mine, name in attentions:
                rules += projection_rules(
                    f"{ours}.{mine}_attention", f"{theirs}.{name}", ("q_proj", "k_proj", "v_proj")
                )
                rules += named(f"{ours}.{mine}_attention.output", f"{theirs}.{name}.out_proj", _BOTH)
                rules += named(f"{ours}.around_{mine}.norm", f"{theirs}.{name}_layer_norm", _BOTH)
            rules += named(f"{ours}.feed_forward.expand", f"{theirs}.fc1", _BOTH)
            rules += named(f"{ours}.feed_forward.contract", f"{theirs}.fc2", _BOTH)
            rules += named(f"{ours}.around_feed.norm", f"{theirs}.final_layer_norm", _BOTH)
        if config.norms.final:
            rules += named(f"{side}_norm", f"model.{side}.layer_norm", _BOTH)
    if config.output_bias:
        rules.append(WeightRule("output.bias", ("final_logits_bias",), Same(row=True)))
    return rules if config.tied else [*rules, WeightRule("output.weight", ("lm_head.weight",))]


_T5_SETTINGS = (
    Setting("vocab_size", "size"),
    Setting("d_model", "width"),
    Setting("num_heads", "heads"),
    Setting("d_ff", "feed_forward"),
    Setting("num_layers", "layers", "layers"),
    Setting("n_positions", "context"),
    Setting("dropout_rate", "dropout", "share"),
    Setting("dropout_rate", "attention_dropout", "share"),
)


def _t5(keys: SettingsReader) -> TransformerParts:
    same = read_settings(_T5_SETTINGS, keys)
    gated, activation = _t5_feed_forward(keys)
    # Newer versions write this setting, which their code reads in place of the older one.
    scaled = keys.table.get("scale_decoder_outputs", keys.get("tie_word_embeddings") is not False)
    return TransformerParts(
        **{**same, "head_width": keys.size("d_kv")},
        decoder_layers=keys.layers("num_layers" if keys.get("num_decoder_layers") is None else "num_decoder_layers"),
        norms=NormParts("rms", keys.number("layer_norm_epsilon")),
        positions=PositionParts(
            "buckets",
            buckets=keys.size("relative_attention_num_buckets"),
            farthest=keys.size("relative_attention_max_distance"),
        ),
        activation=activation,
        gated=gated,
        attention_bias=False,
        feed_forward_bias=False,
        scale=1.0,
        output_scale=same["width"] ** -0.5 if scaled else 1.0,
        tied="lm_head.weight" not in keys.tensors,
        end_dropout=True,
    )


def _t5_feed_forward(keys: SettingsReader) -> tuple[bool, Activation]:
    """Return whether feed-forward layers are gated, and their activation."""
    gate, _, name = f"{keys.get('feed_forward_proj')}".rpartition("-")
    # For gated layers their config names the exact GELU, and their code uses the approximation.
    usual = "gelu_new" if gate and name == "gelu" else name
    if gate not in ("", "gated") or usual not in ACTIVATIONS:
        keys.refuse("feed_forward_proj", "an activation, or gated- and an activation")
    # Newer versions write these settings too, which their code reads first.
    gated = bool(keys.table.get("is_gated_act", bool(gate)))
    activation = keys.choice("dense_act_fn", ACTIVATIONS) if "dense_act_fn" in keys.table else ACTIVATIONS[usual]
    return gated, activation


def _t5_rules(config: TransformerParts) -> list[WeightRule]:
    rules, weight = named("embed", "shared", ["weight"]), ("weight",)
    feeds = {"gate": "wi_0", "expand": "wi_1"} if config.gated else {"expand": "wi"}
    for side, count in (("encoder", config.layers), ("decoder", config.decoder_layers)):
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
        rules += named(f"{side}_bias", bias, weight)
        for i in range(count):
            parts = [("self", "SelfAttention")] + ([("cross", "EncDecAttention")] if side == "decoder" else [])
            for number, (mine, name) in enumerate(parts):
                ours, theirs = f"{side}.{i}.{mine}_attention", f"{side}.block.{i}.layer.{number}"
                rules += projection_rules(ours, f"{theirs}.{name}", ("q", "k", "v"), weight)
                rules += named(f"{ours}.output", f"{theirs}.{name}.o", weight)
                rules += named(f"{side}.{i}.around_{mine}.norm", f"{theirs}.layer_norm", weight)
            theirs = f"{side}.block.{i}.layer.{len(parts)}"
            for mine, name in (*feeds.items(), ("contract", "wo")):
                rules += named(f"{side}.{i}.feed_forward.{mine}", f"{theirs}.DenseReluDense.{name}", weight)
            rules += named(f"{side}.{i}.around_feed.norm", f"{theirs}.layer_norm", weight)
        rules += named(f"{side}_norm", f"{side}.final_layer_norm", weight)
    return rules if config.tied else [*rules, WeightRule("output.weight", ("lm_head.weight",))]


_FIRST = 2
"""The place of the first learned position."""
_BART: Mapping[str, Any] = {
    "activation_function": "gelu",
    "max_position_embeddings": 1024,
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
}
_BART_SYNONYMS = {
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "num_hidden_layers": "encoder_layers",
}
_SINUSOIDS = (r"^model\.(encoder|decoder)\.embed_positions\.weight$",)
_COPIES = tuple(
    (f"{name}.weight", "model.shared.weight")
    for name in ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
)


def _family(
    name: str,
    class_name: str,
    configure: Callable[[SettingsReader], TransformerParts],
    defaults: Mapping[str, Any],
    *,
    sinusoids: tuple[str, ...] = (),
    ignored: tuple[str, ...] = (),
    write: Callable[[TransformerParts], dict[str, Any]] | None = None,
) -> Family:
    return Family(
        name,
        class_name,
        "translate",
        configure,
        _bart_rules,
        defaults={**_BART, **defaults},
        ignored=ignored,
        copies=_COPIES,
        write=write,
        synonyms=_BART_SYNONYMS,
        sinusoids=sinusoids,
    )


_BART_MARKS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
ENCODER_DECODERS = (
    _family(
        "marian",
        "MarianMTModel",
        partial(_bart, "after"),
        {"decoder_start_token_id": 58100, "pad_token_id": 58100, "eos_token_id": 0},
        sinusoids=_SINUSOIDS,
        write=_bart_settings,
    ),
    _family(
        "pegasus",
        "PegasusForConditionalGeneration",
        partial(_bart, "before"),
        {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
        sinusoids=_SINUSOIDS,
        write=_bart_settings,
    ),
    _family("bart", "BartForConditionalGeneration", partial(_bart_itself, "after"), _BART_MARKS),
    _family(
        "mbart",
        "MBartForConditionalGeneration",
        partial(_bart_itself, "before"),
        {mark: number for mark, number in _BART_MARKS.items() if mark != "decoder_start_token_id"},
    ),
    _family(
        "m2m_100",
        "M2M100ForConditionalGeneration",
        _m2m,
        {**_BART_MARKS, "activation_function": "relu", "scale_embedding": True},
        ignored=(r"\.embed_positions\.weights$",),
    ),
    Family(
        "t5",
        "T5ForConditionalGeneration",
        "translate",
        _t5,
        _t5_rules,
        defaults={
            "feed_forward_proj": "relu",
            "layer_norm_epsilon": 1e-6,
            "relative_attention_num_buckets": 32,
            "relative_attention_max_distance": 128,
            "n_positions": 512,
            "tie_word_embeddings": True,
            "pad_token_id": 0,
            "eos_token_id": 1,
        },
        # A bias of the attention to the source was once stored, and never used.
        ignored=(r"EncDecAttention\.relative_attention_bias",),
        copies=tuple((f"{name}.weight", "shared.weight") for name in ("encoder.embed_tokens", "decoder.embed_tokens")),
        synonyms={
            "hidden_size": "d_model",
            "num_attention_heads": "num_heads",
            "num_hidden_layers": "num_layers",
            "head_dim": "d_kv",
        },
    ),
)
