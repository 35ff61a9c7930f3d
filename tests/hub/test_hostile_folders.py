"""Folders that lie: each is a typed error that names what is wrong; nothing is executed, unpickled or allocated."""

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.hub.published import CASES, inputs
from tests.hub.test_families import logits_of
from torch import Tensor

import qkv
from qkv.errors import CheckpointError
from qkv.hub.families.load import read_folder
from qkv.hub.folder import CONFIG, INDEX, WEIGHTS, Folder, FolderWeights

HERE = Path(__file__).parent / "families"
HUGE = 10**12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(HERE / "llama", tmp_path / "model")
    return tmp_path / "model"


def configure(folder: Path, **changes: Any) -> None:
    table = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**table, **changes}))


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    change(tensors)
    safetensors.torch.save_file(tensors, folder / WEIGHTS)


def refused(folder: Path, match: str) -> None:
    with pytest.raises(CheckpointError, match=match):
        qkv.load(folder)
    assert not (folder / "executed").exists()
    assert not (folder.parent / "executed").exists()


class Payload:
    """Unpickled, it would leave a file."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.place / "executed"),)


def test_a_renamed_tensor(folder: Path) -> None:
    def rename(tensors: dict[str, Tensor]) -> None:
        tensors["model.layers.1.mlp.up_project.weight"] = tensors.pop("model.layers.1.mlp.up_proj.weight")

    rewrite(folder, rename)
    refused(folder, r"no model\.layers\.1\.mlp\.up_proj\.weight; model\.layers\.1\.mlp\.up_project\.weight, which")


def test_a_further_tensor(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"score.weight": torch.zeros(2, 16)}))
    refused(folder, r"score\.weight, which this model does not have")


@pytest.mark.parametrize("shape", [(8, 16), (16,), (16, 16, 1), (0, 16)])
def test_a_tensor_of_another_shape(folder: Path, shape: tuple[int, ...]) -> None:
    rewrite(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.weight": torch.zeros(shape)}))
    refused(folder, r"q_proj\.weight of shape .* in place of \(16, 16\)")


TIED = {"gpt2": "lm_head", "llama3": "lm_head", "bert": "cls.predictions.decoder", "t5": "encoder.embed_tokens"}
EMBEDDINGS = {
    "gpt2": "transformer.wte",
    "llama3": "model.embed_tokens",
    "bert": "bert.embeddings.word_embeddings",
    "t5": "shared",
}


def lengthen(folder: Path, names: list[str], rows: int) -> None:
    """Let the header say that tensors have so many rows, which are a hole in the file."""
    data = (folder / WEIGHTS).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, start = json.loads(data[8 : 8 + size]), len(data) - 8 - size
    width = header[names[-1]]["shape"][1]
    for name in names:
        end = start + 4 * rows * width
        header[name] = {"dtype": "F32", "shape": [rows, width], "data_offsets": [start, end]}
        start = end
    place = 0
    for name in sorted(set(header) - {"__metadata__"}, key=lambda name: header[name]["data_offsets"][0]):
        begin, end = header[name]["data_offsets"]
        header[name]["data_offsets"] = [place, place + end - begin]
        place += end - begin
    text = json.dumps(header).encode()
    with (folder / WEIGHTS).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + place)


@pytest.mark.parametrize("name", TIED)
def test_tied_tensors_are_compared_after_their_shapes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes on disk may state tensors of gigabytes: none is read before config.json agrees with the header."""
    folder = tmp_path / "model"
    shutil.copytree(HERE / name, folder)
    lengthen(folder, [f"{TIED[name]}.weight", f"{EMBEDDINGS[name]}.weight"], 1 << 22)

    def read(*given: object) -> dict[str, Tensor]:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(FolderWeights, "read", read)
    refused(folder, rf"{EMBEDDINGS[name]}\.weight of shape \(4194304, ")


def test_a_copy_of_another_type_is_a_tensor_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(HERE / "gpt2", folder)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["transformer.wte.weight"].half()}))
    assert not read_folder(Folder(folder)).config.tied


def test_integers_in_place_of_weights(folder: Path) -> None:
    name = "model.norm.weight"
    rewrite(folder, lambda tensors: tensors.update({name: tensors[name].long()}))
    refused(folder, r"model\.norm\.weight of type torch.int64")


@pytest.mark.parametrize("alone", [False, True])
def test_an_adapter_is_not_the_model_beside_it(folder: Path, alone: bool) -> None:
    for name in (CONFIG, WEIGHTS) if alone else ():
        (folder / name).unlink()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))
    refused(folder, "adapter_")


def test_code_in_the_folder_never_runs(folder: Path) -> None:
    (folder / "modeling_evil.py").write_text(f"import os\nos.mkdir({str(folder / 'executed')!r})\n")
    configure(folder, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil", "AutoConfig": "modeling_evil.Evil"})
    refused(folder, "auto_map: expected none; got the name of code to run")
    configure(folder, auto_map=None, model_type="evil")
    refused(folder, "model_type: expected one of")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl"])
def test_pickles_stay_closed(folder: Path, name: str) -> None:
    (folder / WEIGHTS).unlink()
    (folder / name).write_bytes(pickle.dumps(Payload(folder)))
    refused(folder, f"expected weights in safetensors; got {name}, which may hold code")


def test_a_pickle_under_the_name_of_safetensors(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(pickle.dumps(Payload(folder)))
    refused(folder, "expected (safetensors|JSON)")


@pytest.mark.parametrize("file", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "x\0y"])
def test_an_index_that_points_elsewhere(folder: Path, file: str) -> None:
    shutil.copy(folder / WEIGHTS, folder.parent / "outside.safetensors")
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, file)}))
    refused(folder, "expected a plain file name|expected a readable file")


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, "tokenizer.json"])
def test_links_out_of_the_folder(folder: Path, name: str) -> None:
    outside = folder.parent / "outside"
    (folder / name).rename(outside) if (folder / name).exists() else outside.write_text("{}")
    (folder / name).symlink_to(outside)
    refused(folder, "expected a file in this folder; got a link to")


def test_the_links_of_a_cache_are_followed(folder: Path) -> None:
    """As Hugging Face stores a snapshot: links from snapshots/REVISION to blobs."""
    snapshot, blobs = folder.parent / "snapshots" / "abc", folder.parent / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in (CONFIG, WEIGHTS):
        (folder / name).rename(blobs / f"{name}-hash")
        (snapshot / name).symlink_to(Path("../../blobs") / f"{name}-hash")
    assert read_folder(Folder(snapshot)).config.layers == 3


def test_a_pipe_in_place_of_a_file(folder: Path) -> None:
    (folder / CONFIG).unlink()
    os.mkfifo(folder / CONFIG)
    refused(folder, "a named pipe, not a regular file")


SIZES = [
    ("llama", "vocab_size"),
    ("llama", "hidden_size"),
    ("llama", "intermediate_size"),
    ("llama", "num_hidden_layers"),
    ("llama", "num_attention_heads"),
    ("llama", "num_key_value_heads"),
    ("llama", "head_dim"),
    ("gpt2", "n_positions"),
    ("gpt2", "n_inner"),
    ("bert", "max_position_embeddings"),
    ("bert", "type_vocab_size"),
    ("marian", "decoder_layers"),
    ("marian", "encoder_ffn_dim"),
    ("t5", "relative_attention_num_buckets"),
    ("t5", "relative_attention_max_distance"),
    ("t5", "d_kv"),
]


@pytest.mark.parametrize("size", [HUGE, 2**40, 2**63, 10**30, 0, -1, 1.5, "16", True, [16], {"a": 1}], ids=str)
@pytest.mark.parametrize(("name", "key"), SIZES)
def test_sizes_that_are_none(name: str, key: str, size: object, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(HERE / name, folder)
    configure(folder, **{key: size})
    with pytest.raises(CheckpointError):
        qkv.load(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 0.0}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "beta_fast": 1, "beta_slow": 32}},
        {"rope_parameters": {"rope_theta": 1.0}},
        {"rope_parameters": "default"},
        {"hidden_act": "__import__('os').mkdir('executed')"},
        {"rms_norm_eps": -1.0},
        {"attention_dropout": 1.0},
        {"attention_bias": "yes"},
        {"model_type": ["llama"]},
        {"model_type": "llamma"},
    ],
    ids=str,
)
def test_settings_that_are_none(folder: Path, changes: dict[str, Any]) -> None:
    configure(folder, **changes)
    refused(folder, "config.json")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model_type": NaN}', '{"a":' * 99 + "1" + "}" * 99, "\xff"])
def test_a_config_that_is_no_table(folder: Path, text: str) -> None:
    (folder / CONFIG).write_bytes(text.encode("latin-1"))
    refused(folder, "config.json")


@pytest.mark.parametrize("length", [HUGE, 2**63, 8])
def test_a_header_that_lies(folder: Path, length: int) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(length.to_bytes(8, "little") + data[8:])
    refused(folder, "expected (safetensors|JSON)")


@pytest.mark.parametrize("part", [0, 7, 100, -1])
def test_weights_that_end_early(folder: Path, part: int) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:part])
    refused(folder, "expected (safetensors|JSON)")


@pytest.mark.parametrize("text", ["", "{}", '{"model": {"type": "Nothing"}}', "\xff\xfe"])
def test_a_tokenizer_that_is_none(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_bytes(text.encode("latin-1"))
    refused(folder, "tokenizer")


@pytest.mark.parametrize("file", ["source.spm", "target.spm"])
@pytest.mark.parametrize("data", [b"", b"\x0a", b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\x0a\x00"])
def test_sentencepieces_that_are_none(file: str, data: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(HERE / "marian", folder)
    (folder / file).write_bytes(data)
    refused(folder, file)


STRANGE: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    3,
    2**31,
    HUGE,
    10**30,
    0.5,
    -1.5,
    1e300,
    "",
    "gelu",
    "\0",
    [],
    [1],
    {},
    {"a": 1},
]


@pytest.mark.parametrize("draws", [3, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_any_strange_setting_is_read_or_refused(name: str, draws: int, tmp_path: Path) -> None:
    """Settings are replaced at random, from a fixed seed: what is not refused by name computes numbers."""
    drawn, folder = random.Random(name), tmp_path / "model"
    shutil.copytree(HERE / name, folder)
    table, given = json.loads((folder / CONFIG).read_text()), inputs()
    for _ in range(draws):
        key = drawn.choice(sorted(table))
        (folder / CONFIG).write_text(json.dumps({**table, key: drawn.choice(STRANGE)}))
        try:
            model = read_folder(Folder(folder)).build()
        except CheckpointError as error:
            found = str(error)
        else:
            assert logits_of(model, given).shape[-1] == (model.config.labels or model.config.size)
            continue
        assert str(folder) in found


@pytest.mark.parametrize("name", CASES)
def test_a_folder_without_its_config_is_none_of_theirs(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(HERE / name / WEIGHTS, folder)
    refused(folder, "expected a checkpoint or a run folder")
