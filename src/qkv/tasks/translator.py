"""A trained translation model: from source lines to target lines, and what each target token attended to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final

import torch
from torch import Tensor

from qkv.checkpoint.folder import load
from qkv.checkpoint.rotation import locate
from qkv.data.batches import collate_sources, inference_batches, restore_order
from qkv.data.tokenizer import Tokenizer
from qkv.decode.greedy import greedy
from qkv.decode.hypothesis import Hypothesis
from qkv.decode.protocol import Stepper
from qkv.errors import CheckpointError, ConfigError, DataError, complaint
from qkv.recording import record
from qkv.tasks.choice import TranslationModel, as_device, build_model

_BATCH_TOKENS = 4096
_EOS_SHOWN = "<eos>"


@final
@dataclass(frozen=True, eq=False)
class Translation:
    """One translated line.

    Args:
        source: the line as given.
        text: its translation.
        score: the log-probability of the translation, in nats.
        finished: whether the model ended it; False where it was still going at the limit.
        source_tokens, target_tokens: as the model sees them; the last target token is the end mark.
        weights: what each target token attended to, (T, S); None where the model has no attention, or none was asked
            for.
    """

    source: str
    text: str
    score: float
    finished: bool
    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    weights: Tensor | None = None


@final
class Translator:
    """A translation model with its tokenizer, ready to use.

    Args:
        model: the network.
        tokenizer: text to tokens and back.
        longest: the most tokens of a source line.

    Example:
        >>> import qkv  # doctest: +SKIP
        >>> qkv.load("runs/dates").translate(["Tue, 3rd of May 2011"])  # doctest: +SKIP
        ['2011-05-03']
    """

    def __init__(self, model: TranslationModel, tokenizer: Tokenizer, longest: int = 256) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.longest = longest

    @classmethod
    def load(cls, run: str | Path, device: str | torch.device = "cpu") -> "Translator":
        """Load the best checkpoint of a run, or one checkpoint.

        Args:
            run: the folder that training wrote, or one checkpoint in it.
            device: where to compute.

        Returns:
            The translator.

        Raises:
            CheckpointError: the checkpoint is missing, incomplete, altered or of another task.
            ConfigError: no such device here.
        """
        place = as_device(str(device))
        folder = locate(Path(run))
        contents = load(folder, trainer=False)
        if contents.config.get("task") != "translate" or contents.tokenizer is None:
            got = f"one for {contents.config.get('task', 'an unknown task')}"
            raise CheckpointError(complaint(str(folder), "a translation model", got, "Use the command of its task."))
        tokenizer = Tokenizer.from_json(contents.tokenizer)
        try:
            table = contents.config["model"]
            model = build_model(table if isinstance(table, Mapping) else {}, tokenizer)
            model.load_state_dict(dict(contents.model))
        except (ConfigError, RuntimeError, KeyError) as error:
            mend = "It was written by another version: train again, or install that version."
            raise CheckpointError(complaint(str(folder), "weights of the model it names", str(error), mend)) from error
        longest = contents.config.get("longest", 256)
        return cls(model.to(place), tokenizer, longest if isinstance(longest, int) else 256)

    def translate(self, lines: Sequence[str]) -> list[str]:
        """Translate lines greedily.

        Args:
            lines: source sentences.

        Returns:
            One translation for each line, in order; an empty line gives an empty one.

        Raises:
            DataError: a line longer than the limit; names its number.
        """
        return [found.text for found in self.translate_fully(lines)]

    def translate_fully(self, lines: Sequence[str], *, attention: bool = False) -> list[Translation]:
        """Translate lines greedily, and tell scores, tokens and, where asked, attention.

        Args:
            lines: source sentences.
            attention: whether to compute what each target token attended to.

        Returns:
            One translation for each line, in order.

        Raises:
            DataError: a line longer than the limit; names its number.
            ConfigError: attention is asked of a model that has none.
        """
        sources = [self._encode(line, number) for number, line in enumerate(lines, start=1)]
        hypotheses = self._decode(sources)
        pairs = zip(lines, sources, hypotheses, strict=True)
        return [self._translation(line, ids, found, attention) for line, ids, found in pairs]

    def attention(self, source: Sequence[int], target: Sequence[int]) -> Tensor:
        """What each target token attended to: cross-attention, the mean over heads.

        Args:
            source: ids of the source.
            target: ids of the target, without begin and end marks.

        Returns:
            Weights (T + 1, S): a row for each token and one for the end mark.

        Raises:
            ConfigError: the model has no cross-attention.
        """
        layer = self.model.alignment_layer
        if layer is None:
            raise ConfigError(
                complaint(
                    "--attention", "a model with attention", "one trained with --score none", "Train with a score."
                )
            )
        device = next(self.model.parameters()).device
        source_1S, lengths = collate_sources([source], self.tokenizer.pad)
        target_1T = torch.tensor([[self.tokenizer.bos, *target]])
        with torch.no_grad(), record(self.model, layers=[layer]) as trace:
            self.model(source_1S.to(device), lengths.to(device), target_1T.to(device))
        weights = trace.weights(layer)[0]
        weights_TS = weights.mean(0) if weights.ndim == 3 else weights
        return weights_TS[:, : len(source)].float().cpu()

    def _encode(self, line: str, number: int) -> list[int]:
        ids = self.tokenizer.encode(line)
        if len(ids) > self.longest:
            mend = f"Split the line, or train with --longest {len(ids)}."
            raise DataError(complaint(f"line {number}", f"at most {self.longest} tokens", f"{len(ids)}", mend))
        return ids

    def _decode(self, sources: Sequence[Sequence[int]]) -> list[Hypothesis]:
        filled = [place for place, ids in enumerate(sources) if ids]
        hypotheses = [Hypothesis((), 0.0)] * len(sources)
        if filled:
            batches = inference_batches([len(sources[place]) for place in filled], _BATCH_TOKENS)
            results = [self._decode_batch([sources[filled[place]] for place in batch]) for batch in batches]
            for place, found in zip(filled, restore_order(batches, results), strict=True):
                hypotheses[place] = found
        return hypotheses

    def _decode_batch(self, sources: Sequence[Sequence[int]]) -> list[Hypothesis]:
        device = next(self.model.parameters()).device
        source_BS, lengths_B = (x.to(device) for x in collate_sources(sources, self.tokenizer.pad))
        limits = 3 * lengths_B + 16
        marks = {"bos": self.tokenizer.bos, "eos": self.tokenizer.eos}
        model = cast("Stepper[Any]", self.model)
        return greedy(model, source_BS, lengths_B, limit=limits, **marks)

    def _translation(self, line: str, source: Sequence[int], found: Hypothesis, attention: bool) -> Translation:
        pieces = self.tokenizer.pieces
        return Translation(
            source=line,
            text=self.tokenizer.decode(found.ids),
            score=found.score,
            finished=found.finished,
            source_tokens=tuple(pieces(source)),
            target_tokens=(*pieces(found.ids), _EOS_SHOWN),
            weights=self.attention(source, found.ids) if attention and source else None,
        )
