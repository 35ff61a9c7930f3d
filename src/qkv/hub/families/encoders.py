"""Families of masked language models and of classifiers on top: BERT, RoBERTa, XLM-RoBERTa, DistilBERT, ModernBERT."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

from qkv.hub.families.decoders import fused_rules, projection_rules, two_ropes, windowed_blocks
from qkv.hub.families.family import SIZES, Family, Setting, read_settings
from qkv.hub.families.keys import SettingsReader, labels_of
from qkv.hub.families.rules import Half, Heads, WeightRule, named
from qkv.models.parts import PositionParts, TransformerParts
from qkv.nn.norms import NormParts

_BOTH = ("weight", "bias")
_HEADS = {
    "bert": ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"),
    "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head"),
    "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector"),
    "modernbert": ("head.dense", "head.norm", "decoder"),
}
"""For each family, the layer before the output layer, its norm, and the module with the output's bias."""


class _Block(NamedTuple):
    """The names of the blocks in a family, and of a block's parts."""

    layers: str
    attention: str
    projections: tuple[str, str, str]
    output: str
    norm: str
    expand: str
    contract: str
    last_norm: str


_BERT_BLOCK = _Block(
    "encoder.layer",
    "attention.self",
    ("query", "key", "value"),
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
_DISTILBERT_BLOCK = _Block(
    "transformer.layer",
    "attention",
    ("q_lin", "k_lin", "v_lin"),
    "attention.out_lin",
    "sa_layer_norm",
    "ffn.lin1",
    "ffn.lin2",
    "output_layer_norm",
)


_BERT_SETTINGS = (
    *SIZES,
    Setting("hidden_act", "activation", "choice"),
    Setting("type_vocab_size", "kinds"),
    Setting("hidden_dropout_prob", "dropout", "share"),
    Setting("attention_probs_dropout_prob", "attention_dropout", "share"),
)
_DISTILBERT_SETTINGS = (
    Setting("vocab_size", "size"),
    Setting("dim", "width"),
    Setting("n_heads", "heads"),
    Setting("hidden_dim", "feed_forward"),
    Setting("n_layers", "layers", "layers"),
    Setting("max_position_embeddings", "context"),
    Setting("activation", "activation", "choice"),
    Setting("dropout", "dropout", "share"),
    Setting("attention_dropout", "attention_dropout", "share"),
)

_MODERNBERT_SETTINGS = (
    *SIZES,
    Setting("hidden_activation", "activation", "choice"),
    Setting("classifier_activation", "head_activation", "choice"),
    Setting("attention_bias", "attention_bias", "flag"),
    Setting("mlp_bias", "feed_forward_bias", "flag"),
    Setting("classifier_bias", "head_bias", "flag"),
    Setting("mlp_dropout", "dropout", "share"),
    Setting("attention_dropout", "attention_dropout", "share"),
)


def _bert(keys: SettingsReader, head: str = "bert", skipped: int = 0) -> TransformerParts:
    keys.expect(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    parts = read_settings(_BERT_SETTINGS, keys)
    context = parts["context"]
    if skipped >= context:
        keys.refuse("pad_token_id", f"less than {context - 1}, where positions begin")
    norms = NormParts("layer", keys.number("layer_norm_eps"), "after", final=False, embedding=True)
    positions = PositionParts("learned", skipped=skipped, count=context)
    more = {"context": context - skipped, "norms": norms, "positions": positions}
    return TransformerParts(**{**parts, **more, **_head(keys, head)})


def _roberta(keys: SettingsReader) -> TransformerParts:
    # Learned positions are numbered from one after the id of the padding.
    return _bert(keys, "roberta", 1 + (keys.token("pad_token_id") or 0))


def _distilbert(keys: SettingsReader) -> TransformerParts:
    norms = NormParts("layer", 1e-12, "after", final=False, embedding=True)
    return TransformerParts(**read_settings(_DISTILBERT_SETTINGS, keys), norms=norms, **_head(keys, "distilbert"))


def _modernbert(keys: SettingsReader) -> TransformerParts:
    keys.expect(rope_scaling=None)
    parts, every = read_settings(_MODERNBERT_SETTINGS, keys), keys.size("global_attn_every_n_layers")
    kinds = ["sliding_attention" if i % every else "full_attention" for i in range(parts["layers"])]
    norms = NormParts("layer", keys.number("norm_eps"), embedding=True, first=False, bias=keys.flag("norm_bias"))
    head = _head(keys, "modernbert")
    return TransformerParts(
        **{**parts, **head, "head_activation": parts["head_activation"]},
        norms=norms,
        positions=two_ropes(keys, "global_rope_theta", "local_rope_theta"),
        gated=True,
        window=keys.size("local_attention") // 2,
        windowed=windowed_blocks(keys, kinds),
    )


def _head(keys: SettingsReader, name: str) -> dict[str, Any]:
    """Return the parts of the head: whether there is one, and whether its output layer has its own weights."""
    headed = f"{_HEADS[name][0]}.weight" in keys.tensors
    separate = {f"{_HEADS[name][2]}.{suffix}" for suffix in ("weight", "decoder.weight")} & keys.tensors
    tied = not separate and not (headed and keys.get("tie_word_embeddings") is False)
    # RoBERTa's code uses the exact GELU there, whatever the blocks use.
    activation = "gelu" if name == "roberta" else None
    biased = headed and keys.get("decoder_bias") is not False
    return {"masked_head": headed, "output_bias": biased, "tied": tied, "head_activation": activation}


def _head_rules(config: TransformerParts, name: str) -> list[WeightRule]:
    if not config.masked_head:
        return []
    layer, norm, output = _HEADS[name]
    rules = named("head.linear", layer, _BOTH if config.head_bias else ("weight",))
    rules += named("head.norm", norm, _BOTH if config.norms.bias else ("weight",))
    if config.labels:
        return rules
    if config.output_bias:
        rules.append(WeightRule("output.bias", (f"{output}.bias",)))
    weight = f"{output}.weight" if name in ("distilbert", "modernbert") else f"{output}.decoder.weight"
    return rules if config.tied else [*rules, WeightRule("output.weight", (weight,))]


def _rules(name: str, block: _Block, config: TransformerParts) -> list[WeightRule]:
    rules = named("reader.embed", f"{name}.embeddings.word_embeddings", ["weight"])
    rules += named("reader.positions", f"{name}.embeddings.position_embeddings", ["weight"])
    rules += named("reader.kinds", f"{name}.embeddings.token_type_embeddings", ["weight"]) if config.kinds else []
    rules += named("reader.embed_norm", f"{name}.embeddings.LayerNorm", _BOTH)
    for i in range(config.layers):
        ours, theirs = f"reader.blocks.{i}", f"{name}.{block.layers}.{i}"
        rules += projection_rules(f"{ours}.self_attention", f"{theirs}.{block.attention}", block.projections)
        rules += named(f"{ours}.self_attention.output", f"{theirs}.{block.output}", _BOTH)
        rules += named(f"{ours}.around_self.norm", f"{theirs}.{block.norm}", _BOTH)
        rules += named(f"{ours}.feed_forward.expand", f"{theirs}.{block.expand}", _BOTH)
        rules += named(f"{ours}.feed_forward.contract", f"{theirs}.{block.contract}", _BOTH)
        rules += named(f"{ours}.around_feed.norm", f"{theirs}.{block.last_norm}", _BOTH)
    return rules + _head_rules(config, name)


def _modernbert_rules(config: TransformerParts) -> list[WeightRule]:
    normed = _BOTH if config.norms.bias else ("weight",)
    attended = _BOTH if config.attention_bias else ("weight",)
    fed = _BOTH if config.feed_forward_bias else ("weight",)
    rules = named("reader.embed", "model.embeddings.tok_embeddings", ["weight"])
    rules += named("reader.embed_norm", "model.embeddings.norm", normed)
    for i in range(config.layers):
        ours, theirs = f"reader.blocks.{i}", f"model.layers.{i}"
        rules += named(f"{ours}.around_self.norm", f"{theirs}.attn_norm", normed if i else ())
        rules += fused_rules(f"{ours}.self_attention", f"{theirs}.attn.Wqkv", Heads("rows"), attended)
        rules += named(f"{ours}.self_attention.output", f"{theirs}.attn.Wo", attended)
        rules += named(f"{ours}.around_feed.norm", f"{theirs}.mlp_norm", normed)
        # The activation is on the upper half, which we call the gate.
        rules += named(f"{ours}.feed_forward.gate", f"{theirs}.mlp.Wi", fed, Half(0))
        rules += named(f"{ours}.feed_forward.expand", f"{theirs}.mlp.Wi", fed, Half(1))
        rules += named(f"{ours}.feed_forward.contract", f"{theirs}.mlp.Wo", fed)
    return rules + named("reader.norm", "model.final_norm", normed) + _head_rules(config, "modernbert")


_DEFAULTS = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
_OLD_NAMES = {r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"}
_UNUSED = (r"\.position_ids$", r"\.token_type_ids$", r"\.pooler\.", r"^cls\.seq_relationship\.", r"\.decoder\.bias$")
_ROBERTA = Family(
    "roberta",
    "RobertaForMaskedLM",
    "fill",
    _roberta,
    partial(_rules, "roberta", _BERT_BLOCK),
    "roberta.",
    {**_DEFAULTS, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    _OLD_NAMES,
    _UNUSED,
    (
        ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
        ("lm_head.decoder.bias", "lm_head.bias"),
    ),
)
ENCODERS = (
    Family(
        "bert",
        "BertForMaskedLM",
        "fill",
        _bert,
        partial(_rules, "bert", _BERT_BLOCK),
        "bert.",
        _DEFAULTS,
        _OLD_NAMES,
        _UNUSED,
        (
            ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
            ("cls.predictions.decoder.bias", "cls.predictions.bias"),
        ),
    ),
    _ROBERTA,
    replace(_ROBERTA, name="xlm-roberta", class_name="XLMRobertaForMaskedLM"),
    Family(
        "distilbert",
        "DistilBertForMaskedLM",
        "fill",
        _distilbert,
        partial(_rules, "distilbert", _DISTILBERT_BLOCK),
        "distilbert.",
        {"activation": "gelu", "max_position_embeddings": 512, "pad_token_id": 0, "tie_word_embeddings": True},
        _OLD_NAMES,
        _UNUSED,
        (("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),),
        synonyms={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    ),
    Family(
        "modernbert",
        "ModernBertForMaskedLM",
        "fill",
        _modernbert,
        _modernbert_rules,
        "model.",
        {
            "hidden_activation": "gelu",
            "classifier_activation": "gelu",
            "max_position_embeddings": 8192,
            "norm_eps": 1e-5,
            **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), False),
            "global_attn_every_n_layers": 3,
            "local_attention": 128,
            "classifier_pooling": "cls",
            "global_rope_theta": 160_000.0,
            "local_rope_theta": 10_000.0,
            "pad_token_id": 50283,
            "bos_token_id": 50281,
            "eos_token_id": 50282,
            "tie_word_embeddings": True,
        },
        copies=(("decoder.weight", "model.embeddings.tok_embeddings.weight"),),
    ),
)


class _Pooler(NamedTuple):
    """The layers of a classifier of texts in a family.

    Attributes:
        layer: the layer on the state of the first token.
        activation: its activation.
        output: the output layer.
        used: tensors that other models of the family have and leave out, but this one uses.
    """

    layer: str
    activation: Literal["tanh", "relu"]
    output: str
    used: tuple[str, ...] = ()


_POOLERS: Mapping[str, _Pooler | None] = {
    "bert": _Pooler("bert.pooler.dense", "tanh", "classifier", (r"\.pooler\.",)),
    "roberta": _Pooler("classifier.dense", "tanh", "classifier.out_proj"),
    "xlm-roberta": _Pooler("classifier.dense", "tanh", "classifier.out_proj"),
    "distilbert": _Pooler("pre_classifier", "relu", "classifier"),
    "modernbert": None,
}
"""The pooling layer of each family's classifiers; None if they reuse the head of the masked language model."""
_POOLS: Mapping[str, Literal["first", "mean"]] = {"cls": "first", "mean": "mean"}
_Labeling = Literal["classify", "tag"]


def _labeled(family: Family, task: _Labeling, keys: SettingsReader) -> TransformerParts:
    config, pooler = family.configure(keys), _POOLERS[family.name]
    pooled = pooler.activation if pooler is not None else keys.choice("classifier_pooling", _POOLS)
    return replace(
        config,
        masked_head=pooler is None,
        tied=False,
        output_bias=True,
        labels=len(labels_of(keys)),
        pooler=pooled if task == "classify" else None,
    )


def _labeled_rules(family: Family, task: _Labeling, config: TransformerParts) -> list[WeightRule]:
    rules, pooler = family.rules(config), _POOLERS[family.name]
    if task == "tag" or pooler is None:
        return rules + named("output", "classifier", _BOTH)
    return rules + named("pool.linear", pooler.layer, _BOTH) + named("output", pooler.output, _BOTH)


def _labeler_family(family: Family, task: _Labeling) -> Family:
    """Return the family of classifiers of texts or tokens whose states are those of a masked language model."""
    pooler = _POOLERS[family.name] if task == "classify" else None
    ending = "ForSequenceClassification" if task == "classify" else "ForTokenClassification"
    used = () if pooler is None else pooler.used
    return replace(
        family,
        class_name=family.class_name.replace("ForMaskedLM", ending),
        task=task,
        configure=partial(_labeled, family, task),
        rules=partial(_labeled_rules, family, task),
        ignored=tuple(pattern for pattern in family.ignored if pattern not in used),
        copies=(),
    )


LABELERS = tuple(_labeler_family(family, task) for family in ENCODERS for task in get_args(_Labeling))
