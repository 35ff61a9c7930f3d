"""Settings that several models share."""

from typing import Annotated, Any, Literal

from qkv.errors import setting
from qkv.nn.mechanism import ATTENTION
from qkv.settings import Option


def window_option(help: str) -> Option:
    """Return the setting of how many positions an attention sees."""
    return Option(help, topic=ATTENTION, least=1, hint="Omit it for all.", or_else="all")


UNSET: Any = None
"""The default of a setting that follows from others, which the configuration fills in."""
MOST_LAYERS = 10_000
"""Maximum number of layers of any kind: nothing deeper was ever trained, and each takes milliseconds to create."""

Cell = Literal["gru", "lstm", "rnn"]
ModelKind = Literal["transformer", "gru", "lstm", "rnn"]
"""Kinds of language models, translators and encoders; a recurrent one is named by its cell."""
AnyPositions = Literal["sinusoidal", "rotary", "alibi", "relative", "none"]
"""Positions in a text of any length."""

Layers = Annotated[int, Option("Layers", least=1, most=MOST_LAYERS)]
Width = Annotated[int, Option("Width of the model", least=1)]
FeedForwardWidth = Annotated[int, Option("Hidden width of a Transformer's feed-forward layers", least=1)]
Positions = Annotated[
    AnyPositions,
    Option(
        "Positions of a Transformer",
        hint="A text can be longer than any in training: use relative, whose distances are learned too.",
    ),
]
Dropout = Annotated[float, Option("Dropout in training", least=0, below=1, hint="0 disables it.")]
AttentionDropout = Annotated[
    float, Option("Dropout of a Transformer's weights", least=0, below=1, hint="0 disables it.")
]
Tied = Annotated[bool, Option("The output layer shares the weights of the embedding, as by default")]
Heads = Annotated[int, Option("Heads of each attention", topic=ATTENTION, least=1)]
KeyHeads = Annotated[
    int | None,
    Option("Heads of keys and values, shared by groups of heads", topic=ATTENTION, least=1, or_else="as many as heads"),
]
Window = Annotated[int | None, window_option("Number of positions to a side that self-attention sees")]
Size = Annotated[
    int,
    Option(
        "Size of the vocabulary",
        least=1,
        derived="The text decides it; " + setting("vocabulary") + " limits the vocabulary.",
    ),
]
