"""Training settings: a few numbers with good defaults, each checked."""

import math
from dataclasses import dataclass
from typing import Literal, final, get_args

from qkv.errors import ConfigError, nearest

Schedule = Literal["inverse-sqrt", "cosine", "linear", "constant"]
Precision = Literal["float32", "bfloat16", "auto"]
Rule = Literal["adamw", "muon"]


@final
@dataclass(frozen=True)
class Settings:
    """Training settings.

    Args:
        steps: number of weight updates.
        epochs: passes over the training data, in place of `steps`; None to count steps.
        tokens: batch size in tokens, padding included.
        batch_size: batch size in examples, in place of `tokens`; None to count tokens.
        accumulate: number of batches whose gradients are accumulated for one update.
        optimizer: "muon" updates matrices by orthogonalized momentum and the rest like "adamw".
        learning_rate: peak learning rate.
        schedule: the schedule after the warm-up, see `qkv.training.schedules`.
        warmup: number of updates in which the learning rate rises to its peak; at most half of `steps` are used.
        betas: decay rates of AdamW's two moments.
        weight_decay: weight decay of matrices; biases, norms and embeddings have none.
        clip: maximum gradient norm; 0 for no limit.
        label_smoothing: the part of a target's weight that is spread over all tokens.
        precision: "bfloat16" computes in bfloat16 with float32 weights; "auto" times both at the start.
        validate_every: updates between two validations, each followed by a checkpoint.
        log_every: updates between two lines of the log.
        patience: number of validations without improvement after which training ends; 0 for no limit.
        monitor: name of the figure that defines the best checkpoint; the first one by default.
        keep: number of newest checkpoints to retain, in addition to the best.
        seed: random seed.

    Raises:
        ConfigError: a value is outside its range.

    Example:
        >>> Settings(steps=1000, schedule="cosine").warmup
        400
        >>> Settings(schedule="cosin")
        Traceback (most recent call last):
        qkv.errors.ConfigError: schedule: expected one of inverse-sqrt, cosine, linear, constant; got "cosin".
        Did you mean "cosine"?
    """

    steps: int = 10_000
    tokens: int = 4096
    accumulate: int = 1
    optimizer: Rule = "adamw"
    learning_rate: float = 1e-3
    schedule: Schedule = "inverse-sqrt"
    warmup: int = 400
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip: float = 1.0
    label_smoothing: float = 0.1
    precision: Precision = "float32"
    validate_every: int = 500
    log_every: int = 50
    patience: int = 0
    monitor: str | None = None
    keep: int = 3
    seed: int = 0
    epochs: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        for name in ("steps", "tokens", "accumulate", "validate_every", "log_every", "keep"):
            _within(name, getattr(self, name), 1, 2**53)
        for name in ("epochs", "batch_size"):
            if getattr(self, name) is not None:
                _within(name, getattr(self, name), 1, 2**53)
        for name in ("warmup", "patience", "seed"):
            _within(name, getattr(self, name), 0, 2**53)
        _between("learning_rate", self.learning_rate, 0, math.inf, "Values from 1e-4 to 1e-2 suit most models.")
        if len(self.betas) != 2:
            hint = "AdamW has two, as in (0.9, 0.98)."
            raise ConfigError("betas", "two numbers", repr(self.betas), hint)
        for number in self.betas:
            _between("betas", number, 0, 1, "Values such as (0.9, 0.98) suit most models.", zero=True)
        _between("weight_decay", self.weight_decay, 0, math.inf, "0 disables it.", zero=True)
        _between("label_smoothing", self.label_smoothing, 0, 1, "0 disables it.", zero=True)
        _between("clip", self.clip, 0, math.inf, "0 disables it.", zero=True)
        _one_of("optimizer", self.optimizer, get_args(Rule))
        _one_of("schedule", self.schedule, get_args(Schedule))
        _one_of("precision", self.precision, get_args(Precision))


def _within(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        hint = f"Give an integer from {low} on, at most {high}."
        raise ConfigError(name, f"an integer, at least {low}", repr(value), hint)


def _between(name: str, value: object, low: float, high: float, hint: str, *, zero: bool = False) -> None:
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if low < number < high or (zero and number == low):
        return
    start = "from" if zero else "above"
    end = "" if high == math.inf else f" and below {high:g}"
    raise ConfigError(name, f"a finite number {start} {low:g}{end}", repr(value), hint)


def _one_of(name: str, value: object, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise ConfigError(name, f"one of {', '.join(valid)}", f'"{value}"', nearest(str(value), valid))
