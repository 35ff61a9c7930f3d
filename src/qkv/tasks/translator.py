"""A trained translation model: from source lines to target lines, and what each target token attended to."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from qkv.data.batches import collate_sources, inference_batches, restore_order
from qkv.data.open_vocabulary import OpenSource, decode_open, encode_source, pieces_open, surfaces
from qkv.data.tokenizer import Tokenizer
from qkv.decode.hypothesis import Hypothesis
from qkv.decode.sampling import row_keys
from qkv.errors import CheckpointError, ConfigError, DataError, error_message
from qkv.linalg.session import Session
from qkv.models.copying import CopyingTranslator
from qkv.recording import record
from qkv.tasks.choice import TranslationModel, as_device
from qkv.tasks.cut import warn_cut
from qkv.tasks.decoding import Decoding, decode
from qkv.tasks.reading import Reading
from qkv.tasks.trained_translation import load_translation

_BATCH_TOKENS = 4096
_EOS_SHOWN = "<eos>"
_CUT_SHOWN = "…"
_GREEDY = Decoding()


@final
@dataclass(frozen=True, eq=False)
class Translation:
    """One translated line.

    Args:
        source: the line as given.
        text: its translation.
        score: the log-probability of the translation, in nats.
        finished: whether the model ended it; False where it was still going at the limit.
        source_tokens, target_tokens: as the model sees them; the last target token is the end mark, or "…" where the
            limit cut it.
        weights: what each target token attended to, (T, S); None where the model has no attention, or none was asked
            for.
        ranked: by what a beam ranked it: the score normalized by length; None where nothing was ranked.
        origins: for each target token, the end mark aside, the source token that it was copied from, or None where it
            came from the vocabulary; None as a whole where the model does not copy, or `weights` were not asked for.
    """

    source: str
    text: str
    score: float
    finished: bool
    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    weights: Tensor | None = None
    ranked: float | None = None
    origins: tuple[int | None, ...] | None = None


@final
class Translator:
    """A translation model with its tokenizer, ready to use; or several that translate together.

    Args:
        model: the network.
        tokenizer: text to tokens and back.
        longest: the most tokens of a source line.
        others: further networks over the same tokenizer; attention is read from the first one alone.

    Example:
        >>> import qkv  # doctest: +SKIP
        >>> qkv.load("runs/dates").translate(["Tue, 3rd of May 2011"])  # doctest: +SKIP
        ['2011-05-03']
    """

    def __init__(
        self,
        model: TranslationModel,
        tokenizer: Tokenizer,
        longest: int = 256,
        others: Sequence[TranslationModel] = (),
    ) -> None:
        self.model = model.eval()
        self.models = (self.model, *(other.eval() for other in others))
        self.tokenizer = tokenizer
        self.longest = longest

    @classmethod
    def load(
        cls, run: str | Path | Sequence[str | Path], device: str | torch.device = "cpu", *, average: int = 1
    ) -> "Translator":
        """Load the best checkpoint of a run, or one checkpoint; several runs translate together.

        Args:
            run: the folder that training wrote, or one checkpoint in it; or several.
            device: where to compute.
            average: more than 1 takes the mean of the weights of each run's newest checkpoints, that many.

        Returns:
            The translator.

        Raises:
            CheckpointError: a checkpoint is missing, incomplete, altered or of another task; there are fewer than
                `average`; or the runs have different tokenizers.
            ConfigError: no such device here.
        """
        place = as_device(str(device))
        runs = [run] if isinstance(run, str | Path) else run
        if not runs:
            raise CheckpointError(error_message("run", "at least one", "none", "Give the folder that training wrote."))
        found = [load_translation(Path(each), average) for each in runs]
        first, *others = found
        for each, other in zip(runs[1:], others, strict=True):
            if other.tokenizer.to_json() != first.tokenizer.to_json():
                hint = "Train all with --tokenizer-from the first, or translate with each alone."
                raise CheckpointError(error_message(str(each), f"the tokenizer of {runs[0]}", "another one", hint))
        longest = min(each.longest for each in found)
        return cls(first.model.to(place), first.tokenizer, longest, [each.model.to(place) for each in others])

    def translate(self, lines: Sequence[str], how: Decoding | None = None, *, beam: int = 1) -> list[str]:
        """Translate lines.

        Args:
            lines: source sentences.
            how: every setting of decoding; None for `Decoding(beam)`.
            beam: how many hypotheses are kept; 1 is greedy. Only where `how` is not given.

        Returns:
            One translation for each line, in order; an empty line gives an empty one. Where the limit cut some
            (`Decoding.max_tokens`) a `CutWarning` says so.

        Raises:
            DataError: a line longer than the limit; names its number.
            ConfigError: settings outside their range.
        """
        found = self.translate_fully(lines, how or Decoding(beam))
        warn_cut([each.finished for each in found])
        return [each.text for each in found]

    def translate_fully(
        self, lines: Sequence[str], how: Decoding = _GREEDY, *, attention: bool = False
    ) -> list[Translation]:
        """Translate lines, and tell scores, tokens and, where asked, attention.

        Args:
            lines: source sentences.
            how: the settings of decoding; the best of several translations is taken.
            attention: whether to compute what each target token attended to.

        Returns:
            One translation for each line, in order.

        Raises:
            DataError: a line longer than the limit; names its number.
            ConfigError: attention is asked of a model that has none.
        """
        return [best for best, *_ in self.translate_best(lines, how, attention=attention)]

    def translate_best(
        self, lines: Sequence[str], how: Decoding = _GREEDY, *, attention: bool = False
    ) -> list[list[Translation]]:
        """Translate lines, each in its n best ways.

        Args:
            lines: source sentences.
            how: the settings of decoding.
            attention: whether to compute what each target token attended to.

        Returns:
            For each line its translations, the best first: `how.n_best`, or fewer where there are no more.

        Raises:
            DataError: a line longer than the limit; names its number.
            ConfigError: attention is asked of a model that has none.
        """
        sources = [self._encode(line, number) for number, line in enumerate(lines, start=1)]
        hypotheses = self._decode([source.ids for source in sources], how)
        pairs = zip(lines, sources, hypotheses, strict=True)
        return [
            [self._translation(line, source, one, attention, how) for one in found] for line, source, found in pairs
        ]

    def attention(self, source: Sequence[int], target: Sequence[int], reading: Reading | None = None) -> Tensor:
        """What each target token attended to.

        Args:
            source: ids of the source.
            target: ids of the target, without begin and end marks.
            reading: which weights; None for those of the model's alignment layer at each step, the mean over heads.

        Returns:
            Weights (T + 1, S): a row for each token and one for the end mark.

        Raises:
            ConfigError: the model has no cross-attention, or not that head.
        """
        layer = self.model.alignment_layer if reading is None else reading.layer
        if layer is None:
            raise ConfigError(
                error_message(
                    "--attention", "a model with attention", "one trained with --score none", "Train with a score."
                )
            )
        device = next(self.model.parameters()).device
        source_1S, lengths = collate_sources([source], self.tokenizer.pad)
        target_1T = torch.tensor([[self.tokenizer.bos, *target]])
        with torch.no_grad(), record(self.model, layers=[layer]) as trace:
            self.model(source_1S.to(device), lengths.to(device), target_1T.to(device))
        weights_TS = (reading or Reading(layer)).of(trace.weights(layer)[0])
        return weights_TS[:, : len(source)].float().cpu()

    def origins(self, source: Sequence[int], target: Sequence[int]) -> tuple[int | None, ...] | None:
        """Where target tokens came from, where the model copies.

        Args:
            source, target: ids, as `attention`.

        Returns:
            For each target token the place of the source token that gave most of it, where more than half of its
            probability was copied; None where it came from the vocabulary.
        """
        if not isinstance(self.model, CopyingTranslator):
            return None
        device = next(self.model.parameters()).device
        source_1S, lengths = collate_sources([source], self.tokenizer.pad)
        target_1T = torch.tensor([[self.tokenizer.bos, *target]], device=device)
        shares, places = self.model.origins(source_1S.to(device), lengths.to(device), target_1T)
        pairs = zip(shares[0].tolist(), places[0].tolist(), strict=True)
        return tuple(place if share > 0.5 else None for share, place in pairs)

    def _encode(self, line: str, number: int) -> OpenSource:
        copies = isinstance(self.model, CopyingTranslator)
        source = encode_source(line, self.tokenizer) if copies else OpenSource(tuple(self.tokenizer.encode(line)), ())
        if len(source.ids) > self.longest:
            hint = f"Split the line, or train with --longest {len(source.ids)}."
            raise DataError(
                error_message(f"line {number}", f"at most {self.longest} tokens", f"{len(source.ids)}", hint)
            )
        return source

    def _decode(self, sources: Sequence[Sequence[int]], how: Decoding) -> list[list[Hypothesis]]:
        filled = [place for place, ids in enumerate(sources) if ids]
        hypotheses = [[Hypothesis((), 0.0)] for _ in sources]
        if filled:
            kept = [sources[place] for place in filled]
            draws = range(how.n_best if how.sampling is not None else 0)
            keys = [row_keys(kept, draw) for draw in draws]
            # A beam holds its sources that many times.
            batches = inference_batches([len(ids) * how.beam for ids in kept], _BATCH_TOKENS)
            results = []
            with Session() as session:
                for batch in batches:
                    drawn = [[row[place] for place in batch] for row in keys]
                    results.append(self._decode_batch([kept[place] for place in batch], drawn, how, session))
            for place, found in zip(filled, restore_order(batches, results), strict=True):
                hypotheses[place] = found
        return hypotheses

    def _decode_batch(
        self, sources: Sequence[Sequence[int]], keys: Sequence[Sequence[int]], how: Decoding, session: Session
    ) -> list[list[Hypothesis]]:
        device = next(self.model.parameters()).device
        source_BS, lengths_B = (x.to(device) for x in collate_sources(sources, self.tokenizer.pad))
        settings: dict[str, Any] = {"bos": self.tokenizer.bos, "eos": self.tokenizer.eos, "session": session}
        limit, never = how.limit(lengths_B), self.tokenizer.never_written
        return decode(self.models, source_BS, lengths_B, keys, how, limit=limit, never=never, **settings)

    def _translation(
        self, line: str, source: OpenSource, found: Hypothesis, attention: bool, how: Decoding
    ) -> Translation:
        look = attention and bool(source.ids)
        ids, unknown = found.ids, source.unknown
        if how.unknown is not None and source.ids and self.tokenizer.unk in ids:
            ids, unknown = self._replaced(line, source, ids, how.unknown)
        return Translation(
            source=line,
            text=decode_open(ids, self.tokenizer, unknown),
            score=found.score,
            finished=found.finished,
            source_tokens=tuple(pieces_open(source.ids, self.tokenizer, source.unknown)),
            target_tokens=(*pieces_open(ids, self.tokenizer, unknown), _EOS_SHOWN if found.finished else _CUT_SHOWN),
            weights=self.attention(source.ids, found.ids) if look else None,
            ranked=found.ranked,
            origins=self.origins(source.ids, found.ids) if look else None,
        )

    def _replaced(
        self, line: str, source: OpenSource, target: tuple[int, ...], reading: Reading
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The target with each unknown token numbered as the source's word it goes back to, and those words."""
        marks = self.tokenizer
        places = self.attention(source.ids, target, reading).argmax(-1).tolist()
        written = surfaces(line, marks)
        words = (*source.unknown, *(written[place] for place in places))
        first = marks.size + len(source.unknown)
        return tuple(first + at if number == marks.unk else number for at, number in enumerate(target)), words
