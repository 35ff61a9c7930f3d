"""Adapters of PEFT: low-rank changes of a model's weights (LoRA), merged into them when they are read."""

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

from torch import Tensor

from qkv.errors import CheckpointError
from qkv.hub.cache import cached
from qkv.hub.families.family import Family
from qkv.hub.families.keys import SettingsReader
from qkv.hub.families.rules import WeightRule
from qkv.hub.folder import ADAPTER, CONFIG, Folder

_WEIGHTS = "adapter_model.safetensors"
_MODEL = "base_model.model."
_CHANGE = re.compile(r"\.lora_([AB])\.weight$")
_READ = {"base_model_name_or_path", "peft_type", "r", "lora_alpha", "alpha_pattern", "use_rslora", "init_lora_weights"}
_IMPLIED = {
    *("target_modules", "exclude_modules", "rank_pattern", "bias", "modules_to_save", "fan_in_fan_out"),
    *("layers_to_transform", "layers_pattern"),
}
"""Settings that the names and shapes of the stored tensors imply."""
_TRAINING = {
    *("lora_dropout", "inference_mode", "task_type", "auto_mapping", "peft_version", "revision", "loftq_config"),
    *("eva_config", "corda_config", "lora_ga_config", "runtime_config", "megatron_core", "qalora_group_size"),
    "ensure_weight_tying",
}
_STARTS = (None, True, False, "gaussian", "orthogonal", "eva")
"""Initializations of LoRA that leave the weights of the base model unchanged."""
_MERGE = "Merge it in PEFT, model.merge_and_unload().save_pretrained(FOLDER), and give that folder."


def base_of(folder: Folder) -> Folder:
    """Return the folder of the model that an adapter changes: the same one, or the one that it names.

    Raises:
        CheckpointError: it names no folder of this machine.
    """
    if folder.has(CONFIG) or not folder.has(ADAPTER):
        return folder
    name = folder.table(ADAPTER).get("base_model_name_or_path")
    if not isinstance(name, str) or not cached(Path(name)).is_dir():
        where = f"{folder.path / ADAPTER}: base_model_name_or_path"
        hint = "Put the files of the adapter into the folder of its model."
        raise CheckpointError(where, "a folder of this machine, or a model in the local cache", ascii(name)[:200], hint)
    return Folder(cached(Path(name)))


def adapter_digest(folder: Folder, base: str) -> str:
    """Return one sha256 over the files of an adapter and the digest of its model."""
    return sha256(f"{folder.digest([ADAPTER, _WEIGHTS])} {base}".encode()).hexdigest()


def merged(
    folder: Folder, family: Family, rules: list[WeightRule], theirs: Mapping[str, Tensor], tied: bool
) -> dict[str, Tensor]:
    """Return the tensors of a model with the changes of an adapter: W + s B A, with s = α/r, or α/√r.

    Args:
        folder: where the adapter is.
        family: of the model.
        rules: of its tensors.
        theirs: these, by their usual names, in float32.
        tied: whether the output layer shares the embedding.

    Raises:
        CheckpointError: the adapter has a part that is not computed here; the message names it.

    Source: Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", eq. 3; Kalajdzievski 2023, "A Rank
        Stabilization Scaling Factor for Fine-Tuning with LoRA" (α/√r).
    """
    keys = SettingsReader(folder.table(ADAPTER), {}, str(folder.path / ADAPTER))
    _expect_low_rank(keys)
    weights = folder.weights(_WEIGHTS)
    stored = {
        name.removeprefix(_MODEL).replace(".base_layer.", "."): name
        for name in weights.shapes
        if name.startswith(_MODEL)
    }
    usual = family.canonical([_CHANGE.sub(".weight", name) for name in stored])
    names = {other: name for name, other in usual.items()}
    transposed = {name for rule in rules if getattr(rule.layout, "transposed", False) for name in rule.theirs}
    embedding = {name for rule in rules if rule.ours in ("embed.weight", "reader.embed.weight") for name in rule.theirs}
    changed, pairs = dict(theirs), dict[str, dict[str, Tensor]]()
    for bare, name in stored.items():
        target, side = names.get(_CHANGE.sub(".weight", bare), bare), _CHANGE.search(bare)
        if target not in theirs or (tied and target in embedding):
            _refuse(folder, name, "changes of the model's tensors, except of an embedding that two layers share")
        tensor = weights.read([name])[name].float()
        if side is not None:
            pairs.setdefault(target, {})[side[1]] = tensor
        else:
            changed[target] = tensor
    if len(stored) < len(weights.shapes):
        _refuse(folder, min(set(weights.shapes) - set(stored.values())), f"names that begin with {_MODEL}")
    for target, pair in pairs.items():
        shape = changed[target].shape[::-1] if target in transposed else changed[target].shape
        rank = pair["A"].shape[0] if "A" in pair else 0
        if len(shape) != 2 or {side: tuple(part.shape) for side, part in pair.items()} != {
            "A": (rank, shape[1]),
            "B": (shape[0], rank),
        }:
            _refuse(folder, target, f"matrices A (r, {shape[-1]}) and B ({shape[0]}, r)")
        scale = _alpha(keys, target) / (rank**0.5 if keys.maybe_flag("use_rslora") else rank)
        change = scale * (pair["B"] @ pair["A"])
        changed[target] = changed[target] + (change.mT if target in transposed else change)
    for name, tensor in changed.items():
        if tensor.shape != theirs[name].shape:
            _refuse(folder, name, f"shape {tuple(theirs[name].shape)}")
    return changed


def _expect_low_rank(keys: SettingsReader) -> None:
    """Refuse other adapters, and settings of which nothing is known here."""
    if keys.get("peft_type") != "LORA":
        keys.refuse("peft_type", "LORA", _MERGE)
    if keys.get("init_lora_weights") not in _STARTS:
        keys.refuse("init_lora_weights", "a start that leaves the weights of the model", _MERGE)
    for name in sorted(keys.table.keys() - _READ - _IMPLIED - _TRAINING):
        if keys.get(name):
            keys.refuse(name, "none", _MERGE)


def _alpha(keys: SettingsReader, target: str) -> float:
    """Return α of a tensor: that of the first pattern that its layer's name ends with, or the usual one."""
    layer = target.removesuffix(".weight")
    patterns = keys.table_of("alpha_pattern") or SettingsReader({}, {}, keys.where)
    for pattern in patterns.table:
        if not re.fullmatch(r"[\w.]+", pattern):
            keys.refuse("alpha_pattern", "names of layers, or their ends", _MERGE)
        if f".{layer}".endswith(f".{pattern}"):
            return patterns.number(pattern)
    return keys.number("lora_alpha")


def _refuse(folder: Folder, name: str, expected: str) -> NoReturn:
    raise CheckpointError(str(folder.path / _WEIGHTS), expected, name, _MERGE)
