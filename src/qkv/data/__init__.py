"""Text files, tokenizers, batches and generated data.

The data generators are modules: `from qkv.data import dates, phrases`, then `dates.generate(...)`.
"""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.data.batches import Batch as Batch
    from qkv.data.batches import Example as Example
    from qkv.data.batches import collate as collate
    from qkv.data.batches import collate_sources as collate_sources
    from qkv.data.batches import inference_batches as inference_batches
    from qkv.data.batches import restore_order as restore_order
    from qkv.data.batches import token_batches as token_batches
    from qkv.data.corpus import Pair as Pair
    from qkv.data.corpus import fingerprint as fingerprint
    from qkv.data.corpus import iterate_lines as iterate_lines
    from qkv.data.corpus import read_lines as read_lines
    from qkv.data.corpus import read_pairs as read_pairs
    from qkv.data.corpus import read_tsv as read_tsv
    from qkv.data.holdout import hold_out as hold_out
    from qkv.data.tokenizer import Tokenizer as Tokenizer


__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.data.batches": "Batch Example collate collate_sources inference_batches restore_order token_batches",
        "qkv.data.corpus": "Pair fingerprint iterate_lines read_lines read_pairs read_tsv",
        "qkv.data.holdout": "hold_out",
        "qkv.data.tokenizer": "Tokenizer",
    },
)
