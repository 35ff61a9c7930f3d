"""Adapters of PEFT are merged into the weights of their model, or refused by name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.hub.published import CASES, inputs
from tests.hub.test_families import CLOSE, HERE, load, logits_of
from torch import Tensor

from qkv.errors import CheckpointError
from qkv.hub.families.load import published_digest
from qkv.hub.folder import CONFIG, WEIGHTS, Folder

CHANGED = {
    "llama": ("model.layers.1.self_attn.q_proj", "model.layers.0.mlp.up_proj"),
    "gpt2": ("transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_proj"),
    "modernbert": ("model.layers.2.attn.Wqkv", "model.layers.0.mlp.Wi"),
    "t5": ("encoder.block.1.layer.0.SelfAttention.v",),
}
"""Layers of some families; those of GPT-2 are stored transposed."""
R, ALPHA = 3, 6


def write_adapter(folder: Path, tensors: dict[str, Tensor], **settings: Any) -> None:
    table = {"peft_type": "LORA", "r": R, "lora_alpha": ALPHA, "target_modules": [], **settings}
    (folder / "adapter_config.json").write_text(json.dumps(table))
    named = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    safetensors.torch.save_file(named, folder / "adapter_model.safetensors")


def adapted(name: str, folder: Path, **settings: Any) -> dict[str, Tensor]:
    """Copy a folder with an adapter beside its weights; return the weights with the changes, by their names."""
    shutil.copytree(HERE / name, folder)
    weights, draws = safetensors.torch.load_file(folder / WEIGHTS), torch.Generator().manual_seed(0)
    adapter: dict[str, Tensor] = {}
    for number, layer in enumerate(CHANGED[name]):
        rows, columns = weights[f"{layer}.weight"].shape[:: -1 if name == "gpt2" else 1]
        a, b = torch.randn(R, columns, generator=draws), torch.randn(rows, R, generator=draws)
        adapter |= {f"{layer}.lora_A.weight": a, f"{layer}.lora_B.weight": b}
        alpha = settings.get("alpha_pattern", {}).get(layer, ALPHA) if number == 0 else ALPHA
        change = alpha / (R**0.5 if settings.get("use_rslora") else R) * b @ a
        weights[f"{layer}.weight"] = weights[f"{layer}.weight"] + (change.mT if name == "gpt2" else change)
    write_adapter(folder, adapter, **settings)
    return weights


def expected(weights: dict[str, Tensor], name: str, folder: Path) -> Tensor:
    folder.mkdir()
    shutil.copy(HERE / name / CONFIG, folder)
    safetensors.torch.save_file({path: tensor.contiguous() for path, tensor in weights.items()}, folder / WEIGHTS)
    return logits_of(load(folder), inputs())


@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}, {"alpha_pattern": True}], ids=str)
@pytest.mark.parametrize("name", CHANGED)
def test_changes_are_merged(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    settings = {"alpha_pattern": {CHANGED[name][0]: 17}} if "alpha_pattern" in settings else settings
    weights = adapted(name, tmp_path / "beside", **settings)
    merged = expected(weights, name, tmp_path / "merged")
    found = logits_of(load(tmp_path / "beside"), inputs())
    assert (found - merged).abs().max() <= CLOSE * merged.abs().max()
    assert (merged - logits_of(load(HERE / name), inputs())).abs().max() > 0.01 * merged.abs().max()


def test_an_adapter_alone_names_the_folder_of_its_model(tmp_path: Path) -> None:
    adapted("llama", tmp_path / "beside", base_model_name_or_path=str(HERE / "llama"))
    (tmp_path / "alone").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(tmp_path / "beside" / name, tmp_path / "alone")
    first, second = (logits_of(load(tmp_path / folder), inputs()) for folder in ("beside", "alone"))
    assert torch.equal(first, second)
    digests = {published_digest(Folder(folder)) for folder in (HERE / "llama", tmp_path / "beside", tmp_path / "alone")}
    assert len(digests) == 2, "the same adapter on the same model is the same"
    write_adapter(tmp_path / "alone", {}, base_model_name_or_path="nobody/nothing")
    with pytest.raises(CheckpointError, match="base_model_name_or_path"):
        load(tmp_path / "alone")


def test_whole_layers_and_biases_replace_those_of_the_model(tmp_path: Path) -> None:
    shutil.copytree(HERE / "bert_texts", tmp_path / "model")
    layers = {"classifier.weight": torch.randn(3, 16), "classifier.bias": torch.randn(3)}
    bias = "bert.encoder.layer.0.attention.self.query{}.bias"
    write_adapter(tmp_path / "model", {**layers, bias.format(".base_layer"): torch.ones(16)}, bias="lora_only")
    weights = {**safetensors.torch.load_file(HERE / "bert_texts" / WEIGHTS), **layers, bias.format(""): torch.ones(16)}
    merged = expected(weights, "bert_texts", tmp_path / "merged")
    assert torch.equal(logits_of(load(tmp_path / "model"), inputs()), merged)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"peft_type": "IA3"}, "peft_type"),
        ({"use_dora": True}, "use_dora"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"target_parameters": ["mlp.experts"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"of_next_year": True}, "of_next_year"),
        ({"alpha_pattern": {"(a+)+": 3}}, "alpha_pattern"),
        ({"lora_alpha": "many"}, "lora_alpha"),
    ],
)
def test_other_adapters_are_refused_by_name(settings: dict[str, Any], named: str, tmp_path: Path) -> None:
    adapted("llama", tmp_path / "model", **settings)
    with pytest.raises(CheckpointError, match=named):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    "tensors",
    [
        {"model.layers.9.self_attn.q_proj.lora_A.weight": torch.ones(R, 16)},
        {"model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(R, 16)},
        {"model.layers.0.self_attn.q_proj.lora_B.weight": torch.ones(16, R)},
        {"model.layers.0.self_attn.q_proj.lora_magnitude_vector": torch.ones(16)},
        {"model.embed_tokens.lora_embedding_A": torch.ones(R, 40)},
        {"lm_head.weight": torch.ones(41, 16)},
    ],
    ids=lambda tensors: next(iter(tensors)),
)
def test_tensors_that_do_not_fit_are_refused_by_name(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    shutil.copytree(HERE / "llama", tmp_path / "model")
    write_adapter(tmp_path / "model", tensors)
    with pytest.raises(CheckpointError, match=next(iter(tensors)).partition(".lora_")[0]):
        load(tmp_path / "model")


def test_an_embedding_that_two_layers_share_is_not_replaced(tmp_path: Path) -> None:
    shutil.copytree(HERE / "bert", tmp_path / "model")
    name = "bert.embeddings.word_embeddings.weight"
    write_adapter(tmp_path / "model", {name: safetensors.torch.load_file(HERE / "bert" / WEIGHTS)[name]})
    with pytest.raises(CheckpointError, match=name):
        load(tmp_path / "model")


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "bert_texts", "modernbert", "t5", "marian"])
@pytest.mark.filterwarnings("ignore")
def test_logits_are_those_of_peft(name: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from tests.hub import theirs

    layers = {
        "gpt2": ["c_attn", "c_proj"],
        "gpt_neox": ["query_key_value"],
        "modernbert": ["Wqkv", "Wi"],
        "marian": ["fc1"],
    }
    task = {"task_type": "SEQ_CLS"} if name == "bert_texts" else {"target_modules": layers.get(name)}
    model = theirs.make(name)
    theirs.write(model, tmp_path / "model")
    bias = "none" if CASES[name].model.startswith(("Llama", "ModernBert")) else "lora_only"
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=R, lora_alpha=ALPHA, bias=bias, **task)).eval()
    for parameter in wrapped.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    wrapped.save_pretrained(tmp_path / "model")
    answer = theirs.logits(wrapped, name, inputs())
    assert (logits_of(load(tmp_path / "model"), inputs()) - answer).abs().max() <= CLOSE * answer.abs().max()
