"""How a batch of sources is decoded: greedily, by a beam, or by drawing; by one model or several."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast, final, get_args

import torch
from torch import Tensor

from qkv.decode.beam import Beam, Stop, beam
from qkv.decode.ensemble import Ensemble, Mean
from qkv.decode.greedy import greedy
from qkv.decode.hypothesis import Hypothesis
from qkv.decode.protocol import Stepper
from qkv.decode.ranking import Normalization, Ranking
from qkv.decode.sampling import Sampling, sample
from qkv.errors import ConfigError, error_message, nearest
from qkv.linalg.session import Session
from qkv.tasks.choice import TranslationModel
from qkv.tasks.reading import Reading
from qkv.tasks.watching import Watched, Watching

Count = TypeVar("Count", int, Tensor)


def usual_limit(source_tokens: Count) -> Count:
    """The most tokens of a translation where nobody chose: no text of a language pair grows more than threefold.

    Example:
        >>> usual_limit(10)
        46
    """
    return 3 * source_tokens + 16


_MOST = 1_000_000
"""More hypotheses or tokens than anyone waits for."""


@final
@dataclass(frozen=True)
class Decoding:
    """How to decode.

    Args:
        beam: how many hypotheses are kept; 1 takes the likeliest token at each step.
        length_penalty: α; 0 compares log-probabilities, 1 their means per token.
        normalization: "plain" for |Y|^α, "wu" for ((5 + |Y|) / 6)^α.
        coverage: β of the coverage penalty; 0 switches it off.
        n_best: how many translations of each line; drawn ones where tokens are drawn.
        sampling: how tokens are drawn; None where the likeliest are taken.
        stop: when a beam ends: "proved" once no hypothesis that still runs could be better, "filled" once as many as
            it is wide have ended.
        max_tokens: the most tokens of a translation, the end mark included; None for three to each token of its source
            and 16 more. One that reaches it is cut there, and says so (`Translation.finished`).
        mean: how several models are joined.
        unknown: which weights say what source word stands where the model wrote an unknown one; None to leave it.

    Raises:
        ConfigError: numbers outside their ranges, or settings that exclude each other.

    Example:
        >>> Decoding(beam=5, n_best=2).search.width
        5
    """

    beam: int = 1
    length_penalty: float = 1.0
    normalization: Normalization = "plain"
    coverage: float = 0.0
    n_best: int = 1
    sampling: Sampling | None = None
    stop: Stop = "proved"
    max_tokens: int | None = None
    mean: Mean = "probability"
    unknown: Reading | None = None
    search: Beam = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, number in (("beam", self.beam), ("n_best", self.n_best), ("max_tokens", self.max_tokens)):
            if number is not None and not 1 <= number <= _MOST:
                expected = "at least 1" if number < 1 else f"at most {_MOST:,}"
                raise ConfigError(error_message(name, expected, f"{number}", "Leave it out for the usual number."))
        if self.sampling is not None and self.beam != 1:
            hint = "A beam searches, sampling draws: choose one."
            raise ConfigError(error_message("beam", "1 where tokens are drawn", f"{self.beam}", hint))
        if self.coverage and self.beam == 1:
            hint = "It ranks the hypotheses of a beam: use --beam 5."
            raise ConfigError(error_message("coverage", "0 without a beam", f"{self.coverage}", hint))
        if self.stop != "proved" and self.beam == 1:
            hint = "It ends the search of a beam: use --beam 5."
            raise ConfigError(error_message("stop", '"proved" without a beam', f'"{self.stop}"', hint))
        if self.sampling is None and self.n_best > self.beam:
            hint = f"Use --beam {self.n_best} or wider, or --sample to draw them."
            raise ConfigError(error_message("n_best", f"from 1 to the beam's {self.beam}", f"{self.n_best}", hint))
        ranking = Ranking(self.length_penalty, self.normalization, self.coverage)
        width = max(self.beam, self.n_best) if self.sampling is not None else self.beam
        object.__setattr__(self, "search", Beam(width, self.n_best, ranking, self.stop))

    def limit(self, source_tokens: Tensor) -> Tensor:
        """The most tokens of each translation (B,), from the number of its source's (B,)."""
        usual = usual_limit(source_tokens)
        return usual if self.max_tokens is None else torch.full_like(usual, self.max_tokens)


def decode(
    models: Sequence[TranslationModel],
    source: Tensor,
    lengths: Tensor,
    keys: Sequence[Sequence[int]],
    how: Decoding,
    *,
    bos: int,
    eos: int,
    limit: Tensor,
    never: Sequence[int] = (),
    session: Session | None = None,
) -> list[list[Hypothesis]]:
    """Decode a batch.

    Args:
        models: over one vocabulary.
        source: token ids (B, S).
        lengths: (B,).
        keys: for each of `n_best` draws the keys of the rows; unused where nothing is drawn.
        how: the settings.
        bos, eos: the marks.
        limit: the most tokens of each row (B,).
        never: ids that are never written.
        session: of several batches; None for this one alone.

    Returns:
        For each row its hypotheses, the best first.

    Raises:
        ConfigError: a coverage penalty for a model without attention.
        QkvError: scores that are not numbers.
    """
    steppers = [_stepper(model, watch=how.coverage > 0) for model in models]
    model = steppers[0] if len(steppers) == 1 else Ensemble(tuple(steppers), how.mean)
    marks: dict[str, Any] = {"bos": bos, "eos": eos, "limit": limit, "never": never, "session": session}
    if how.sampling is not None:
        drawn = (torch.tensor(row, dtype=torch.int64, device=source.device) for row in keys)
        samples = [sample(model, source, lengths, sampling=how.sampling, keys=each, **marks) for each in drawn]
        return [list(row) for row in zip(*samples, strict=True)]
    if how.beam == 1:
        return [[found] for found in greedy(model, source, lengths, **marks)]
    attended = _attended if how.coverage else None
    return beam(model, source, lengths, search=how.search, attended=attended, **marks)


def as_sampling(
    wanted: bool, temperature: float | None, top_k: int | None, top_p: float | None, seed: int | None
) -> Sampling | None:
    """The settings of a draw from a command's flags.

    Args:
        wanted: whether to draw at all.
        temperature, top_k, top_p, seed: as `Sampling` takes them; None where not given.

    Returns:
        The settings; None where nothing is drawn.

    Raises:
        ConfigError: a flag that only drawing has, without it; or a number outside its range.
    """
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    named = {name: value for name, value in given.items() if value is not None}
    if wanted:
        return Sampling(**named)  # type: ignore[arg-type]
    if named:
        flag = f"--{next(iter(named)).replace('_', '-')}"
        raise ConfigError(error_message(flag, "--sample beside it", "no --sample", "Nothing is drawn without it."))
    return None


def as_normalization(name: str) -> Normalization:
    """The name of a normalization, checked where it is used."""
    return cast("Normalization", name)


def as_stop(name: str) -> Stop:
    """When a beam ends, checked.

    Raises:
        ConfigError: no such end.

    Example:
        >>> as_stop("filled")
        'filled'
    """
    if name not in get_args(Stop):
        raise ConfigError(error_message("--stop", '"proved" or "filled"', f'"{name}"', nearest(name, get_args(Stop))))
    return cast("Stop", name)


def as_mean(name: str) -> Mean:
    """The name of a mean, checked.

    Raises:
        ConfigError: no such mean.
    """
    if name not in get_args(Mean):
        raise ConfigError(error_message("--mean", "a known mean", repr(name), nearest(name, get_args(Mean))))
    return cast("Mean", name)


def _stepper(model: TranslationModel, *, watch: bool) -> Stepper[Any]:
    if not watch:
        return cast("Stepper[Any]", model)
    if model.alignment_layer is None:
        hint = "Leave --coverage out."
        raise ConfigError(error_message("coverage", "a model with attention", "one trained with --score none", hint))
    return Watching(model, model.alignment_layer)


def _attended(state: Watched | tuple[Watched, ...]) -> Tensor:
    if isinstance(state, Watched):
        return state.weights
    return torch.stack([part.weights for part in state]).mean(0)
