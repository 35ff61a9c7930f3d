"""Checks of settings that contradict each other, which configurations share."""

from typing import Any

from qkv.errors import ConfigError, setting
from qkv.nn.mechanism import MechanismConfig
from qkv.values.catalog import as_flag


def expect_attention(score: str) -> None:
    """Refuse "none" for a model that consists of attention.

    Raises:
        ConfigError: the score is "none".

    Example:
        >>> expect_attention("dot")
    """
    if score == "none":
        hint = "Only a recurrent decoder can do without: choose another score, or " + setting("model", "gru") + "."
        raise ConfigError("score", "a score, because a Transformer is attention", '"none"', hint)


def expect_attention_for_features(score: str) -> None:
    """Refuse features as a second source in a model that does not attend to its first source.

    Raises:
        ConfigError: the score is "none".
    """
    if score == "none":
        hint = "Choose a score, or " + setting("features", "front") + "."
        raise ConfigError("score", "an attention beside that over features", '"none"', hint)


def separate_attention(usual: MechanismConfig, part: str, score: str | None, normalizer: str | None) -> MechanismConfig:
    """Return the mechanism of one attention of a model, which differs from the usual one in its own settings.

    Args:
        usual: the mechanism that it has otherwise.
        part: the prefix of its settings.
        score, normalizer: the settings; None for the usual ones.

    Raises:
        ConfigError: a setting is unknown or does not apply; the message names it with its prefix.

    Example:
        >>> separate_attention(MechanismConfig(), "cross", "none", None)
        Traceback (most recent call last):
        qkv.errors.ConfigError: cross_score: expected a score, because a Transformer is attention; got "none". ...
    """
    try:
        replaced = usual.replaced(score, normalizer)
        expect_attention(replaced.score)
    except ConfigError as error:
        name = error.argument
        if {"score": score, "normalizer": normalizer}.get(name) is None:
            raise
        raise error.about(f"{part}_{name}") from None
    return replaced


def check_heads(name: str, width: int, heads: int, heads_name: str = "heads") -> None:
    """Check that heads divide a width.

    Args:
        name: the name of the width's setting.
        width: the width.
        heads: the number of heads.
        heads_name: the name of the heads' setting.

    Raises:
        ConfigError: they do not.

    Example:
        >>> check_heads("width", 256, 3)
        Traceback (most recent call last):
        qkv.errors.ConfigError: heads: expected a divisor of width; got 3 for width 256. Try 2 or 4.
    """
    if width % heads:
        from qkv.shapes import nearest_divisors  # imports PyTorch

        got = f"{heads} for width {width}"
        raise ConfigError(f"{heads_name}", "a divisor of " + setting(f"{name}"), got, nearest_divisors(width, heads))


def check_positions(positions: str, mechanism: MechanismConfig, width: int, *, bounded: bool = False) -> None:
    """Check that positions suit an attention.

    Args:
        positions: their name.
        mechanism: score and normalizer.
        width: the width of a head.
        bounded: whether texts have a largest length, so that positions can be learned.

    Raises:
        ConfigError: rotary positions with a score that is neither a product nor a distance, or with an odd width; or a
            position bias with scores that must not be negative.

    Example:
        >>> check_positions("rotary", MechanismConfig(score="additive"), 8)
        Traceback (most recent call last):
        qkv.errors.ConfigError: positions: expected sinusoidal, alibi, relative or none with additive ...
    """
    biases = ("alibi", "relative")
    if positions == "rotary" and mechanism.rotates and width % 2:
        hint = "Rotary positions rotate pairs: choose another number of heads."
        raise ConfigError("heads", "an even width per head", f"{width}", hint)
    misfits: tuple[str, ...] = () if mechanism.rotates else ("rotary",)
    misfits += biases if mechanism.normalizer == "sum" else ()
    if positions in misfits:
        names = ("sinusoidal", "learned", "rotary", *biases) if bounded else ("sinusoidal", "rotary", *biases)
        fitting = ", ".join(name for name in names if name not in misfits)
        expected = f"{fitting} or none with {as_flag(mechanism.score)} under {mechanism.normalizer}"
        hint = "Of rotated vectors, only dot products and distances depend just on the difference of positions."
        if positions in biases:
            others = setting("normalizer", "softmax") + ", or " + setting("score", "squared-distance")
            hint = "They add to the scores, which a sum needs above 0: use " + others + "."
        raise ConfigError("positions", expected, f'"{positions}"', hint)


def expect_transformer(config: Any, **usual: object) -> None:
    """Refuse settings of self-attention for a model whose encoder has none.

    Args:
        config: the configuration; its `model` is the encoder.
        usual: the defaults of these settings.

    Raises:
        ConfigError: a setting differs from its default.
    """
    for name, default in usual.items():
        if getattr(config, name) != default:
            hint = "It belongs to self-attention: omit it, or choose " + setting("model", "transformer") + "."
            got = f"{getattr(config, name)} with {config.model}"
            raise ConfigError(name, "a Transformer", got, hint)


def expect_halves(name: str, width: int, why: str, hint: str) -> None:
    """Refuse an odd width that is divided in two.

    Raises:
        ConfigError: it is odd.

    Example:
        >>> expect_halves("width", 8, "for two directions", "Each direction has half of it.")
    """
    if width % 2:
        raise ConfigError(name, f"an even width, {why}", f"{width}", hint)
