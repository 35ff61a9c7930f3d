"""Small models of each family, with random weights from fixed seeds: what the fixtures and the parity tests share."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

VOCABULARY, LENGTH, STEPS, END = 40, 9, 10, 5
LENGTHS = (9, 4, 6)


class Case(NamedTuple):
    """A model: the names of its classes in `transformers`, and its settings."""

    config: str
    model: str
    settings: dict[str, Any]


_WIDE: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": END,
    "pad_token_id": 0,
}
_LLAMA = {**_WIDE, "num_key_value_heads": 2}
_BART: dict[str, Any] = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 16,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "pad_token_id": VOCABULARY - 1,
    "decoder_start_token_id": VOCABULARY - 1,
    "eos_token_id": END,
    "forced_eos_token_id": None,
    "scale_embedding": True,
    "max_position_embeddings": 64,
}
_T5: dict[str, Any] = {
    "num_layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "d_kv": 8,
    "num_heads": 4,
    "vocab_size": VOCABULARY,
    "decoder_start_token_id": 0,
    "eos_token_id": END,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}
_LABELS = {"id2label": {0: "bad", 1: "good", 2: "so-so"}, "label2id": {"bad": 0, "good": 1, "so-so": 2}}
_ROBERTA = {**_WIDE, "pad_token_id": 1, "bos_token_id": 0}
_DISTILBERT = {"n_layers": 2, "dim": 16, "hidden_dim": 24, "n_heads": 4, "vocab_size": VOCABULARY}
_MODERNBERT = {
    **_WIDE,
    "num_hidden_layers": 4,
    "cls_token_id": 1,
    "sep_token_id": END,
    "local_attention": 4,
    "global_rope_theta": 500.0,
    "local_rope_theta": 20.0,
}
_LLAMA3 = {
    "rope_theta": 500.0,
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {"rope_theta": 500.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
_GEMMA = {**_LLAMA, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 16}
CASES = {
    "gpt2": Case(
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            "n_layer": 2,
            "n_embd": 16,
            "n_head": 4,
            "n_positions": 64,
            **{name: _WIDE[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")},
        },
    ),
    "gpt_neox": Case("GPTNeoXConfig", "GPTNeoXForCausalLM", {**_WIDE, "num_attention_heads": 2}),
    "llama": Case("LlamaConfig", "LlamaForCausalLM", _LLAMA),
    "llama3": Case(
        "LlamaConfig",
        "LlamaForCausalLM",
        {**_LLAMA, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "rope_parameters": _LLAMA3},
    ),
    "llama_yarn": Case("LlamaConfig", "LlamaForCausalLM", {**_LLAMA, "head_dim": 16, "rope_parameters": _YARN}),
    "llama_linear": Case(
        "LlamaConfig",
        "LlamaForCausalLM",
        {**_LLAMA, "rope_parameters": {"rope_theta": 500.0, "rope_type": "linear", "factor": 4.0}},
    ),
    "mistral": Case("MistralConfig", "MistralForCausalLM", {**_LLAMA, "sliding_window": 4}),
    "qwen2": Case("Qwen2Config", "Qwen2ForCausalLM", _LLAMA),
    "qwen3": Case(
        "Qwen3Config",
        "Qwen3ForCausalLM",
        {**_LLAMA, "head_dim": 8, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "gemma": Case("GemmaConfig", "GemmaForCausalLM", {**_LLAMA, "head_dim": 8}),
    "gemma2": Case("Gemma2Config", "Gemma2ForCausalLM", _GEMMA),
    "gemma3": Case("Gemma3TextConfig", "Gemma3ForCausalLM", {**_GEMMA, "sliding_window_pattern": 3}),
    "bert": Case("BertConfig", "BertForMaskedLM", _WIDE),
    "roberta": Case("RobertaConfig", "RobertaForMaskedLM", _ROBERTA),
    "xlm_roberta": Case("XLMRobertaConfig", "XLMRobertaForMaskedLM", _ROBERTA),
    "distilbert": Case("DistilBertConfig", "DistilBertForMaskedLM", _DISTILBERT),
    "modernbert": Case("ModernBertConfig", "ModernBertForMaskedLM", _MODERNBERT),
    "bert_texts": Case("BertConfig", "BertForSequenceClassification", {**_WIDE, **_LABELS}),
    "bert_tokens": Case("BertConfig", "BertForTokenClassification", {**_WIDE, **_LABELS}),
    "roberta_texts": Case("RobertaConfig", "RobertaForSequenceClassification", {**_ROBERTA, **_LABELS}),
    "roberta_tokens": Case("RobertaConfig", "RobertaForTokenClassification", {**_ROBERTA, **_LABELS}),
    "xlm_roberta_texts": Case("XLMRobertaConfig", "XLMRobertaForSequenceClassification", {**_ROBERTA, **_LABELS}),
    "xlm_roberta_tokens": Case("XLMRobertaConfig", "XLMRobertaForTokenClassification", {**_ROBERTA, **_LABELS}),
    "distilbert_texts": Case("DistilBertConfig", "DistilBertForSequenceClassification", {**_DISTILBERT, **_LABELS}),
    "distilbert_tokens": Case("DistilBertConfig", "DistilBertForTokenClassification", {**_DISTILBERT, **_LABELS}),
    "modernbert_texts": Case("ModernBertConfig", "ModernBertForSequenceClassification", {**_MODERNBERT, **_LABELS}),
    "modernbert_mean_texts": Case(
        "ModernBertConfig",
        "ModernBertForSequenceClassification",
        {
            **_MODERNBERT,
            **_LABELS,
            "classifier_pooling": "mean",
            **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True),
        },
    ),
    "modernbert_tokens": Case("ModernBertConfig", "ModernBertForTokenClassification", {**_MODERNBERT, **_LABELS}),
    "marian": Case("MarianConfig", "MarianMTModel", {**_BART, "activation_function": "swish"}),
    "pegasus": Case("PegasusConfig", "PegasusForConditionalGeneration", {**_BART, "activation_function": "relu"}),
    "bart": Case("BartConfig", "BartForConditionalGeneration", _BART),
    "mbart": Case("MBartConfig", "MBartForConditionalGeneration", _BART),
    "m2m_100": Case(
        "M2M100Config",
        "M2M100ForConditionalGeneration",
        {**_BART, "activation_function": "relu", "decoder_start_token_id": END},
    ),
    "t5": Case("T5Config", "T5ForConditionalGeneration", _T5),
    "t5_gated": Case(
        "T5Config",
        "T5ForConditionalGeneration",
        {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
}
FILLERS = ("bert", "roberta", "xlm_roberta", "distilbert", "modernbert")
PAIRS = ("marian", "pegasus", "bart", "mbart", "m2m_100", "t5", "t5_gated")
LABELERS = tuple(name for name in CASES if name.endswith(("_texts", "_tokens")))
GENERATORS = tuple(name for name in CASES if name not in (*FILLERS, *LABELERS, *PAIRS))


class Inputs(NamedTuple):
    """Token ids for any family.

    Attributes:
        tokens: (3, 9); of row r the first `lengths[r]` are real.
        lengths: (3,).
        target: (3, 7), of encoder-decoders.
    """

    tokens: Tensor
    lengths: Tensor
    target: Tensor


def inputs(seed: int = 1) -> Inputs:
    draws = torch.Generator().manual_seed(seed)
    tokens = torch.randint(6, VOCABULARY - 2, (len(LENGTHS), LENGTH), generator=draws)
    target = torch.randint(6, VOCABULARY - 2, (len(LENGTHS), 7), generator=draws)
    return Inputs(tokens, torch.tensor(LENGTHS), target)


def padded_left(given: Inputs) -> tuple[Tensor, Tensor]:
    """The tokens moved to the right end of their rows, and the number of padding before each."""
    tokens, padding = torch.zeros_like(given.tokens), given.tokens.shape[1] - given.lengths
    for row, length in enumerate(given.lengths.tolist()):
        tokens[row, int(padding[row]) :] = given.tokens[row, :length]
    return tokens, padding
