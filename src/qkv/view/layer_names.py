"""Short names of layers, for tables, menus and pictures; the path in the model stays their name everywhere else."""

import re
from collections.abc import Sequence

_ATTENTION = re.compile(r"_?(attention|attn)$")
_CROSS = ("encoder_attn", "crossattention", "enc_dec_attention", "EncDecAttention", "encoder_attention")
_STACKS = ("layer", "layers", "h", "block", "blocks")


def short_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return what tells the layers of a model apart, without what all of their paths share.

    Example:
        >>> short_names(["encoder.0.self_attention.attention", "decoder.0.cross_attention.attention"])
        ('encoder 0 self', 'decoder 0 cross')
        >>> short_names(["bert.encoder.layer.0.attention.self", "bert.encoder.layer.1.attention.self"])
        ('layer 0', 'layer 1')
        >>> short_names(["albert.layers.0.attention", "albert.layers.0.attention#2"])
        ('layer #1', 'layer #2')
    """
    split = [tuple(name.partition("#")[0].split(".")) for name in names]
    first = _common([*split])
    last = _common([path[::-1] for path in split]) if len(set(split)) > 1 else 0
    short = []
    for name, path in zip(names, split, strict=True):
        kept = path[first : len(path) - last]
        words = [word for word in map(_word, kept) if word and word not in _STACKS]
        number = name.partition("#")[2]
        if len(set(split)) == 1 and len(names) > 1:
            words = [f"#{number or 1}"]
        elif number:
            words.append(f"#{number}")
        numbered = not words or words[0][0] in "0123456789#"
        short.append(" ".join(["layer", *words] if numbered and words else words) or path[-1] or "attention")
    return tuple(short) if len(set(short)) == len(short) else tuple(names)


def _common(paths: Sequence[Sequence[str]]) -> int:
    """Return how many parts at the beginning all paths share; of the only path, all but its last."""
    count = 0
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        count += 1
    return min(count, *(len(path) for path in paths)) if paths else 0


def _word(part: str) -> str:
    return "cross" if part in _CROSS else _ATTENTION.sub("", part)
