"""Read the folder of a model of another library: its family, and its tensors in our form."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn

from qkv.checkpoint.json_values import JsonValue, decode_mapping, encode
from qkv.errors import CheckpointError, ConfigError, QkvError, nearest
from qkv.hub.families.adapter import adapter_digest, base_of, merged
from qkv.hub.families.decoders import DECODERS
from qkv.hub.families.encoder_decoders import ENCODER_DECODERS
from qkv.hub.families.encoders import ENCODERS, LABELERS
from qkv.hub.families.family import Family
from qkv.hub.families.keys import SettingsReader, labels_of
from qkv.hub.families.rules import to_ours, to_theirs
from qkv.hub.families.tokenizer import tokenizer_file_names
from qkv.hub.folder import ADAPTER, CONFIG, INDEX, Folder, FolderWeights
from qkv.hub.published import PublishedConfig
from qkv.models.language_model import LanguageModel
from qkv.models.parts import TransformerParts
from qkv.models.reader import MaskedLanguageModel, TextClassifier, TextTagger
from qkv.models.translator import TransformerTranslator
from qkv.nn.positions import PositionEmbedding

FAMILIES: Mapping[str, Family] = {family.name: family for family in (*DECODERS, *ENCODERS, *ENCODER_DECODERS)}
"""The families that are read and written, by their `model_type`."""
_LABELERS: Mapping[str, Family] = {family.class_name: family for family in LABELERS}
StackModel = LanguageModel | MaskedLanguageModel | TextClassifier | TextTagger | TransformerTranslator
_MODELS: Mapping[str, type[StackModel]] = {
    "generate": LanguageModel,
    "fill": MaskedLanguageModel,
    "classify": TextClassifier,
    "tag": TextTagger,
    "translate": TransformerTranslator,
}
M = TypeVar("M", bound=StackModel)
_TOO_LARGE = (RuntimeError, ValueError, TypeError, OverflowError, ConfigError)
_MOST_FAULTS = 4


@final
@dataclass(frozen=True)
class Pretrained:
    """A model of a folder, before it is built.

    Args:
        family: its family.
        table: its config.json.
        config: its parts.
        tensors: our names and tensors.
        stored: the tensors of its output layer that the folder holds.
    """

    family: Family
    table: Mapping[str, Any]
    config: TransformerParts
    tensors: Mapping[str, Tensor]
    stored: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of a classifier's labels."""
        return labels_of(SettingsReader(self.table, {}, CONFIG))

    @property
    def checkpoint_config(self) -> PublishedConfig:
        """The model as a checkpoint keeps it."""
        return PublishedConfig(self.config.settings, " ".join(self.stored))

    def build(self) -> StackModel:
        """Create the model, with these tensors."""
        model = build(self.family, self.config)
        model.load_state_dict(dict(self.tensors))
        return model.eval()


class Described(NamedTuple):
    """A model as config.json describes it: its family and its parts."""

    family: Family
    config: TransformerParts


def published_digest(folder: Folder) -> str:
    """Return one sha256 over every file that is read of a published model, and no other.

    Args:
        folder: the folder of a published model.

    Raises:
        CheckpointError: the folder does not hold what it should.
    """
    if folder.has(ADAPTER) and not folder.has(CONFIG):
        return adapter_digest(folder, published_digest(base_of(folder)))
    settings = {name for name in (CONFIG, INDEX) if folder.has(name)}
    digest = folder.digest({*settings, *tokenizer_file_names(folder), *folder.weights().files})
    return adapter_digest(folder, digest) if folder.has(ADAPTER) else digest


def described(published: PublishedConfig) -> Described:
    """Return the family, and the parts of a model.

    Raises:
        ConfigError, CheckpointError: the settings are not those of a family, or the context is too long.
    """
    table = decode_mapping(published.settings.encode(), "model.settings")
    family, config = describe(table, published.stored.split(), "model.settings")
    if published.dropout is not None:
        config = replace(config, dropout=published.dropout)
    if published.context is None:
        return Described(family, config)
    if published.context > config.context:
        hint = "Omit it, or choose less."
        raise ConfigError("context", f"at most {config.context}", f"{published.context}", hint)
    count = config.positions.count or config.context + config.positions.skipped
    positions = replace(config.positions, count=count)
    return Described(family, replace(config, context=published.context, positions=positions))


def build_as(published: PublishedConfig, kind: type[M], name: str) -> M:
    """Create a model, with new weights, for a task that uses models of one class.

    Args:
        published: the model as a checkpoint keeps it.
        kind: the class.
        name: what such a model is called.

    Raises:
        ConfigError: it is a model of another class.
    """
    model = build(*described(published))
    if not isinstance(model, kind):
        raise ConfigError("settings", name, type(model).__name__, "Use its own task.")
    return model


def describe(table: Mapping[str, Any], tensors: list[str], where: str) -> Described:
    """Return the family and the parts of a model.

    Args:
        table: the contents of config.json.
        tensors: the usual names of the tensors that are stored.
        where: the name of the file in messages.

    Raises:
        CheckpointError: the family is unknown, config.json names code, or a setting is not supported.
    """
    family = family_of(table, where)
    try:
        keys = family.settings(table, where, tensors)
        _expect_one_kind(keys)
        config = family.configure(keys)
        return Described(family, replace(config, settings=encode(dict(table), where).decode()))
    except (ConfigError, ArithmeticError) as error:
        hint = "Check config.json, or copy the folder again from its source."
        raise CheckpointError(where, "settings of a model", str(error)[:200], hint) from error


def _expect_one_kind(keys: SettingsReader) -> None:
    """Refuse settings of any family for blocks that differ, and for weights that stand for other numbers."""
    if keys.get("per_layer_config"):
        keys.refuse("per_layer_config", "none: blocks with the same settings")
    if keys.get("quantization_config") is not None:
        hint = "Save it dequantized where it was made. Quantized models can be recorded: see qkv.hub.attach."
        keys.refuse("quantization_config", "none: weights that are not quantized", hint)


def family_of(table: Mapping[str, Any], where: str) -> Family:
    """Return the family that config.json names: by `model_type`, and of classifiers by `architectures`.

    Raises:
        CheckpointError: it is unknown, or config.json names code.
    """
    if table.get("auto_map"):
        hint = "Nothing in a folder is executed: only models of the library's own families are read."
        raise CheckpointError(f"{where}: auto_map", "none", "the name of code to run", hint)
    name = table.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        hint = nearest(str(name)[:80], FAMILIES)
        hint = f"{hint} " if hint else ""
        got = ascii(name)[:80]
        hint += "Any other model of transformers can be recorded: see qkv.hub.attach."
        raise CheckpointError(f"{where}: model_type", f"one of {', '.join(FAMILIES)}", got, hint)
    classes = table.get("architectures")
    labeler = _LABELERS.get(str(classes[0])) if isinstance(classes, list) and classes else None
    return FAMILIES[name] if labeler is None or labeler.name != name else labeler


def read_folder(folder: Folder) -> Pretrained:
    """Read the model in a folder, in float32, with an adapter merged into it if the folder has one.

    No tensor is read before all names, shapes and types are those of the model that config.json describes.

    Args:
        folder: the folder.

    Returns:
        The model.

    Raises:
        CheckpointError: a file is missing, or is not what it should be; a setting or a tensor is unknown, missing, or
            has another shape; or an adapter of PEFT is of a kind that is not computed here; the message names it.
    """
    adapter, folder = folder if folder.has(ADAPTER) else None, base_of(folder)
    where, table, weights = str(folder.path / CONFIG), folder.table(CONFIG), folder.weights()
    family = family_of(table, where)
    stored = _with_separate_biases(family.canonical(list(weights.shapes)), weights)
    stored = _with_originals(family, table, stored, where)
    copies = _possible_copies(family, table, weights, stored)
    single = {name: stored_name for name, stored_name in stored.items() if name not in copies}
    described, needed = _expect_model(table, single, weights, folder)
    if distinct := _distinct_tensors(copies, weights, stored):
        stored = {**single, **{name: stored[name] for name in distinct}}
        described, needed = _expect_model(table, stored, weights, folder)
    else:
        stored = single
    _expect_sinusoids(described, weights, folder)
    theirs = {name: tensor.float() for name, tensor in weights.read([stored[name] for name in needed]).items()}
    rules, usual = family.rules(described.config), {name: theirs[stored[name]] for name in needed}
    if adapter is not None:
        usual = merged(adapter, family, rules, usual, described.config.tied)
    ours = to_ours(rules, usual, described.config)
    if described.config.tied:
        ours["output.weight"] = ours["reader.embed.weight" if family.task == "fill" else "embed.weight"]
    outputs = tuple(name for name in sorted(stored) if any(part in name for part in _HEADS))
    return Pretrained(family, table, described.config, ours, outputs)


def read_encoder(folder: Folder, task: str) -> Pretrained:
    """Read the encoder in a folder for a model that labels, with what the folder holds of its other layers.

    A model of the same task is read whole; of any other one the output layer is not, and layers before it may be
    missing.

    Args:
        folder: the folder.
        task: "classify" or "tag".

    Raises:
        CheckpointError: as for `read_folder`, or the model is no encoder.
    """
    where, table = str(base_of(folder).path / CONFIG), base_of(folder).table(CONFIG)
    own = family_of(table, where)
    family = next((labeler for labeler in LABELERS if (labeler.name, labeler.task) == (own.name, task)), None)
    if family is None:
        hint = "Train from scratch, or from a run of the same task."
        expected = f"an encoder: {', '.join(encoder.name for encoder in ENCODERS)}"
        raise CheckpointError(f"{where}: model_type", expected, own.name, hint)
    if own.task == task:
        return read_folder(folder)
    if folder.has(ADAPTER):
        expected = f"a model that is trained to {task} already, or no adapter"
        raise CheckpointError(str(folder.path / ADAPTER), expected, f"one to {own.task}", "Save it merged.")
    table = {name: item for name, item in table.items() if name not in _OF_LABELS}
    table["architectures"] = [family.class_name]
    described, weights = describe(table, [], where), folder.weights()
    stored = family.canonical(list(weights.shapes))
    rules = [
        rule
        for rule in family.rules(described.config)
        if rule.ours.startswith("reader.") or (not rule.ours.startswith("output.") and stored.keys() >= {*rule.theirs})
    ]
    names = {name for rule in rules for name in rule.theirs}
    stored = {name: other for name, other in stored.items() if name in names or name.startswith(family.prefix)}
    described = described._replace(family=replace(family, rules=lambda _: rules))
    needed = _needed(described, stored, weights, folder)
    theirs = weights.read([stored[name] for name in needed])
    ours = to_ours(rules, {name: theirs[stored[name]].float() for name in needed}, described.config)
    return Pretrained(family, table, described.config, ours)


def with_labels(published: PublishedConfig, labels: Sequence[str]) -> PublishedConfig:
    """Return a model that labels with other labels.

    Example:
        >>> changed = with_labels(PublishedConfig('{"model_type": "bert"}'), ["bad", "good"])
        >>> decode_mapping(changed.settings.encode(), "")["label2id"]
        {'bad': 0, 'good': 1}
    """
    table = decode_mapping(published.settings.encode(), "model.settings")
    if labels_of(SettingsReader(table, {}, "model.settings")) == tuple(labels):
        return published
    numbers: dict[str, JsonValue] = {label: number for number, label in enumerate(labels)}
    names: dict[str, JsonValue] = {f"{number}": label for number, label in enumerate(labels)}
    kept = {name: item for name, item in table.items() if name not in _OF_LABELS}
    text = encode({**kept, "id2label": names, "label2id": numbers}, "model.settings").decode()
    return replace(published, settings=text)


def build(family: Family, config: TransformerParts) -> StackModel:
    """Create a model with new weights."""
    return _MODELS[family.task](config)


def _with_separate_biases(stored: Mapping[str, str], weights: FolderWeights) -> dict[str, str]:
    """Use the bias of the output layer itself where the file holds it, in place of the copy that its head has."""
    biases = {
        f"{name.removesuffix(_DECODER_BIAS)}.bias": name for name in weights.shapes if name.endswith(_DECODER_BIAS)
    }
    return {**stored, **{name: stored_name for name, stored_name in biases.items() if name in stored}}


def _with_originals(family: Family, table: Mapping[str, Any], stored: Mapping[str, str], where: str) -> dict[str, str]:
    """Use a copy that is stored in place of the tensor that it repeats, as MADLAD's only table of embeddings is."""
    used = dict(stored)
    copies = {copy: name for copy, name in _copies(family, table) if copy in stored and name not in stored}
    config = describe(table, [name for name in stored if name not in copies], where).config
    read = {name for rule in family.rules(config) for name in rule.theirs}
    for copy, original in copies.items():
        if original in read - used.keys() and copy not in read:
            used[original] = used.pop(copy)
    return used


def _copies(family: Family, table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return which tensors may repeat another one, and that one: output layers only where they are tied."""
    untied = table.get("tie_word_embeddings", family.defaults["tie_word_embeddings"]) is False
    return [(copy, original) for copy, original in family.copies if not (untied and copy in _OUTPUTS)]


def _possible_copies(
    family: Family, table: Mapping[str, Any], weights: FolderWeights, stored: Mapping[str, str]
) -> dict[str, str]:
    """Return the tensors that by name, shape and type may repeat another one, and that one."""
    return {
        copy: original
        for copy, original in _copies(family, table)
        if copy in stored
        and original in stored
        and weights.shapes[stored[copy]] == weights.shapes[stored[original]]
        and weights.dtypes[stored[copy]] == weights.dtypes[stored[original]]
    }


def _distinct_tensors(copies: Mapping[str, str], weights: FolderWeights, stored: Mapping[str, str]) -> list[str]:
    """Return which of the possible copies hold other numbers than the tensor that they may repeat."""
    distinct = []
    for copy, original in copies.items():
        both = weights.read([stored[copy], stored[original]])
        if not torch.equal(both[stored[copy]], both[stored[original]]):
            distinct.append(copy)
    return distinct


def _expect_model(
    table: Mapping[str, Any], stored: Mapping[str, str], weights: FolderWeights, folder: Folder
) -> tuple[Described, list[str]]:
    """Return the model that config.json describes, and the names of its tensors, whose headers must agree with it."""
    described = describe(table, list(stored), str(folder.path / CONFIG))
    return described, _needed(described, stored, weights, folder)


def _needed(described: Described, stored: Mapping[str, str], weights: FolderWeights, folder: Folder) -> list[str]:
    """Return the names of a model's tensors, whose headers must agree with it."""
    needed = _expect_tensors(
        described, {name: weights.shapes[stored_name] for name, stored_name in stored.items()}, folder
    )
    for name in needed:
        if weights.dtypes[stored[name]] not in _FLOATS:
            got, hint = f"{name} of type {weights.dtypes[stored[name]]}", "Convert it where it was made."
            expected = f"tensors of {', '.join(map(str, _FLOATS))}"
            raise CheckpointError(str(folder.path), expected, got, hint)
    return needed


def _expect_sinusoids(described: Described, weights: FolderWeights, folder: Folder) -> None:
    """Refuse tables of positions that hold other numbers than the sinusoids, which are computed here."""
    context, width = described.config.context, described.config.width
    for name in weights.shapes:
        if not any(re.search(pattern, name) for pattern in described.family.sinusoids):
            continue
        table = weights.read([name])[name].float() if weights.shapes[name] == (context, width) else None
        waves = PositionEmbedding("halves", width)(torch.zeros(context, width, device="cpu"))
        if table is None or not torch.allclose(table, waves, rtol=0, atol=_ROUNDED):
            expected, hint = (
                f"sinusoids of {context:,} positions",
                "Learned positions of this family run in transformers.",
            )
            raise CheckpointError(f"{folder.path}: {name}", expected, "other numbers", f"{hint} {_HINT}")


_OF_LABELS = ("id2label", "label2id", "num_labels", "problem_type")
"""The settings that change with the labels."""
_ROUNDED = 2**-7
"""More than a number from -1 to 1 changes when it is rounded to bfloat16."""
_DECODER_BIAS = ".decoder.bias"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""Types that float32 holds exactly."""
_HEADS = ("head.", "embed_out", "cls.predictions", "vocab_", "decoder.weight")
_OUTPUTS = (
    "lm_head.weight",
    "embed_out.weight",
    "decoder.weight",
    "vocab_projector.weight",
    "cls.predictions.decoder.weight",
    "lm_head.decoder.weight",
)


def _expect_tensors(described: Described, shapes: Mapping[str, tuple[int, ...]], folder: Folder) -> list[str]:
    """Return the names of all tensors of a model, each of which must be stored with the model's shape."""
    _expect_modest(described.config, shapes, folder)
    try:
        with torch.device("meta"):
            model: nn.Module = build(*described)
            theirs = to_theirs(described.family.rules(described.config), model.state_dict(), described.config)
    except QkvError as error:
        raise CheckpointError(str(folder.path / CONFIG), "sizes of a model", str(error)[:200], _HINT) from error
    except _TOO_LARGE as error:
        got = str(error).partition("\n")[0][:200]
        raise CheckpointError(str(folder.path / CONFIG), "sizes of a model", got, _HINT) from error
    faults = [f"no {name}" for name in theirs if name not in shapes]
    faults += [
        f"{name} of shape {shapes[name]} in place of {tuple(tensor.shape)}"
        for name, tensor in theirs.items()
        if name in shapes and shapes[name] != tuple(tensor.shape)
    ]
    faults += [f"{name}, which this model does not have" for name in shapes if name not in theirs]
    if faults:
        more = f" and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
        expected = f"the tensors of {described.family.class_name} as config.json describes it"
        raise CheckpointError(str(folder.path), expected, "; ".join(faults[:_MOST_FAULTS]) + more, _HINT)
    return list(theirs)


def _expect_modest(config: TransformerParts, shapes: Mapping[str, tuple[int, ...]], folder: Folder) -> None:
    """Refuse sizes beyond those of the stored tensors before anything of such a size is made."""
    widest = max((size for shape in shapes.values() for size in shape), default=0)
    positions = config.positions.count if config.positions.kind == "learned" else 1
    heads = config.heads * config.head_width
    sizes = (config.size, config.width, heads, config.feed_forward, positions, config.kinds, config.labels)
    blocks = config.layers + config.decoder_layers
    if max(sizes) > widest or blocks > len(shapes):
        got = f"sizes to {max(sizes):,} and {blocks:,} blocks, where tensors have sizes to {widest:,}"
        raise CheckpointError(str(folder.path / CONFIG), "sizes of the stored tensors", got, _HINT)


_HINT = "Copy the folder again from its source, all files of one model."
