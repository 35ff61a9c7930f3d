"""Published models are read, computed, continued and written as `transformers` does: against its stored answers."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.hub.published import (
    CASES,
    END,
    FILLERS,
    GENERATORS,
    LABELERS,
    PAIRS,
    STEPS,
    VOCABULARY,
    Inputs,
    inputs,
    padded_left,
)
from tests.pairs import in_turn
from torch import Tensor

import qkv
from qkv.decode.beam import Beam, beam
from qkv.decode.greedy import greedy
from qkv.decode.prompted import Prompted
from qkv.decode.protocol import Hypothesis
from qkv.errors import CheckpointError
from qkv.hub.families.load import FAMILIES, StackModel, read_folder
from qkv.hub.families.save import save
from qkv.hub.folder import INDEX, WEIGHTS, Folder
from qkv.models.language_model import LanguageModel
from qkv.models.reader import MaskedLanguageModel, TextClassifier, TextTagger
from qkv.models.translator import TransformerTranslator
from qkv.nn.positions import PositionEmbedding

HERE = Path(__file__).parent / "families"
CLOSE = 1e-5
READERS = (MaskedLanguageModel, TextClassifier, TextTagger)


def load(folder: Path) -> StackModel:
    return read_folder(Folder(folder)).build()


@torch.no_grad()
def logits_of(model: StackModel, given: Inputs) -> Tensor:
    """The logits of real positions, zeros for padding, as the fixtures hold them."""
    if isinstance(model, TransformerTranslator):
        return model(given.tokens, given.lengths, given.target)
    if isinstance(model, READERS):
        real = torch.arange(given.tokens.shape[1]) < given.lengths[:, None]
        found = model(given.tokens, given.lengths)
        return found * real[..., None] if found.ndim == 3 else found
    tokens, padding = padded_left(given)
    return model(tokens, padding) * (torch.arange(tokens.shape[1]) >= padding[:, None])[..., None]


def continued(model: StackModel, given: Inputs, width: int, *, start: int, end: int = END) -> list[Hypothesis]:
    """Continue each row, or translate it."""
    stepper: Any = model if isinstance(model, TransformerTranslator) else Prompted(model)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"bos": start, "eos": end, "limit": STEPS}
    if width == 1:
        return greedy(stepper, given.tokens, given.lengths, **settings)
    return [row[0] for row in beam(stepper, given.tokens, given.lengths, search=Beam(width), **settings)]


def same_ids(found: list[Hypothesis], theirs: list[list[int]], width: int) -> int:
    """Compare ids; return the number of rows that could be compared.

    A beam of ours prefers each hypothesis that ended to all that were cut, theirs compares both by their scores. So
    rows that ended here and were cut there have no common answer.
    """
    rows = [
        (one.ids, tuple(other))
        for one, other in zip(found, theirs, strict=True)
        if width == 1 or not (one.finished and len(other) == STEPS)
    ]
    assert [ours for ours, _ in rows] == [other for _, other in rows]
    return len(rows)


def start_of(name: str) -> int:
    return int(CASES[name].settings.get("decoder_start_token_id", 0))


@pytest.mark.parametrize("name", CASES)
def test_logits_are_theirs(name: str) -> None:
    expected = safetensors.torch.load_file(HERE / name / "expected.safetensors")["logits"]
    found = logits_of(load(HERE / name), inputs())
    assert (found - expected).abs().max() <= CLOSE * expected.abs().max()


@pytest.mark.parametrize("name", in_turn([*GENERATORS, *PAIRS], every=3))
def test_generated_ids_are_theirs(name: str) -> None:
    expected = json.loads((HERE / name / "expected.json").read_text())
    model, compared = load(HERE / name), 0
    for width in (1, 4):
        found = continued(model, inputs(), width, start=start_of(name))
        compared += same_ids(found, expected[f"{width}"], width)
    assert compared >= 4, "of three rows, decoded in two ways"


@pytest.mark.parametrize("name", in_turn(GENERATORS))
@torch.no_grad()
def test_padding_on_the_left_changes_nothing(name: str) -> None:
    model, given = load(HERE / name), inputs()
    assert isinstance(model, LanguageModel)
    tokens, padding = padded_left(given)
    other = tokens.where(torch.arange(tokens.shape[1]) >= padding[:, None], VOCABULARY - 1)
    together, again = model(tokens, padding), model(other, padding)
    for row, length in enumerate(given.lengths.tolist()):
        alone = model(given.tokens[row : row + 1, :length])[0]
        assert (together[row, -length:] - alone).abs().max() <= CLOSE * alone.abs().max()
        assert torch.equal(together[row, -length:], again[row, -length:])


@pytest.mark.parametrize("name", in_turn(GENERATORS))
@torch.no_grad()
def test_steps_with_a_cache_are_those_without(name: str) -> None:
    model = load(HERE / name)
    assert isinstance(model, LanguageModel)
    tokens, padding = padded_left(inputs())
    whole = model(tokens, padding)
    _, state = model.read(tokens[:, :6], padding=padding)
    rows = torch.tensor([2, 0])
    state = model.select(state, rows)
    for column in range(6, tokens.shape[1]):
        found, state = model.step(tokens[rows, column], state)
        assert (found - whole[rows, column]).abs().max() <= CLOSE * whole.abs().max()


@pytest.mark.parametrize("name", in_turn(CASES, every=3))
def test_what_is_written_is_what_was_read(name: str, tmp_path: Path) -> None:
    first = load(HERE / name)
    save(first, tmp_path / "once")
    second = load(tmp_path / "once")
    ours, again = first.state_dict(), second.state_dict()
    assert list(ours) == list(again)
    assert all(torch.equal(ours[part], again[part]) for part in ours)
    stored, written = (safetensors.torch.load_file(folder / WEIGHTS) for folder in (HERE / name, tmp_path / "once"))
    assert all(torch.equal(stored[part], tensor) for part, tensor in written.items() if part in stored)
    missing = set(stored) - set(written)
    assert all("embed_positions" in part for part in missing), missing


@pytest.mark.parametrize("name", ["gpt2", "gemma3", "t5"])
def test_weights_in_several_files(name: str, tmp_path: Path) -> None:
    folder = shard(HERE / name, tmp_path / name)
    given = inputs()
    assert torch.equal(logits_of(load(folder), given), logits_of(load(HERE / name), given))


def shard(source: Path, folder: Path) -> Path:
    """Copy a folder with its weights in three files."""
    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    tensors, places = safetensors.torch.load_file(source / WEIGHTS), {}
    for part in range(3):
        file = f"model-0000{part + 1}-of-00003.safetensors"
        own = {name: tensor for place, (name, tensor) in enumerate(sorted(tensors.items())) if place % 3 == part}
        safetensors.torch.save_file(own, folder / file)
        places |= dict.fromkeys(own, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return folder


@pytest.mark.parametrize("name", in_turn(CASES, every=3))
def test_every_parameter_learns_and_every_layer_is_recorded(name: str) -> None:
    model, given = load(HERE / name), inputs()
    tokens, padding = padded_left(given)
    with qkv.record(model) as trace:
        out = model(tokens, padding) if isinstance(model, LanguageModel) else logits_with_gradient(model, given)
    out.square().sum().backward()
    dead = [path for path, parameter in model.named_parameters() if parameter.grad is None]
    assert not dead
    layers = {path for path in trace.calls if trace.calls[path]}
    config = model.config
    assert len(layers) == config.layers + 2 * config.decoder_layers + (config.pooler == "mean")


def logits_with_gradient(model: StackModel, given: Inputs) -> Tensor:
    if isinstance(model, TransformerTranslator):
        return model(given.tokens, given.lengths, given.target)
    kinds = given.tokens % 2 if isinstance(model, READERS) and model.parts.kinds else None
    return model(given.tokens, given.lengths, kinds=kinds)


@pytest.mark.parametrize("name", [*FILLERS, *LABELERS])
@torch.no_grad()
def test_what_padding_holds_changes_nothing(name: str) -> None:
    model, given = load(HERE / name), inputs()
    assert isinstance(model, READERS)
    real = torch.arange(given.tokens.shape[1]) < given.lengths[:, None]
    found = [model(tokens, given.lengths) for tokens in (given.tokens, given.tokens.where(real, 3))]
    assert torch.equal(*(scores[real] if scores.ndim == 3 else scores for scores in found))


def older(name: str, folder: Path, drop: tuple[str, ...] = (), **settings: Any) -> Path:
    """Copy a folder with settings in the form of earlier versions of `transformers`."""
    shutil.copytree(HERE / name, folder)
    table = json.loads((folder / "config.json").read_text())
    kept = {key: item for key, item in table.items() if key not in ("rope_parameters", "layer_types", *drop)}
    (folder / "config.json").write_text(json.dumps({**kept, **settings}))
    return folder


_ROPE = {"factor": 4.0, "original_max_position_embeddings": 16}
OLDER: dict[str, dict[str, Any]] = {
    "gpt_neox": {"rotary_pct": 0.25, "rotary_emb_base": 10000},
    "llama": {"rope_theta": 10000.0, "rope_scaling": None, "drop": ("head_dim", "attention_bias", "mlp_bias")},
    "llama3": {
        "rope_theta": 500.0,
        "rope_scaling": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **_ROPE},
    },
    "llama_yarn": {"rope_theta": 500.0, "rope_scaling": {"type": "yarn", **_ROPE}},
    "llama_linear": {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "qwen3": {"rope_theta": 10000.0},
    "gemma2": {"rope_theta": 10000.0},
    "gemma3": {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": None, "sliding_window_pattern": 3},
    "t5": {"drop": ("num_decoder_layers", "dense_act_fn", "is_gated_act", "scale_decoder_outputs")},
}


@pytest.mark.parametrize("name", in_turn(OLDER))
def test_settings_of_earlier_versions(name: str, tmp_path: Path) -> None:
    model = load(older(name, tmp_path / "model", **OLDER[name]))
    assert torch.equal(logits_of(model, inputs()), logits_of(load(HERE / name), inputs()))


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "marian", "pegasus"])
def test_settings_are_written_as_they_are_read(name: str) -> None:
    parts: Any = load(HERE / name).parts
    family = FAMILIES[name]
    assert family.write is not None
    read = family.configure(family.settings(family.write(parts), "config.json"))
    assert read == replace(parts, settings="")


PREFIXES = {
    "gpt2": "transformer.",
    "gpt_neox": "gpt_neox.",
    "llama3": "model.",
    "roberta": "roberta.",
    "modernbert": "model.",
}


@pytest.mark.parametrize("name", PREFIXES)
def test_names_of_the_model_without_its_head(name: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / name, tmp_path / "model")
    tensors = safetensors.torch.load_file(HERE / name / WEIGHTS)
    outputs = {"roberta": "lm_head.", "modernbert": ("head.", "decoder.")}.get(name, ())
    heads = {part for part in tensors if part.startswith(outputs)}
    bare = {part.removeprefix(PREFIXES[name]): tensor for part, tensor in tensors.items() if part not in heads}
    safetensors.torch.save_file(bare, tmp_path / "model" / WEIGHTS)
    model, whole = load(tmp_path / "model"), load(HERE / name)
    if isinstance(model, MaskedLanguageModel):
        assert isinstance(whole, MaskedLanguageModel)
        tokens, lengths, _ = inputs()
        assert torch.equal(model.reader(tokens, lengths)[0], whole.reader(tokens, lengths)[0])
        assert not model.config.masked_head
    else:
        assert torch.equal(logits_of(model, inputs()), logits_of(whole, inputs()))


def test_old_names_unused_tensors_and_copies(tmp_path: Path) -> None:
    shutil.copytree(HERE / "bert", tmp_path / "model")
    tensors = safetensors.torch.load_file(HERE / "bert" / WEIGHTS)
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    embedding = tensors["bert.embeddings.word_embeddings.weight"]
    more = {
        "bert.embeddings.position_ids": torch.arange(64)[None],
        "bert.pooler.dense.weight": torch.randn(16, 16),
        "cls.seq_relationship.bias": torch.randn(2),
        "cls.predictions.decoder.weight": embedding.clone(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone(),
    }
    safetensors.torch.save_file({**renamed, **more}, tmp_path / "model" / WEIGHTS)
    model = load(tmp_path / "model")
    assert model.config.tied
    assert torch.equal(logits_of(model, inputs()), logits_of(load(HERE / "bert"), inputs()))
    more["cls.predictions.decoder.weight"] = embedding + 1
    safetensors.torch.save_file({**renamed, **more}, tmp_path / "model" / WEIGHTS)
    other = load(tmp_path / "model")
    assert not other.config.tied
    assert torch.equal(other.output.weight, embedding + 1)


@pytest.mark.parametrize(
    ("name", "copy", "original"),
    [
        (name, *pair)
        for name in ("bart", "gpt2", "m2m_100", "marian", "modernbert", "t5", "t5_gated")
        for pair in FAMILIES[name.partition("_gated")[0]].copies
    ],
)
def test_a_table_stored_under_the_name_of_its_copy(name: str, copy: str, original: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / name, tmp_path / "model")
    tensors = safetensors.torch.load_file(HERE / name / WEIGHTS)
    tensors[copy] = tensors.pop(original)
    safetensors.torch.save_file(tensors, tmp_path / "model" / WEIGHTS)
    assert torch.equal(logits_of(load(tmp_path / "model"), inputs()), logits_of(load(HERE / name), inputs()))


@pytest.mark.parametrize("name", ["marian", "pegasus"])
def test_stored_positions_are_the_sinusoids_or_refused(name: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / name, tmp_path / "model")
    tensors, part = safetensors.torch.load_file(HERE / name / WEIGHTS), "model.decoder.embed_positions.weight"
    whole = load(HERE / name)
    waves = PositionEmbedding("halves", whole.parts.width)(torch.zeros(whole.parts.context, whole.parts.width))
    for stored, fits in ((waves.bfloat16(), True), (waves + 0.1, False), (waves[1:], False)):
        safetensors.torch.save_file({**tensors, part: stored.contiguous()}, tmp_path / "model" / WEIGHTS)
        if fits:
            assert torch.equal(logits_of(load(tmp_path / "model"), inputs()), logits_of(whole, inputs()))
        else:
            with pytest.raises(CheckpointError, match=rf"{part}: expected sinusoids of 64 positions"):
                load(tmp_path / "model")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_widened_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    shutil.copytree(HERE / "llama", tmp_path / "model")
    tensors = {name: tensor.to(dtype) for name, tensor in safetensors.torch.load_file(HERE / "llama" / WEIGHTS).items()}
    safetensors.torch.save_file(tensors, tmp_path / "model" / WEIGHTS)
    model = load(tmp_path / "model")
    assert torch.equal(model.embed.weight, tensors["model.embed_tokens.weight"].float())
