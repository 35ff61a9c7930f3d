"""A family of models: how its config.json and its tensors are read and written."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final

from qkv.hub.families.keys import SettingsReader
from qkv.hub.families.rules import WeightRule
from qkv.models.parts import TransformerParts
from qkv.nn.choices import Activation

Task = Literal["generate", "fill", "translate", "classify", "tag"]
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "squared_relu",
    "silu": "silu",
    "swish": "silu",
}
"""Our name of an activation by theirs."""


THEIR_ACTIVATIONS: Mapping[str, str] = {ours: theirs for theirs, ours in reversed(list(ACTIVATIONS.items()))}
"""The first of their names of an activation by ours."""


@final
@dataclass(frozen=True)
class Setting:
    """A setting of config.json and the part of a model that it stands for.

    Args:
        theirs: its name.
        ours: the field of `TransformerParts`.
        kind: the method of `SettingsReader` that reads it; "choice" reads the name of an activation.
    """

    theirs: str
    ours: str
    kind: Literal["size", "layers", "share", "flag", "choice"] = "size"


SIZES = (
    Setting("vocab_size", "size"),
    Setting("hidden_size", "width"),
    Setting("num_attention_heads", "heads"),
    Setting("intermediate_size", "feed_forward"),
    Setting("num_hidden_layers", "layers", "layers"),
    Setting("max_position_embeddings", "context"),
)
"""The sizes by the names that most families give them."""


def read_settings(table: Iterable[Setting], keys: SettingsReader) -> dict[str, Any]:
    """Return the parts that the settings of a config.json stand for.

    `key_heads` is the number of heads, and `head_width` the width divided by it; a family may replace both.
    """
    parts: dict[str, Any] = {
        setting.ours: (
            keys.choice(setting.theirs, ACTIVATIONS)
            if setting.kind == "choice"
            else getattr(keys, setting.kind)(setting.theirs)
        )
        for setting in table
    }
    return {**parts, "key_heads": parts["heads"], "head_width": parts["width"] // parts["heads"]}


def write_settings(table: Iterable[Setting], parts: TransformerParts) -> dict[str, Any]:
    """Return the settings of a config.json that stand for the parts of a model, the inverse of `read_settings`.

    Example:
        >>> parts = TransformerParts(20, 16, 4, 4, 4, 32, 2, activation="gelu_tanh")
        >>> table = (Setting("n_embd", "width"), Setting("n_head", "heads"), Setting("act", "activation", "choice"))
        >>> settings = write_settings(table, parts)
        >>> settings, read_settings(table, SettingsReader(settings, {}, "config.json"))["activation"]
        ({'n_embd': 16, 'n_head': 4, 'act': 'gelu_new'}, 'gelu_tanh')
    """
    values = ((setting, getattr(parts, setting.ours)) for setting in table)
    return {
        setting.theirs: THEIR_ACTIVATIONS[value] if setting.kind == "choice" else value for setting, value in values
    }


@final
@dataclass(frozen=True)
class Family:
    """A family of models.

    Args:
        name: its `model_type`.
        class_name: their class with an output layer.
        task: what its models do.
        configure: from config.json to the parts of a model.
        rules: the rules between their tensors and ours.
        prefix: of all tensors but those of the output layer; missing in folders of the model without it.
        defaults: the values of settings that may be missing in config.json.
        aliases: other names of tensors, as patterns and what they stand for.
        ignored: tensors that are computed from others, or belong to other outputs, as patterns.
        copies: pairs of tensors, of which the first may repeat the second.
        write: from the parts of a model that was trained here to config.json; None for families that are only read.
        synonyms: further names of settings, and the usual names that they win over.
        sinusoids: tables of positions, as patterns, which need not be stored, and hold the same numbers if they are.
    """

    name: str
    class_name: str
    task: Task
    configure: Callable[[SettingsReader], TransformerParts]
    rules: Callable[[TransformerParts], list[WeightRule]]
    prefix: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    write: Callable[[TransformerParts], dict[str, Any]] | None = None
    synonyms: Mapping[str, str] = field(default_factory=dict)
    sinusoids: tuple[str, ...] = ()

    def settings(self, table: Mapping[str, Any], where: str, tensors: Sequence[str] = ()) -> SettingsReader:
        """Return a reader of a config.json, with the family's defaults, by the family's own names.

        Args:
            table: the contents.
            where: the name of the file in messages.
            tensors: the usual names of the tensors that are stored.

        Example:
            >>> from qkv.hub.families.decoders import GPT2
            >>> GPT2.settings({"n_head": 4, "num_attention_heads": 2}, "config.json").size("n_head")
            2
        """
        renamed = {usual: table[name] for name, usual in self.synonyms.items() if name in table}
        return SettingsReader({**table, **renamed}, self.defaults, where, tensors)

    def canonical(self, stored: list[str]) -> dict[str, str]:
        """Return, by its usual name in the family, the name under which each tensor is stored.

        Example:
            >>> from qkv.hub.families.decoders import GPT2
            >>> GPT2.canonical(["wte.weight", "h.0.attn.bias"])
            {'transformer.wte.weight': 'wte.weight'}
        """
        bare = bool(self.prefix) and not any(name.startswith(self.prefix) for name in stored)
        names = {}
        for name in stored:
            usual = name
            for pattern, other in self.aliases.items():
                usual = re.sub(pattern, other, usual)
            usual = self.prefix + usual if bare and usual not in _OUTPUTS else usual
            if not any(re.search(pattern, usual) for pattern in (*self.ignored, *self.sinusoids)):
                names[usual] = name
        return names


_OUTPUTS = ("lm_head.weight", "embed_out.weight")
