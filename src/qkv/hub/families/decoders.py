"""Families of language models: GPT-2, GPT-NeoX, Llama, Mistral, Qwen2, Qwen3, Gemma 1 to 3."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from qkv.hub.families.family import ACTIVATIONS, SIZES, Family, Setting, read_settings, write_settings
from qkv.hub.families.keys import SettingsReader
from qkv.hub.families.rules import HeadGain, Heads, LayoutChange, Same, WeightRule, named
from qkv.models.parts import PositionParts, TransformerParts
from qkv.nn.norms import NormParts, Place
from qkv.nn.positions import RopeScaling

_BOTH = ("weight", "bias")


_GPT2_SETTINGS = (
    Setting("vocab_size", "size"),
    Setting("n_embd", "width"),
    Setting("n_head", "heads"),
    Setting("n_layer", "layers", "layers"),
    Setting("n_positions", "context"),
    Setting("activation_function", "activation", "choice"),
    Setting("resid_pdrop", "dropout", "share"),
    Setting("attn_pdrop", "attention_dropout", "share"),
)
_NEOX_SETTINGS = (
    *SIZES,
    Setting("hidden_act", "activation", "choice"),
    Setting("attention_bias", "attention_bias", "flag"),
    Setting("hidden_dropout", "dropout", "share"),
    Setting("attention_dropout", "attention_dropout", "share"),
)
_LLAMA_SETTINGS = (*SIZES, Setting("attention_dropout", "attention_dropout", "share"))


def _gpt2(keys: SettingsReader) -> TransformerParts:
    keys.expect(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    same = read_settings(_GPT2_SETTINGS, keys)
    return TransformerParts(
        **same,
        feed_forward=keys.maybe("n_inner") or 4 * same["width"],
        norms=NormParts("layer", keys.number("layer_norm_epsilon")),
        tied=tied(keys),
    )


def _gpt2_settings(parts: TransformerParts) -> dict[str, Any]:
    return {
        **write_settings(_GPT2_SETTINGS, parts),
        "n_inner": parts.feed_forward,
        "layer_norm_epsilon": parts.norms.eps,
        "embd_pdrop": parts.dropout,
        "tie_word_embeddings": parts.tied,
    }


def _gpt2_rules(config: TransformerParts) -> list[WeightRule]:
    rules = named("embed", "transformer.wte", ["weight"]) + named("positions", "transformer.wpe", ["weight"])
    transposed = Same(transposed=True)
    for i in range(config.layers):
        ours, theirs = f"blocks.{i}", f"transformer.h.{i}"
        rules += named(f"{ours}.around_self.norm", f"{theirs}.ln_1", _BOTH)
        rules += fused_rules(f"{ours}.self_attention", f"{theirs}.attn.c_attn", Heads("rows", transposed=True))
        rules += named(f"{ours}.self_attention.output", f"{theirs}.attn.c_proj", _BOTH, transposed)
        rules += named(f"{ours}.around_feed.norm", f"{theirs}.ln_2", _BOTH)
        rules += named(f"{ours}.feed_forward.expand", f"{theirs}.mlp.c_fc", _BOTH, transposed)
        rules += named(f"{ours}.feed_forward.contract", f"{theirs}.mlp.c_proj", _BOTH, transposed)
    return rules + named("norm", "transformer.ln_f", _BOTH) + _output(config, "lm_head")


def _neox(keys: SettingsReader) -> TransformerParts:
    norm_place: Place = "parallel" if keys.flag("use_parallel_residual") else "before"
    return TransformerParts(
        **read_settings(_NEOX_SETTINGS, keys),
        norms=NormParts("layer", keys.number("layer_norm_eps"), norm_place),
        positions=_rope(keys, base="rotary_emb_base", share="rotary_pct"),
        tied=tied(keys, "embed_out.weight"),
    )


def _neox_settings(parts: TransformerParts) -> dict[str, Any]:
    rotary = {"rope_theta": parts.positions.base, "partial_rotary_factor": parts.positions.share}
    return {
        **write_settings(_NEOX_SETTINGS, parts),
        "layer_norm_eps": parts.norms.eps,
        "use_parallel_residual": parts.norms.place == "parallel",
        "rotary_pct": parts.positions.share,
        "rotary_emb_base": parts.positions.base,
        "rope_parameters": {"rope_type": "default", **rotary},
        "tie_word_embeddings": parts.tied,
    }


def _neox_rules(config: TransformerParts) -> list[WeightRule]:
    rules = named("embed", "gpt_neox.embed_in", ["weight"])
    biased = _BOTH if config.attention_bias else ("weight",)
    for i in range(config.layers):
        ours, theirs = f"blocks.{i}", f"gpt_neox.layers.{i}"
        rules += named(f"{ours}.around_self.norm", f"{theirs}.input_layernorm", _BOTH)
        rules += fused_rules(f"{ours}.self_attention", f"{theirs}.attention.query_key_value", Heads("heads"), biased)
        rules += named(f"{ours}.self_attention.output", f"{theirs}.attention.dense", biased)
        rules += named(f"{ours}.around_feed.norm", f"{theirs}.post_attention_layernorm", _BOTH)
        rules += named(f"{ours}.feed_forward.expand", f"{theirs}.mlp.dense_h_to_4h", _BOTH)
        rules += named(f"{ours}.feed_forward.contract", f"{theirs}.mlp.dense_4h_to_h", _BOTH)
    return rules + named("norm", "gpt_neox.final_layer_norm", _BOTH) + _output(config, "embed_out")


def _llama(keys: SettingsReader, **parts: Any) -> TransformerParts:
    """Return the parts that Llama and its successors share.

    Args:
        keys: config.json.
        parts: those that differ; settings that only they replace are not read.
    """
    same = read_settings(_LLAMA_SETTINGS, keys)
    defaults: dict[str, Callable[[], Any]] = {
        "norms": lambda: NormParts("rms", keys.number("rms_norm_eps")),
        "positions": lambda: _rope(keys),
        "activation": lambda: keys.choice("hidden_act", ACTIVATIONS),
        "attention_bias": lambda: keys.maybe_flag("attention_bias"),
    }
    return TransformerParts(
        **{
            **same,
            "key_heads": keys.maybe("num_key_value_heads") or same["heads"],
            "head_width": keys.maybe("head_dim") or same["head_width"],
            "gated": True,
            "tied": tied(keys),
            "feed_forward_bias": False,
            **{name: read() for name, read in defaults.items() if name not in parts},
            **parts,
        }
    )


def _llama_itself(keys: SettingsReader) -> TransformerParts:
    return _llama(keys, feed_forward_bias=keys.maybe_flag("mlp_bias"))


def _mistral(keys: SettingsReader) -> TransformerParts:
    reach = keys.maybe("sliding_window")
    windowed = () if reach is None else (True,) * keys.layers("num_hidden_layers")
    return _llama(keys, attention_bias=False, window=None if reach is None else reach - 1, windowed=windowed)


def _qwen2(keys: SettingsReader) -> TransformerParts:
    return _llama(keys, attention_bias="inputs", **_windows(keys))


def _qwen3(keys: SettingsReader) -> TransformerParts:
    norms = NormParts("rms", keys.number("rms_norm_eps"), heads=True)
    return _llama(keys, norms=norms, **_windows(keys))


def _gemma(keys: SettingsReader) -> TransformerParts:
    keys.expect(use_bidirectional_attention=False)
    return _llama(
        keys,
        norms=NormParts("rms_plus_one", keys.number("rms_norm_eps")),
        # The first models name the exact GELU, but were trained with its approximation.
        activation=keys.choice("hidden_act", {**ACTIVATIONS, "gelu": "gelu_tanh"}),
        embed_scale=keys.size("hidden_size") ** 0.5,
    )


def _gemma2(keys: SettingsReader, **parts: Any) -> TransformerParts:
    keys.expect(use_bidirectional_attention=False)
    norms = NormParts("rms_plus_one", keys.number("rms_norm_eps"), "both")
    defaults: dict[str, Any] = {
        "norms": norms,
        "activation": keys.choice("hidden_activation", ACTIVATIONS),
        "embed_scale": keys.size("hidden_size") ** 0.5,
        "scale": keys.number("query_pre_attn_scalar") ** -0.5,
        "softcap": keys.maybe_number("attn_logit_softcapping"),
        "output_softcap": keys.maybe_number("final_logit_softcapping"),
        **_layer_windows(keys, every=2),
    }
    return _llama(keys, **{**defaults, **parts})


def _gemma3(keys: SettingsReader) -> TransformerParts:
    norms = NormParts("rms_plus_one", keys.number("rms_norm_eps"), "both", heads=True)
    every = keys.maybe("sliding_window_pattern") or keys.maybe("_sliding_window_pattern") or 6
    # Their code reads no soft cap of the scores here, unlike in Gemma 2.
    windows = _layer_windows(keys, every=every)
    return _gemma2(keys, norms=norms, positions=two_ropes(keys), softcap=None, **windows)


def _llama_rules(config: TransformerParts) -> list[WeightRule]:
    weight, sandwich = ("weight",), config.norms.place == "both"
    inputs = _BOTH if config.attention_bias else weight
    outputs = _BOTH if config.attention_bias is True else weight
    feeds = _BOTH if config.feed_forward_bias else weight
    rules = named("embed", "model.embed_tokens", weight)
    for i in range(config.layers):
        ours, theirs = f"blocks.{i}", f"model.layers.{i}"
        attention, feed = f"{ours}.self_attention", f"{ours}.feed_forward"
        rules += named(f"{ours}.around_self.norm", f"{theirs}.input_layernorm", weight)
        rules += projection_rules(attention, f"{theirs}.self_attn", ("q_proj", "k_proj", "v_proj"), inputs)
        rules += named(f"{attention}.output", f"{theirs}.self_attn.o_proj", outputs)
        if config.norms.heads:
            for side in ("query", "key"):
                rules += named(f"{attention}.{side}_norm", f"{theirs}.self_attn.{side[0]}_norm", weight, HeadGain())
        after, before = f"{theirs}.post_attention_layernorm", f"{theirs}.pre_feedforward_layernorm"
        if sandwich:
            rules += named(f"{ours}.around_self.end_norm", after, weight)
            rules += named(f"{ours}.around_feed.end_norm", f"{theirs}.post_feedforward_layernorm", weight)
        rules += named(f"{ours}.around_feed.norm", before if sandwich else after, weight)
        for mine, name in (("gate", "gate_proj"), ("expand", "up_proj"), ("contract", "down_proj")):
            rules += named(f"{feed}.{mine}", f"{theirs}.mlp.{name}", feeds)
    return rules + named("norm", "model.norm", weight) + _output(config, "lm_head")


def projection_rules(
    ours: str, theirs: str, names: tuple[str, str, str], kinds: tuple[str, ...] = _BOTH
) -> list[WeightRule]:
    """Return the rules of three projections that we store as one."""
    return [
        WeightRule(f"{ours}.projections.layers.0.{kind}", tuple(f"{theirs}.{name}.{kind}" for name in names), Heads())
        for kind in kinds
    ]


def fused_rules(ours: str, theirs: str, layout: LayoutChange, kinds: tuple[str, ...] = _BOTH) -> list[WeightRule]:
    """Return the rules of projections that both sides store as one."""
    return named(f"{ours}.projections.layers.0", theirs, kinds, layout)


def _output(config: TransformerParts, name: str) -> list[WeightRule]:
    return [] if config.tied else named("output", name, ["weight"])


def tied(keys: SettingsReader, name: str = "lm_head.weight") -> bool:
    """Return whether the output layer shares the embedding: if no tensor of it is stored, and config.json allows it."""
    return keys.get("tie_word_embeddings") is not False and name not in keys.tensors


def _rope(
    keys: SettingsReader, table: SettingsReader | None = None, base: str = "rope_theta", share: str = ""
) -> PositionParts:
    """Read rotary positions from either form of config.json: a table of parameters, or settings beside it.

    Args:
        keys: config.json.
        table: the parameters; None for those of config.json.
        base: the name of the base beside the table.
        share: the name of the fraction of features that are rotated beside the table; "" for a family that rotates all.
    """
    rope = (
        table or keys.table_of("rope_scaling") or keys.table_of("rope_parameters") or SettingsReader({}, {}, keys.where)
    )
    kind = _rope_kind(rope)
    rate = rope.number("rope_theta") if rope.get("rope_theta") is not None else keys.number(base)
    # As in their code: beside the table it wins, except over the tables of blocks of two kinds.
    beside = keys.maybe("original_max_position_embeddings") if table is None else None
    original = beside or rope.maybe("original_max_position_embeddings") or keys.size("max_position_embeddings")
    scaling: RopeScaling | None = None
    match kind:
        case "default":
            pass
        case "linear":
            scaling = RopeScaling("linear", rope.number("factor"))
        case "llama3":
            ends = rope.number("low_freq_factor"), rope.number("high_freq_factor")
            scaling = RopeScaling("llama3", rope.number("factor"), original, *ends)
        case "yarn":
            ends = rope.maybe_number("beta_slow") or 1.0, rope.maybe_number("beta_fast") or 32.0
            rope.expect(mscale=None, mscale_all_dim=None)
            gain, rounded = rope.maybe_number("attention_factor"), rope.get("truncate") is not False
            scaling = RopeScaling("yarn", rope.number("factor"), original, *ends, gain, rounded)
        case _:
            expected, hint = "default, linear, llama3 or yarn", "Others depend on the length of the text."
            rope.refuse(_rope_kind_name(rope), expected, hint)
    return PositionParts("rotary", base=rate, share=_rotated_share(keys, rope, kind, share), scaling=scaling)


def _rope_kind(rope: SettingsReader) -> Any:
    """Return the kind of rotary scaling, which is stored as "rope_type" or, in older files, as "type"."""
    return rope.get(_rope_kind_name(rope)) or "default"


def _rope_kind_name(rope: SettingsReader) -> str:
    return "rope_type" if rope.get("rope_type") or not rope.get("type") else "type"


def _rotated_share(keys: SettingsReader, rope: SettingsReader, kind: str, name: str) -> float:
    """Return the fraction of a head's features that are rotated."""
    part = rope if rope.get("partial_rotary_factor") is not None else keys
    if name:
        setting = name if part is keys else "partial_rotary_factor"
        return 1.0 if part.get(setting) is None else part.number(setting)
    # As in their code, which without scaling does not read it, and with scaling fails for any value but 1.
    if kind != "default" and part.get("partial_rotary_factor") is not None:
        part.expect(partial_rotary_factor=1.0)
    return 1.0


def two_ropes(keys: SettingsReader, base: str = "rope_theta", local: str = "rope_local_base_freq") -> PositionParts:
    """Read the positions of Gemma 3 and ModernBERT: blocks with a window have their own, without scaling.

    Args:
        keys: config.json.
        base, local: the names of both bases beside the tables.
    """
    table = keys.table_of("rope_parameters")
    full, sliding = (
        None if table is None else table.table_of(kind) for kind in ("full_attention", "sliding_attention")
    )
    # The older table `rope_scaling` changes parameters of the blocks without a window.
    changes = keys.table_of("rope_scaling")
    merged = {
        **({"rope_type": "default"} if full is None else full.table),
        **({} if changes is None else changes.table),
    }
    rope = SettingsReader(merged, {}, f"{keys.where}: rope_scaling" if full is None else full.where)
    rope.expect(truncate=True)
    full_rope = _rope(keys, rope, base)
    if sliding is not None and _rope_kind(sliding) != "default":
        sliding.refuse(_rope_kind_name(sliding), "default for blocks with a window")
    has_base = sliding is not None and sliding.get("rope_theta") is not None
    return replace(full_rope, local_base=sliding.number("rope_theta") if has_base else keys.number(local))  # type: ignore[union-attr]


def _windows(keys: SettingsReader) -> dict[str, Any]:
    """Read the windows of Qwen: those of the blocks from `max_window_layers` on, if they are used at all."""
    if keys.get("use_sliding_window") is not True or keys.maybe("sliding_window") is None:
        return {}
    first, count = keys.get("max_window_layers"), keys.layers("num_hidden_layers")
    defaults = [
        "sliding_attention" if isinstance(first, int) and i >= first else "full_attention" for i in range(count)
    ]
    return _windowed(keys, defaults)


def _layer_windows(keys: SettingsReader, every: int) -> dict[str, Any]:
    """Read the windows of Gemma: those of all blocks except each `every`-th."""
    count = keys.layers("num_hidden_layers")
    return _windowed(keys, ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(count)])


def _windowed(keys: SettingsReader, defaults: list[str]) -> dict[str, Any]:
    reach, windowed = keys.maybe("sliding_window"), windowed_blocks(keys, defaults)
    return {} if reach is None else {"window": reach - 1, "windowed": windowed}


def windowed_blocks(keys: SettingsReader, defaults: list[str]) -> tuple[bool, ...]:
    """Return for each block whether it has the window."""
    kinds = keys.get("layer_types") or defaults
    if not isinstance(kinds, list) or len(kinds) != len(defaults):
        keys.refuse("layer_types", f"a list of {len(defaults)} names")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            keys.refuse("layer_types", "full_attention or sliding_attention for each block")
    return tuple(kind == "sliding_attention" for kind in kinds)


_CACHED = (r"\.rotary_emb\.inv_freq$", r"\.attention\.(bias|masked_bias)$")
_LLAMA: Mapping[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}


def _family(name: str, class_name: str, configure: Any, **defaults: Any) -> Family:
    table = {**_LLAMA, **defaults}
    return Family(
        name,
        class_name,
        "generate",
        configure,
        _llama_rules,
        "model.",
        table,
        {},
        _CACHED,
        (("lm_head.weight", "model.embed_tokens.weight"),),
    )


GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    "generate",
    _gpt2,
    _gpt2_rules,
    "transformer.",
    {
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "n_positions": 1024,
        "tie_word_embeddings": True,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
    synonyms={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    ignored=(r"\.attn\.(bias|masked_bias)$",),
    copies=(("lm_head.weight", "transformer.wte.weight"),),
    write=_gpt2_settings,
)
NEOX = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    "generate",
    _neox,
    _neox_rules,
    "gpt_neox.",
    {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "rotary_emb_base": 10_000.0,
        "rotary_pct": 0.25,
        "use_parallel_residual": True,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    {r"^lm_head\.": "embed_out."},
    _CACHED,
    (("embed_out.weight", "gpt_neox.embed_in.weight"),),
    _neox_settings,
)
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
_GEMMA = {
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
_GEMMA2 = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 4096}
DECODERS = (
    GPT2,
    NEOX,
    _family("llama", "LlamaForCausalLM", _llama_itself, **_ENDS),
    _family("mistral", "MistralForCausalLM", _mistral, num_key_value_heads=8, sliding_window=4096, **_ENDS),
    _family("qwen2", "Qwen2ForCausalLM", _qwen2, sliding_window=4096, max_window_layers=28),
    _family("qwen3", "Qwen3ForCausalLM", _qwen3, head_dim=128, sliding_window=4096, max_window_layers=28),
    _family("gemma", "GemmaForCausalLM", _gemma, hidden_act="gelu_pytorch_tanh", **_GEMMA),
    _family(
        "gemma2",
        "Gemma2ForCausalLM",
        _gemma2,
        **_GEMMA,
        **_GEMMA2,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    ),
    _family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        _gemma3,
        **{**_GEMMA, **_GEMMA2, "max_position_embeddings": 131_072},
        rope_theta=1_000_000.0,
        rope_local_base_freq=10_000.0,
    ),
)
