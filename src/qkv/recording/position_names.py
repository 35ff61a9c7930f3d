"""Names of positions that are no tokens: frames of audio by their time, patches of an image by row and column."""

from typing import Any

_RATE = 16_000
"""Samples a second that models of waveforms read: wav2vec 2.0, HuBERT and their kin."""
_WINDOW = 30.0
"""Seconds that Whisper reads at a time, whatever is said in them."""
_MOST_OTHERS = 8
"""Maximum number of positions before the patches: the class token, and registers."""


def position_names(config: Any, count: int) -> tuple[str, ...] | None:
    """Name the positions of an encoder by the configuration of its model, as `transformers` has it.

    Args:
        config: the configuration.
        count: number of positions.

    Returns:
        Times, as "0.04s"; or "[CLS]", and "1,2" for the second patch of the first row. None if the configuration tells
        neither.

    Example:
        >>> from types import SimpleNamespace
        >>> position_names(SimpleNamespace(image_size=32, patch_size=16), 5)
        ('[CLS]', '1,1', '1,2', '2,1', '2,2')
        >>> position_names(SimpleNamespace(inputs_to_logits_ratio=320), 3)
        ('0.00s', '0.02s', '0.04s')
    """
    is_whisper = getattr(config, "model_type", "") == "whisper" and count == config.max_source_positions
    samples = getattr(config, "inputs_to_logits_ratio", None)
    seconds = _WINDOW / count if is_whisper else samples / _RATE if isinstance(samples, int) else None
    if seconds is not None:
        return tuple(f"{number * seconds:.2f}s" for number in range(count))
    image, patch = (_sides(getattr(config, name, None)) for name in ("image_size", "patch_size"))
    if image is None or patch is None:
        return None
    rows, columns = (size // of_patch for size, of_patch in zip(image, patch, strict=True))
    others = count - rows * columns
    if not 0 <= others <= _MOST_OTHERS:
        return None
    names = [f"{row},{column}" for row in range(1, rows + 1) for column in range(1, columns + 1)]
    return (*("[CLS]", *(f"[REG{number}]" for number in range(1, others)))[: max(0, others)], *names)


def _sides(size: Any) -> tuple[int, int] | None:
    """Return height and width; None if they are not known."""
    pair = (size, size) if isinstance(size, int) else size
    known = isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(x, int) and x > 0 for x in pair)
    return (pair[0], pair[1]) if known else None
