"""Families of encoder-decoders: Marian, Pegasus, T5."""

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


def _bart(norm_place: Literal["before", "after"], keys: SettingsReader) -> TransformerParts:
    """Return the parts that Marian and Pegasus share."""
    for name in ("attention_heads", "ffn_dim"):
        if keys.size(f"encoder_{name}") != keys.size(f"decoder_{name}"):
            keys.refuse(f"decoder_{name}", f"{keys.size(f'encoder_{name}')}, as in the encoder")
    same = read_settings(_BART_SETTINGS, keys)
    if keys.get("decoder_vocab_size") not in (None, keys.size("vocab_size")):
        keys.refuse("decoder_vocab_size", f"{keys.size('vocab_size')}, the size of the one vocabulary")
    shared = keys.flag("share_encoder_decoder_embeddings")
    return TransformerParts(
        **same,
        norms=NormParts("layer", 1e-5, norm_place, final=norm_place == "before"),
        positions=PositionParts("halves"),
        embed_scale=same["width"] ** 0.5 if keys.flag("scale_embedding") else 1.0,
        tied=tied(keys),
        source_size=None if shared else keys.size("vocab_size"),
        output_bias=True,
    )


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


_BART = {
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
ENCODER_DECODERS = (
    Family(
        "marian",
        "MarianMTModel",
        "translate",
        partial(_bart, "after"),
        _bart_rules,
        defaults={**_BART, "decoder_start_token_id": 58100, "pad_token_id": 58100, "eos_token_id": 0},
        copies=_COPIES,
        write=_bart_settings,
        synonyms=_BART_SYNONYMS,
        sinusoids=_SINUSOIDS,
    ),
    Family(
        "pegasus",
        "PegasusForConditionalGeneration",
        "translate",
        partial(_bart, "before"),
        _bart_rules,
        defaults={**_BART, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
        copies=_COPIES,
        write=_bart_settings,
        synonyms=_BART_SYNONYMS,
        sinusoids=_SINUSOIDS,
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
