"""Training settings: a few numbers with good defaults, each checked."""

from dataclasses import dataclass
from typing import Annotated, Literal

from qkv.settings import Option, check

Schedule = Literal["inverse-sqrt", "cosine", "linear", "constant"]
Precision = Literal["float32", "bfloat16", "auto"]
Rule = Literal["adamw", "muon"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Training settings.

    Raises:
        ConfigError: a value is outside its range.

    Example:
        >>> Settings(steps=1000, schedule="cosine").warmup
        400
        >>> Settings(schedule="cosin")
        Traceback (most recent call last):
        qkv.errors.ConfigError: schedule: expected "inverse-sqrt" or "cosine" or "linear" or "constant"; got "cosin".
        Did you mean "cosine"?
    """

    steps: Annotated[int, Option("Number of updates of the weights", least=1)] = 10_000
    epochs: Annotated[
        int | None, Option("Passes over the training data, in place of a number of steps", least=1, instead_of="steps")
    ] = None
    minutes: Annotated[
        float | None,
        Option(
            "Minutes of updates, in place of a number of steps: it follows from the speed of the first updates",
            above=0,
            instead_of="steps",
        ),
    ] = None
    batch_tokens: Annotated[int, Option("Batch size, padding included", "tokens", least=1)] = 4096
    batch_size: Annotated[
        int | None, Option("Batch size in examples, in place of tokens", least=1, instead_of="batch_tokens")
    ] = None
    accumulate: Annotated[int, Option("Batches whose gradients are accumulated for one update", least=1)] = 1
    parts: Annotated[
        int | None,
        Option(
            "Parts in which each batch is computed, by one process or several; more take less memory",
            least=1,
            or_else="as few as give each process a part",
        ),
    ] = None
    optimizer: Annotated[
        Rule, Option("Optimizer; muon updates matrices by orthogonalized momentum, the rest like adamw")
    ] = "adamw"
    learning_rate: Annotated[
        float, Option("Peak learning rate", above=0, hint="Values from 1e-4 to 1e-2 suit most models.")
    ] = 1e-3
    schedule: Annotated[Schedule, Option("Learning rate after the warm-up")] = "inverse-sqrt"
    schedule_steps: Annotated[
        int | None,
        Option("Updates after which the learning rate stays where the schedule ends", least=1, or_else="all"),
    ] = None
    warmup: Annotated[
        int, Option("Updates in which the learning rate rises to its peak; at most half of all steps", least=0)
    ] = 400
    betas: Annotated[
        tuple[float, float],
        Option("Decay rates of AdamW's two moments", least=0, below=1, hint="Give two, as in (0.9, 0.98)."),
    ] = (0.9, 0.98)
    weight_decay: Annotated[
        float,
        Option("Weight decay of matrices; biases, norms and embeddings have none", least=0, hint="0 disables it."),
    ] = 0.01
    clip: Annotated[float, Option("Maximum gradient norm; 0 for no limit", least=0, hint="0 disables it.")] = 1.0
    label_smoothing: Annotated[
        float,
        Option("Part of a target's weight that is spread over all tokens", least=0, below=1, hint="0 disables it."),
    ] = 0.1
    precision: Annotated[
        Precision, Option("Computation; bfloat16 keeps float32 weights, auto times both at the start")
    ] = "float32"
    validate_every: Annotated[int, Option("Updates between two validations, each with a checkpoint", least=1)] = 500
    log_every: Annotated[int, Option("Updates between two lines of the log", least=1)] = 50
    patience: Annotated[
        int, Option("Validations without improvement after which training ends; 0 for no limit", least=0)
    ] = 0
    monitor: Annotated[
        str | None, Option("Figure that defines the best checkpoint", or_else="the first one that a validation shows")
    ] = None
    keep: Annotated[int, Option("Newest checkpoints to retain, in addition to the best", least=1)] = 3
    seed: Annotated[int, Option("Random seed", least=0)] = 0

    def __post_init__(self) -> None:
        check(self)

    @property
    def parts_of_update(self) -> int:
        """The number of parts of an update; their gradients are added.

        Example:
            >>> Settings(accumulate=2, parts=3).parts_of_update
            6
        """
        return self.accumulate * (self.parts or 1)
