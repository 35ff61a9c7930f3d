"""Attach models of transformers with small random weights, and write which architectures run and record.

    python -m results.architectures                     all of them; writes docs/reference/architectures.md
    python -m results.architectures --name llama        one; may be given several times; prints its line alone

Each model runs with its own eager attention, then attached and recorded. An architecture *runs and records* if outputs
agree within 1e-4 of the largest number and recorded weights with those of eager attention; it is *refused* if
`qkv.hub.attach` names the modules that compute attention themselves. Anything else is an error of the script.
"""

import argparse
import copy
import inspect
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import qkv
from qkv.errors import AttachError

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "architectures.md"
TEXT = (
    *("albert", "apertus", "arcee", "bert", "bert-generation", "biogpt", "camembert", "codegen", "cohere", "cohere2"),
    *("ctrl", "data2vec-text", "deberta", "deberta-v2", "deepseek_v3", "diffllama", "distilbert", "doge", "dots1"),
    *("electra", "ernie", "ernie4_5", "esm", "exaone4", "falcon", "flaubert", "gemma", "gemma2", "gemma3_text", "glm"),
    *("glm4", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite", "helium", "jetmoe", "llama"),
    *("megatron-bert", "ministral", "mistral", "mixtral", "modernbert", "mpnet", "mpt", "nanochat", "nemotron"),
    *("nystromformer", "olmo", "olmo2", "olmo3", "olmoe", "openai-gpt", "opt", "persimmon", "phi", "phi3", "qwen2"),
    *("qwen2_moe", "qwen3", "qwen3_moe", "rembert", "roberta", "roberta-prelayernorm", "roformer", "seed_oss"),
    *("smollm3", "stablelm", "starcoder2", "xglm", "xlm-roberta", "xlnet", "bloom"),
)
TRANSLATORS = (
    *(
        "bart",
        "bigbird_pegasus",
        "blenderbot",
        "blenderbot-small",
        "longt5",
        "m2m_100",
        "marian",
        "mbart",
        "mt5",
        "mvp",
    ),
    *("nllb-moe", "pegasus", "plbart", "prophetnet", "switch_transformers", "t5", "umt5"),
)
IMAGES = (
    "beit",
    "deit",
    "dinov2",
    "ijepa",
    "siglip_vision_model",
    "vit",
    "vit_msn",
    "videomae",
    "dinov2_with_registers",
)
SOUNDS = ("whisper",)
SIZES: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size", "hidden_dim", "n_embed"), 32
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers", "num_sparse_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "d_ff", "d_inner", "n_inner", "dff", "ffn_dim", "encoder_ffn_dim"), 32),
    **dict.fromkeys(
        ("decoder_ffn_dim", "moe_intermediate_size", "ffn_hidden_size", "shared_expert_intermediate_size"), 32
    ),
    "num_key_value_heads": 2,
    "head_dim": 8,
    "d_kv": 8,
    "rotary_dim": 4,
    "vocab_size": 99,
    "attention_head_size": 8,
    "encoder_ffn_dim": 32,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "max_source_positions": 32,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_ctx": 128,
    "image_size": 32,
    "patch_size": 8,
    "num_frames": 2,
    "kv_channels": 8,
    "num_mel_bins": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "sliding_window": 5,
    "attention_window": 4,
    "first_k_dense_replace": 1,
    "max_target_positions": 64,
    "attn_logit_softcapping": 2.0,
    "num_sparse_decoder_layers": 1,
    "local_attention": 6,
    "attention_type": "original_full",
    "rope_theta": 10000.0,
    "embed_dim": 32,
    "hidden_size_per_layer_input": 8,
    "bottleneck_size": 16,
}
MORE: dict[str, dict[str, Any]] = {
    "bloom": {"hidden_size": 32, "n_head": 4, "n_layer": 2},
    "deepseek_v3": {"num_key_value_heads": 4, "head_dim": 8},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 5},
    "xlnet": {"d_inner": 32, "max_position_embeddings": None},
    "falcon": {"head_dim": None},
    "prophetnet": {"num_hidden_layers": None},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "esm": {"vocab_size": 99, "mask_token_id": 3, "pad_token_id": 0},
    "ministral": {"head_dim": 8},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "bigbird_pegasus": {"attention_type": "original_full"},
}
BOUND = 1e-4


@dataclass(frozen=True)
class Line:
    """The result of one architecture.

    Attributes:
        name: its name in transformers.
        kind: "runs" or "refused".
        layers: the number of recorded attentions.
        error: the largest difference to eager attention, relative to the largest output.
        reason: why it is refused.
        compared: whether weights were compared: eager attention returned as many as layers were recorded.
    """

    name: str
    kind: str
    layers: int = 0
    error: float = 0.0
    reason: str = ""
    compared: bool = True

    def __str__(self) -> str:
        if self.kind == "refused":
            return f"| {self.name} | refused by name | | {self.reason} |"
        shown = f"{self.layers}" if self.compared else f"{self.layers}; only outputs compared"
        return f"| {self.name} | runs and records | {shown} | {self.error:.0e} |"


def config_of(name: str) -> Any:
    """Make a small configuration: every size that it has, made small."""
    from transformers import AutoConfig

    usual = AutoConfig.for_model(name)
    sizes = {key: value for key, value in SIZES.items() if getattr(usual, key, None) is not None} | MORE.get(name, {})
    return type(usual)(**{key: value for key, value in sizes.items() if value is not None})


def model_of(name: str) -> Any:
    """Make a small model with random weights, on its own eager attention."""
    from transformers import AutoModel

    torch.manual_seed(0)
    model = AutoModel.from_config(config_of(name), attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.1)
    return model


def inputs_of(name: str, model: Any) -> dict[str, Tensor]:
    """Draw a batch; text has padding on the left."""
    draw = torch.Generator().manual_seed(1)
    config = model.config
    if name in IMAGES:
        image = (3, config.image_size, config.image_size)
        size = (2, config.num_frames, *image) if name == "videomae" else (2, *image)
        return {"pixel_values": torch.randn(size, generator=draw)}
    ids = torch.randint(3, 90, (2, 12), generator=draw)
    if name in SOUNDS:
        sound = torch.randn(2, config.num_mel_bins, 2 * config.max_source_positions, generator=draw)
        return {"input_features": sound, "decoder_input_ids": ids}
    real = torch.ones(2, 12, dtype=torch.long)
    real[1, :4] = 0
    given = {"input_ids": ids, "attention_mask": real}
    if name in TRANSLATORS:
        given["decoder_input_ids"] = ids[:, :7]
    known = inspect.signature(type(model).forward).parameters
    return {key: value for key, value in given.items() if key in known}


@torch.no_grad()
def judge(name: str) -> Line:
    """Compare an attached model with its own eager attention.

    Raises:
        AssertionError: results differ, or a layer was not recorded.
    """
    model = model_of(name)
    given = inputs_of(name, model)
    want = model(**given, output_attentions=True)
    try:
        ours = qkv.hub.attach(copy.deepcopy(model))
        with qkv.record(ours) as trace:
            got = ours(**given)
    except AttachError as error:
        return Line(name, "refused", reason=str(error).partition("got ")[2].partition(". ")[0])
    difference = _difference(got[0], want[0], given.get("decoder_input_ids", given.get("attention_mask")), given)
    assert difference < BOUND, f"{name}: outputs differ by {difference:.1e}"
    weights = _weights(want)
    shown = [layer for layer in trace.layers if trace.calls[layer]]
    assert shown, f"{name}: nothing recorded"
    if len(weights) == len(shown):
        for layer, matrix in zip(_in_order(shown, weights, trace), weights, strict=True):
            rows = matrix.sum(-1, keepdim=True) > 0
            real = _real_rows(matrix, given)
            far = ((trace.weights(layer) - matrix).abs() * rows * real).max()
            assert far < BOUND, f"{name}: the weights of {layer} differ by {far:.1e}"
    return Line(name, "runs", len(shown), difference, compared=len(weights) == len(shown))


def _weights(output: Any) -> list[Tensor]:
    names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    found = [x for name in names for x in (getattr(output, name, None) or ())]
    return [x for x in found if isinstance(x, Tensor)]


def _in_order(layers: Sequence[str], weights: Sequence[Tensor], trace: Any) -> Iterable[str]:
    """Return layers in the order of the outputs: encoder, decoder, cross-attention."""
    crossing = [layer for layer in layers if not trace.calls[layer][0].self_attention]
    self_attending = [layer for layer in layers if layer not in crossing]
    first = [layer for layer in self_attending if "decoder" not in layer]
    return [*first, *(layer for layer in self_attending if layer not in first), *crossing]


def _real_rows(matrix: Tensor, given: dict[str, Tensor]) -> Tensor:
    """Return which queries are not padding: (B, 1, Q, 1)."""
    real = given.get("attention_mask")
    if real is None or matrix.shape[-2] != real.shape[-1]:
        return torch.ones(())
    return real[:, None, :, None]


def _difference(got: Tensor, want: Tensor, like: Tensor | None, given: dict[str, Tensor]) -> float:
    real = given.get("attention_mask")
    if real is not None and got.shape[:2] == real.shape:
        got, want = got[real.bool()], want[real.bool()]
    return float((got - want).abs().max() / want.abs().max())


def page(lines: Sequence[Line]) -> str:
    """Write the page."""
    from transformers import __version__ as version

    runs = [line for line in lines if line.kind == "runs"]
    return "\n".join(
        [
            "# Which Hugging Face architectures run",
            "",
            "`python -m results.architectures` attaches a small model of each architecture, with random weights",
            "and padding on the left, and compares outputs and recorded weights with its own eager attention.",
            f"With transformers {version}, {len(runs)} of {len(lines)} architectures run and record; the",
            "others are refused with the names of the modules that compute attention themselves, without the",
            "`AttentionInterface` of transformers.",
            "",
            "| architecture | result | recorded layers | largest difference, relative; or what is refused |",
            "|---|---|---|---|",
            *map(str, lines),
            "",
        ]
    )


def main() -> None:
    """Run the command."""
    import transformers

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--name", action="append", choices=(*TEXT, *TRANSLATORS, *IMAGES, *SOUNDS))
    chosen = parser.parse_args().name
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    lines = []
    for name in chosen or (*TEXT, *TRANSLATORS, *IMAGES, *SOUNDS):
        lines.append(judge(name))
        print(lines[-1])
    if not chosen:
        PAGE.write_text(page(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
