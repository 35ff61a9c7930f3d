"""Text files, tokenizers, batches and generated data.

The data generators are modules: `from qkv.data import dates, phrases`, then `dates.generate(...)`.
"""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.data.batches import (
        Batch,
        Example,
        collate,
        collate_sources,
        inference_batches,
        restore_order,
        token_batches,
    )
    from qkv.data.corpus import Pair, fingerprint, iterate_lines, read_lines, read_pairs, read_tsv
    from qkv.data.holdout import hold_out
    from qkv.data.tokenizer import Tokenizer

__all__ = [
    "Batch",
    "Example",
    "Pair",
    "Tokenizer",
    "collate",
    "collate_sources",
    "fingerprint",
    "hold_out",
    "inference_batches",
    "iterate_lines",
    "read_lines",
    "read_pairs",
    "read_tsv",
    "restore_order",
    "token_batches",
]

__getattr__ = lazy(
    __name__,
    {
        "Batch": "qkv.data.batches",
        "Example": "qkv.data.batches",
        "Pair": "qkv.data.corpus",
        "Tokenizer": "qkv.data.tokenizer",
        "collate": "qkv.data.batches",
        "collate_sources": "qkv.data.batches",
        "fingerprint": "qkv.data.corpus",
        "hold_out": "qkv.data.holdout",
        "inference_batches": "qkv.data.batches",
        "iterate_lines": "qkv.data.corpus",
        "read_lines": "qkv.data.corpus",
        "read_pairs": "qkv.data.corpus",
        "read_tsv": "qkv.data.corpus",
        "restore_order": "qkv.data.batches",
        "token_batches": "qkv.data.batches",
    },
)


def __dir__() -> list[str]:
    return __all__
