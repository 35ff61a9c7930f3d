"""Decoding a batch of sources: greedily, with a beam, or by sampling; with one model or several."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

import torch
from torch import Tensor

from qkv.decode.choices import Mean
from qkv.decode.greedy import greedy
from qkv.decode.protocol import Hypothesis, Stepper, fork, regroup
from qkv.decode.sampling import Sampling, sample
from qkv.errors import ConfigError, setting
from qkv.linalg.session import DecodingSession
from qkv.settings import check, options_of
from qkv.tasks.translate.alignment_reading import AlignmentReading
from qkv.tasks.translate.limits import LengthLimit
from qkv.tasks.translate.model import TranslationModel
from qkv.tasks.translate.settings import DecodingSettings, SamplingSettings
from qkv.values.checked import checked

if TYPE_CHECKING:
    from qkv.decode.beam import Beam


@final
@checked
@dataclass(frozen=True)
class Decoding(DecodingSettings):
    """Decoding settings.

    Args:
        beam: beam width; 1 is greedy.
        length_penalty: α; 0 compares log-probabilities, 1 their mean per token.
        normalization: "plain" for |Y|^α, "wu" for ((5 + |Y|) / 6)^α.
        coverage: β of the coverage penalty; 0 disables it.
        n_best: number of translations per line, whose texts differ; with sampling, the number of samples.
        stop: when a beam ends: "proved" once no unfinished hypothesis can still win, "filled" once as many as the beam
            is wide have finished.
        max_tokens: maximum tokens per translation, end token included; None for the `LengthLimit` of the
            models. A translation that reaches it is cut, and its `Translation.finished` is false.
        mean: how the predictions of several models are averaged.
        ban_unknown: whether the unknown token is never written.
        no_repeat_ngram: n; no n tokens in a row are written twice. None for no limit.
        source_language, target_language: codes of languages, such as "fra_Latn", of a published model of many; None
            as its folder says.
        prefix: what each translation begins with; None for nothing.
        sampling: sampling settings; None to take the most likely tokens.
        unknown: the weights that select the source word for an unknown token; None to leave it.

    Raises:
        ConfigError: a number is outside its range, or settings exclude each other.

    Example:
        >>> Decoding(beam=5, n_best=2).search.width
        5
    """

    sampling: Sampling | None = None
    unknown: AlignmentReading | None = None

    def __post_init__(self) -> None:
        check(self, *options_of(DecodingSettings))
        if self.ban_unknown and self.unknown is not None:
            hint = "Both deal with unknown tokens: omit one of them."
            raise ConfigError("ban_unknown", "no " + setting("replace_unknown") + " beside it", "both", hint)
        if self.sampling is not None and self.beam != 1:
            hint = "Use either a beam or sampling."
            raise ConfigError("beam", "1 with sampling", f"{self.beam}", hint)
        for name in ("length_penalty", "normalization", "coverage", "stop"):
            if self.beam == 1 and getattr(self, name) != getattr(Decoding, name):
                usual, got = (
                    f'"{value}"' if isinstance(value, str) else f"{value:g}"
                    for value in (getattr(Decoding, name), getattr(self, name))
                )
                does = "ends the search" if name == "stop" else "ranks the hypotheses"
                hint = f"It {does} of a beam: use " + setting("beam", "5") + "."
                raise ConfigError(name, f"{usual} without a beam", got, hint)
        if self.sampling is None and self.n_best > self.beam:
            hint = "Use " + setting("beam", self.n_best) + " or wider, or " + setting("sample") + "."
            raise ConfigError("n_best", f"from 1 to the beam width {self.beam}", f"{self.n_best}", hint)
        if self.beam > 1:
            _ = self.search  # it refuses numbers out of range

    @property
    def search(self) -> "Beam":
        """The settings of the beam search."""
        from qkv.decode.beam import Beam, Ranking

        ranking = Ranking(self.length_penalty, self.normalization, self.coverage)
        return Beam(self.beam, self.n_best, ranking, self.stop)

    def limit(self, source_tokens: Tensor, usual: LengthLimit) -> Tensor:
        """Return the maximum tokens of each translation (B,), from the number of source tokens (B,)."""
        return usual(source_tokens) if self.max_tokens is None else torch.full_like(source_tokens, self.max_tokens)


def shown_end(finished: bool) -> str:
    """Return the last token of a translation for people: "<eos>", or "…" if it was cut."""
    return "<eos>" if finished else "…"


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
    never: Sequence[int],
    prefixes: Sequence[Sequence[int]] = (),
    session: DecodingSession | None = None,
) -> list[list[Hypothesis]]:
    """Decode a batch.

    Args:
        models: one or more models with the same vocabulary.
        source: token ids (B, S).
        lengths: (B,).
        keys: the random keys of the rows for each of `n_best` samples; unused without sampling.
        how: the settings.
        bos, eos: begin and end token.
        limit: maximum tokens of each row (B,).
        never: ids that are never written.
        prefixes: the ids that each row begins with; () for none.
        session: of several batches; None for this one alone.

    Returns:
        The hypotheses of each row, best first.

    Raises:
        ConfigError: a coverage penalty is used with a model without attention.
        QkvError: scores are NaN.
    """
    model = as_stepper(models, how.mean, record_attention=how.coverage > 0)
    constrained = how.no_repeat_ngram is not None or any(prefixes)
    if constrained:
        from qkv.decode.constraints import Constraining

        sink = never[0] if never else models[0].config.size
        model = Constraining(model, sink, how.no_repeat_ngram, forced=_filled(prefixes, source))
        never = (*never, sink)
    settings: dict[str, Any] = {"bos": bos, "eos": eos, "limit": limit, "never": never, "session": session}
    if how.sampling is not None:
        sample_keys = (torch.tensor(row, dtype=torch.int64, device=source.device) for row in keys)
        samples = [
            sample(model, source, lengths, sampling=how.sampling, keys=row_keys, **settings) for row_keys in sample_keys
        ]
        return [list(row) for row in zip(*samples, strict=True)]
    if how.beam == 1:
        return [[best] for best in greedy(model, source, lengths, **settings)]

    from qkv.decode.beam import beam

    def attended(state: Any) -> Tensor:
        return _attended(state.inner if constrained else state)

    watched = attended if how.coverage else None
    return beam(model, source, lengths, search=how.search, attended=watched, **settings)


def _filled(prefixes: Sequence[Sequence[int]], source: Tensor) -> Tensor:
    """Return prefixes as ids (B, P), −1 after the last one of a row."""
    rows = [torch.tensor(ids, dtype=torch.int64, device="cpu") for ids in prefixes or [()] * len(source)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1).to(source.device)


def as_sampling(flags: SamplingSettings) -> Sampling | None:
    """Build sampling settings from a command's flags; None without sampling.

    Raises:
        ConfigError: a sampling flag is given without --sample, or a number is outside its range.
    """
    values = {name: getattr(flags, name) for name in ("temperature", "top_k", "top_p", "seed")}
    named = {name: value for name, value in values.items() if value is not None}
    if flags.sample:
        return Sampling(**named)
    if named:
        name, sample = setting(next(iter(named))), setting("sample")
        raise ConfigError(name, sample + " as well", "no " + sample, "It only applies to sampling.")
    return None


def as_stepper(models: Sequence[TranslationModel], mean: Mean, *, record_attention: bool = False) -> Stepper[Any]:
    """Return one model, or several as an ensemble.

    Args:
        models: one or more models with the same vocabulary.
        mean: how the predictions of several are averaged.
        record_attention: whether the state holds the attention of the newest token.

    Raises:
        ConfigError: a model without attention is to be watched.
    """
    steppers = [_as_recording(model) if record_attention else cast("Stepper[Any]", model) for model in models]
    if len(steppers) == 1:
        return steppers[0]
    from qkv.decode.ensemble import Ensemble

    return Ensemble(tuple(steppers), mean)


def _as_recording(model: TranslationModel) -> Stepper[Any]:
    if model.alignment_layer is None:
        hint = "Omit " + setting("coverage") + "."
        raise ConfigError("coverage", "a model with attention", "one trained with " + setting("score", "none"), hint)
    return RecordingStepper(model, model.alignment_layer)


class RecordedState(NamedTuple):
    """A model's state, and the weights of each row (R, S)."""

    state: Any
    weights: Tensor


@final
@dataclass(frozen=True, eq=False)
class RecordingStepper:
    """A model as a `BeamStepper` whose state contains the weights of its alignment layer, averaged over heads.

    Args:
        model: a model with attention.
        layer: the attention that aligns target and source.
    """

    model: TranslationModel
    layer: str

    def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> RecordedState:
        """Encode the source."""
        state = self.model.start(source, lengths, session)
        return RecordedState(state, torch.zeros(source.shape, device=source.device))

    def step(self, tokens: Tensor, state: RecordedState) -> tuple[Tensor, RecordedState]:
        """Predict the next token, and record the attention weights."""
        model: Any = self.model
        from qkv.recording.recorder import record

        with record(self.model, layers=[self.layer]) as trace:
            logits, after = model.step(tokens, state.state)
        weights = trace.weights(self.layer)
        weights_BQS = weights.mean(1) if weights.ndim == 4 else weights
        return logits, RecordedState(after, weights_BQS.flatten(0, 1))

    def select(self, state: RecordedState, rows: Tensor) -> RecordedState:
        """Select rows."""
        model: Any = self.model
        return RecordedState(model.select(state.state, rows), state.weights[rows])

    def fork(self, state: RecordedState, rows: Tensor, width: int) -> RecordedState:
        """Select rows, and repeat each for several hypotheses."""
        return RecordedState(fork(self.model, state.state, rows, width), state.weights[rows.repeat_interleave(width)])

    def regroup(self, state: RecordedState, rows: Tensor) -> RecordedState:
        """Select rows of a forked state."""
        return RecordedState(regroup(self.model, state.state, rows), state.weights[rows])


def _attended(state: RecordedState | tuple[RecordedState, ...]) -> Tensor:
    if isinstance(state, RecordedState):
        return state.weights
    return torch.stack([part.weights for part in state]).mean(0)
