"""What sentence-transformers writes beside an encoder: how its states become the vector of a text."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

from qkv.errors import CheckpointError
from qkv.hub.families.keys import SettingsReader
from qkv.hub.folder import CONFIG, Folder
from qkv.strict_json import parse_json

_MODULES, _LENGTH, _PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
_POOLS: Mapping[str, Literal["mean", "first"]] = {
    "mean": "mean",
    "mean_tokens": "mean",
    "cls": "first",
    "cls_token": "first",
}
"""Of a name in today's files, or in older ones after `pooling_mode_`."""
_HINT = "Use sentence-transformers for it."


class Sentences(NamedTuple):
    """How a folder makes vectors.

    Attributes:
        pool: the mean of the tokens' states, or the first one's state.
        longest: tokens of the longest text; None for as many as the encoder reads.
        prompt: what is put before each text.
    """

    pool: Literal["mean", "first"] = "mean"
    longest: int | None = None
    prompt: str = ""


def read_sentences(folder: Folder) -> Sentences:
    """Return what the folder says; the mean of all states where it says nothing.

    Raises:
        CheckpointError: a file is not what it should be, or the folder has a part that is not computed here.
    """
    if not folder.has(_MODULES):
        return Sentences()
    where, pool = str(folder.path / _MODULES), None
    for module in _modules(folder, where):
        kind = str(module.get("type")).rpartition(".")[2]
        if kind == "Pooling":
            pool = _pool(Folder(folder.path / _name(module, where)))
        elif kind not in ("Transformer", "Normalize"):
            raise CheckpointError(where, "Transformer, Pooling and Normalize", ascii(kind)[:80], _HINT)
    if pool is None:
        raise CheckpointError(where, "a module Pooling", "none", _HINT)
    return Sentences(pool, _longest(folder), _prompt(folder))


def _modules(folder: Folder, where: str) -> list[Mapping[str, Any]]:
    try:
        modules = parse_json(folder.text(_MODULES))
    except ValueError as error:
        raise CheckpointError(where, "JSON", str(error)[:200], "Copy the folder again from its source.") from error
    if not isinstance(modules, list) or not all(isinstance(module, Mapping) for module in modules):
        raise CheckpointError(where, "a list of modules", "something else", "Copy the folder again from its source.")
    return modules


def _name(module: Mapping[str, Any], where: str) -> str:
    """Return the folder of a module: a plain name in this one."""
    name = module.get("path")
    if not isinstance(name, str) or PurePosixPath(name).parts != (name,) or name == "..":
        raise CheckpointError(where, "the name of a folder in this one", ascii(name)[:80], "Only its own are read.")
    return name


def _pool(folder: Folder) -> Literal["mean", "first"]:
    keys = SettingsReader(folder.table(CONFIG), {}, str(folder.path / CONFIG))
    older = [name.removeprefix("pooling_mode_") for name in keys.table if name.startswith("pooling_mode_")]
    modes = [mode for mode in older if keys.maybe_flag(f"pooling_mode_{mode}")]
    modes = modes or [str(keys.get("pooling_mode"))]
    if len(modes) != 1 or modes[0] not in _POOLS:
        raise CheckpointError(keys.where, "the pooling mean_tokens or cls_token", " and ".join(modes)[:80], _HINT)
    keys.expect(include_prompt=True)
    return _POOLS[modes[0]]


def _longest(folder: Folder) -> int | None:
    if not folder.has(_LENGTH):
        return None
    keys = SettingsReader(folder.table(_LENGTH), {}, str(folder.path / _LENGTH))
    keys.expect(do_lower_case=False)
    return keys.maybe("max_seq_length")


def _prompt(folder: Folder) -> str:
    """Return the default prompt, if there is one."""
    table = folder.table(_PROMPTS) if folder.has(_PROMPTS) else {}
    keys = SettingsReader(table, {}, str(folder.path / _PROMPTS))
    name, prompts = keys.get("default_prompt_name"), keys.table_of("prompts")
    if name is None:
        return ""
    prompt = None if prompts is None or not isinstance(name, str) else prompts.get(name)
    if not isinstance(prompt, str):
        keys.refuse("default_prompt_name", "the name of a text in prompts")
    return prompt
