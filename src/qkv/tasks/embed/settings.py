"""The settings of `qkv embed`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from qkv.settings import Option
from qkv.tasks.settings import DeviceSettings

PoolOfTokens = Literal["mean", "first"]


@dataclass(frozen=True, kw_only=True)
class EmbedSettings(DeviceSettings):
    """Write a vector for each line of standard input, as JSON lines or as one file for NumPy.

    RUN is the folder of an encoder (BERT, RoBERTa, XLM-RoBERTa, DistilBERT, ModernBERT) or of sentence-transformers.

    Example: echo "a dog" | qkv embed all-MiniLM-L6-v2 --out texts.npy
    """

    pool: Annotated[
        PoolOfTokens | None,
        Option(
            "What of the tokens' states: their mean, or the first one's state",
            or_else="as modules.json of the folder says, or else mean",
        ),
    ] = None
    unscaled: Annotated[
        bool, Option("Leave lengths as they are; else vectors have length 1, and their dot product is the cosine")
    ] = False
    out: Annotated[
        Path | None, Option("Write one array of float32 there, a row for each line: FILE.npy", writes=(".npy",))
    ] = None
