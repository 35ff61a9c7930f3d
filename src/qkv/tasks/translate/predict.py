"""A trained translation model: translates source lines, and returns what each target token attended to."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import torch
from torch import Tensor

from qkv.checkpoint.folder import is_checkpoint
from qkv.data.batches import collate_sources, device_of, inference_batches, restore_order
from qkv.data.open_vocabulary import OpenSource, decode_open, encode_source, encode_target, pieces_open, surfaces
from qkv.data.tokenizer import Tokenizer
from qkv.data.word_table import WordTable
from qkv.decode.protocol import Hypothesis
from qkv.decode.sampling import RowKeys
from qkv.errors import CheckpointError, ConfigError, Place, UnsupportedError, setting
from qkv.linalg.session import DecodingSession, opened
from qkv.metrics.translation import WMT, BleuTokenizer
from qkv.notebooks import table
from qkv.settings import build
from qkv.tasks.length import expect_length, warn_cut
from qkv.tasks.members import members_of
from qkv.tasks.notes import counted
from qkv.tasks.python_values import expect_texts
from qkv.tasks.runs import OTHER_VERSION, Trained, expect_task, load_trained, rebuild
from qkv.tasks.task import Answerer, Scored, reads_no_columns
from qkv.tasks.translate.alignment_reading import AlignmentReading, default_reading, stored_reading
from qkv.tasks.translate.decoding import Decoding, as_stepper, decode, shown_end
from qkv.tasks.translate.limits import STORED, LengthLimit
from qkv.tasks.translate.model import TranslationConfig, TranslationModel, build_model
from qkv.tasks.translate.settings import BleuSettings, TranslateEvaluation
from qkv.values.checked import answering

if TYPE_CHECKING:
    from qkv.view.alignment import Alignment
    from qkv.view.live import LiveModel
    from qkv.view.scene import Scene

A = TypeVar("A", bound=Answerer)
R = TypeVar("R")
_BATCH_TOKENS = 4096
_WIDER = 16
"""How many times wider a beam may become to find different texts."""
_GREEDY = Decoding()
_UNREAD_COLUMN = 1 << 30
_USUAL_LIMIT = LengthLimit()


@final
@dataclass(frozen=True, eq=False, repr=False)
class Translation:
    """One translated line.

    Args:
        source: the given line.
        text: its translation.
        score: the log-probability of the translation, in nats; for models of both directions the mean of both sides'.
        finished: whether the model ended it; False if it was cut at the length limit.
        source_tokens, target_tokens: as the model sees them; the last target token is the end token, or "…" if the
            translation was cut.
        weights: the attention weights of each target token, (T, S); None if the model has no attention, or they were
            not requested.
        ranked: the length-normalized score that a beam ranks by; None without a beam.
        origins: for each target token except the end token, the source token that it was copied from, or None if it
            was generated; None if the model does not copy, or `weights` were not requested.
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

    @property
    def alignment(self) -> "Alignment | None":
        """What each target token attended to."""
        from qkv.view.alignment import Alignment

        return None if self.weights is None else Alignment(self.source_tokens, self.target_tokens, self.weights)

    def __repr__(self) -> str:
        """Return both texts and the score."""
        return f"Translation({self.source!r} -> {self.text!r}, score={self.score:.4g})"

    def _repr_html_(self) -> str:
        """Return both texts for a notebook, and the attention if it was requested."""
        rows = [("source", self.source), ("translation", self.text), ("log-probability", f"{self.score:.4g} nats")]
        picture = "" if self.alignment is None else self.alignment._repr_html_()
        return table(rows) + picture


@final
@answering
class Translator:
    """A translation model with its tokenizer, ready to use; or an ensemble.

    Args:
        model: the network.
        tokenizer: text to tokens and back.
        longest: maximum tokens of a source line.
        others: further networks with the same tokenizer; attention is read from `model` only.
        right_to_left: for each network whether it writes in that direction; none does by default. If some do, those of
            either direction propose translations, and all score them (`qkv.decode.agreement`).
        table: the columns of a line's source and features, and how symbols are joined to a translation; None if a line
            is a source and symbols are those of the tokenizer.
        chosen: the attention weights that training chose for aligning words; None if it chose none.
        limit: the default maximum tokens of a translation.
        bleu_tokenize: what separates words for BLEU.

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
        table: WordTable | None = None,
        right_to_left: Sequence[bool] = (),
        chosen: AlignmentReading | None = None,
        limit: LengthLimit = _USUAL_LIMIT,
        bleu_tokenize: BleuTokenizer = WMT,
    ) -> None:
        self.model = model.eval()
        self.models = (self.model, *(model.eval() for model in others))
        self.tokenizer = tokenizer
        self.longest = longest
        self.table = table
        self.limit = limit.within(self.models)
        self.right_to_left = tuple(right_to_left) or (False,) * len(self.models)
        self.chosen = chosen
        self.bleu_tokenize: BleuTokenizer = bleu_tokenize

    @property
    def reading(self) -> AlignmentReading:
        """The attention weights that align words: those that training chose, or else `default_reading`.

        Raises:
            ConfigError: the model has no attention.
        """
        return self.chosen or default_reading(self.model)

    def _rows(self) -> list[tuple[str, str]]:
        count = sum(parameter.numel() for parameter in self.model.parameters())
        name = type(self.model).__name__
        rows = [("model", name if len(self.models) == 1 else f"{len(self.models)} models, the first a {name}")]
        rows += [("parameters", f"{count:,}"), ("vocabulary", f"{self.tokenizer.size:,} tokens")]
        return [*rows, ("longest source", f"{self.longest:,} tokens")]

    def __repr__(self) -> str:
        """Return the kind of model and its sizes."""
        return f"Translator({', '.join(f'{name}: {text}' for name, text in self._rows())})"

    def _repr_html_(self) -> str:
        """Return the kind of model and its sizes for a notebook."""
        return table(self._rows())

    @classmethod
    def load(
        cls, run: str | Path | Sequence[str | Path], device: str | torch.device = "cpu", *, average: int = 1
    ) -> "Translator":
        """Load the best checkpoint of a run, or one checkpoint; several runs, or their folder, form an ensemble.

        Args:
            run: run folder, or one checkpoint in it; or several; or the folder of an ensemble.
            device: compute device.
            average: number of newest checkpoints of each run whose weights are averaged; 1 uses the best checkpoint.

        Returns:
            The translator.

        Raises:
            CheckpointError: a checkpoint is missing, incomplete, corrupted or of another task; there are fewer than
                `average`; or the runs have different tokenizers or columns.
            ConfigError: the device is not available.
        """
        paths = [run] if isinstance(run, str | Path) else run
        members = [member for path in paths for member in members_of(Path(path))]
        if not members:
            raise CheckpointError("run", "at least one", "none", "Give the folder that training wrote.")
        checkpoints = [(path, load_trained(path)) for path in members]
        return cls.ensemble([(path, _averaged(path, trained, device, average)) for path, trained in checkpoints])

    @classmethod
    def of(
        cls, trained: Trained, device: str | torch.device = "cpu", weights: Mapping[str, Tensor] | None = None
    ) -> "Translator":
        """Build the model of a checkpoint, see `Answerer.of`; `weights` replace its own."""
        config = trained.contents.config
        longest, columns = config.get("longest"), config.get("table")
        table = None if columns is None else _word_table(columns, trained.folder)
        model = rebuild(
            lambda: build_model(build(TranslationConfig, trained.model_table, "model"), trained.tokenizer, table),
            trained,
            device,
            weights,
        )
        longest = longest if isinstance(longest, int) else 256
        chosen = stored_reading(trained.contents.figures)
        limit = LengthLimit.stored(config.get(STORED), str(trained.folder))
        bleu = build(BleuSettings, {"bleu_tokenize": config.get("bleu_tokenize")}, "config.json").bleu_tokenize or WMT
        return cls(
            model,
            trained.tokenizer,
            longest,
            table=table,
            right_to_left=(config.get("direction") == "back",),
            chosen=chosen,
            limit=limit,
            bleu_tokenize=bleu,
        )

    @classmethod
    def ensemble(cls, members: Sequence[tuple[Path, "Translator"]]) -> "Translator":
        """Combine translators into an ensemble.

        Args:
            members: at least one, each with the path of its run, for messages.

        Raises:
            CheckpointError: they have different tokenizers or columns.
        """
        (first_run, first), *others = members
        for run, other in others:
            if other.tokenizer.to_json() != first.tokenizer.to_json():
                hint = "Train the others with " + setting("tokenizer_from") + " the first, or use each run alone."
                raise CheckpointError(str(run), f"the tokenizer of {first_run}", "another one", hint)
            if other.table != first.table:
                hint = "Train all of them with the same columns and separators, or use each run alone."
                raise CheckpointError(str(run), f"the columns of {first_run}", "other ones", hint)
        longest = min(member.longest for _, member in members)
        right_to_left = [direction for _, member in members for direction in member.right_to_left]
        networks = [other.model for _, other in others]
        limit = LengthLimit.all(member.limit for _, member in members)
        return cls(
            first.model,
            first.tokenizer,
            longest,
            networks,
            first.table,
            right_to_left,
            first.chosen,
            limit,
            first.bleu_tokenize,
        )

    def translate(self, lines: Sequence[str], how: Decoding | None = None, *, beam: int = 1) -> list[str]:
        """Translate lines.

        Args:
            lines: source sentences.
            how: every setting of decoding; None for `Decoding(beam)`.
            beam: beam width; 1 is greedy. Only used if `how` is None.

        Returns:
            One translation per line, in order; an empty line gives an empty one. If some are cut at the limit
            (`Decoding.max_tokens`), a `CutWarning` is issued.

        Raises:
            DataError: a line is too long; the message gives its number.
            ConfigError: a setting is outside its range.
        """
        translations = self.translate_fully(lines, how or Decoding(beam))
        warn_cut(translation.finished for translation in translations)
        return [translation.text for translation in translations]

    def translate_fully(
        self, lines: Sequence[str], how: Decoding = _GREEDY, *, attention: bool = False
    ) -> list[Translation]:
        """Translate lines, with scores, tokens and optionally attention.

        Args:
            lines: source sentences.
            how: decoding settings; of several translations the best is returned.
            attention: whether to compute the attention weights of each target token.

        Returns:
            One translation per line, in order.

        Raises:
            DataError: a line is too long; the message gives its number.
            ConfigError: attention is requested of a model without attention.
        """
        return [best for best, *_ in self.translate_best(lines, how, attention=attention)]

    def translate_best(
        self,
        lines: Sequence[str],
        how: Decoding = _GREEDY,
        *,
        attention: bool = False,
        first: int = 1,
        keys: RowKeys | None = None,
        session: DecodingSession | None = None,
    ) -> list[list[Translation]]:
        """Return the n best translations of each line.

        Args:
            lines: source sentences.
            how: decoding settings.
            attention: whether to compute the attention weights of each target token.
            first: number of the first line, for messages.
            keys: random keys for lines that come part by part, so that a repeated line gets other samples.
            session: keeps packed weights from call to call, while the model does not change; None for this call alone.

        Returns:
            The translations of each line, best first: `how.n_best`, or fewer if there are no more.

        Raises:
            DataError: a line is too long; the message gives its number.
            ConfigError: attention is requested of a model without attention, or a setting needs other models.
        """
        if (how.source_language, how.target_language) != (None, None):
            translator = copy(self)
            translator.tokenizer = self.tokenizer.with_languages(how.source_language, how.target_language)
            how = replace(how, source_language=None, target_language=None)
            return translator.translate_best(lines, how, attention=attention, first=first, keys=keys, session=session)
        lines = expect_texts(lines, "lines")
        texts = [self.symbols(line, number) for number, line in enumerate(lines, start=first)]
        sources = list[OpenSource]()
        for number, text in enumerate(texts, start=first):
            sources.append(self.encode(text))
            expect_length(Place(None, number), len(sources[-1].ids), self.longest, self.tokenizer)
        if how.sampling is not None and len(set(self.right_to_left)) > 1:
            hint = "Translate with the runs of one direction."
            raise ConfigError(setting("sample"), "models of one direction", "models of both", hint)
        if how.mean != Decoding.mean and max(Counter(self.right_to_left).values()) == 1:
            hint = "There is nothing to average: omit it, or give several runs."
            raise ConfigError(setting("mean"), "several models of one direction", "one", hint)
        if how.max_tokens is not None and self.limit.most is not None and how.max_tokens > self.limit.most:
            hint = "It has no more positions: omit it for as many as they hold."
            raise ConfigError("max_tokens", f"at most {self.limit.most:,} for this model", f"{how.max_tokens:,}", hint)
        if how.ban_unknown and (self.tokenizer.unk < 0 or self.tokenizer.unk in self.tokenizer.never_written):
            hint = "Omit it: it has no unknown token."
            raise ConfigError("ban_unknown", "a model that can write an unknown token", self.tokenizer.kind, hint)
        with opened(session) as open_session:
            hypotheses = self._decode_different(sources, how, keys, open_session)
        rows = zip(lines, texts, sources, hypotheses, strict=True)
        translations = [
            [self._translation(line, text, source, hypothesis, attention, how) for hypothesis in ranked]
            for line, text, source, ranked in rows
        ]
        if how.unknown is None or how.sampling is not None:
            return translations
        # Replacing unknown tokens can make texts the same.
        return [_different(ranked, lambda one: one.text) for ranked in translations]

    def symbols(self, line: str, number: int = 1) -> str:
        """Return the text that the tokenizer reads: the line, or the symbols of its columns; "" for white space alone.

        Args:
            line: a line to translate.
            number: its number, for messages.

        Raises:
            DataError: the line lacks a column, or a symbol in one.
        """
        if not line.strip():
            return ""
        return line if self.table is None else self.table.source_symbols(line, Place(None, number))

    def attention(
        self, source: Sequence[int], target: Sequence[int], reading: AlignmentReading | None = None
    ) -> Tensor:
        """Return the attention weights of each target token.

        Args:
            source: ids of the source.
            target: ids of the target, without begin and end tokens.
            reading: the weights to read; None for those of `reading`.

        Returns:
            Weights (T + 1, S): one row per token and one for the end token.

        Raises:
            ConfigError: the model has no cross-attention, or the head does not exist.
        """
        reading = reading or self.reading
        from qkv.recording import record

        with torch.no_grad(), record(self.model, layers=[reading.layer]) as trace:
            self.model(*self._inputs(source, target))
        weights_TS = reading.of(trace.weights(reading.layer)[0])
        if self.right_to_left[0]:
            weights_TS = torch.cat([weights_TS[:-1].flip(0), weights_TS[-1:]])
        return weights_TS[:, : len(source)].float().cpu()

    def export_facts(self, to: str) -> dict[str, Any]:
        """Return what `about.json` of an export says, see `qkv.tasks.task.Answerer`.

        Raises:
            UnsupportedError: the program reads one source, and the model has separate features.
        """
        if to != "transformers" and self.table is not None and self.table.features == "separate":
            hint = "Train with " + setting("features", "front") + "."
            raise UnsupportedError(setting("to"), "a model with one source", "separate features", hint)
        facts: dict[str, Any] = {"task": "translate", "longest": self.longest, "labels": []}
        facts["direction"] = -1 if self.right_to_left[0] else 1
        facts["longest_targets"] = self.limit.to_json_value()
        facts["longest_answer"] = int(self.limit(torch.tensor(self.longest, device="cpu")))
        if self.model.alignment_layer is not None:
            reading = self.reading
            facts["alignment"] = {"layer": reading.layer, "head": reading.head, "when": reading.when}
        return facts

    def score_files(self, files: TranslateEvaluation) -> Scored:
        """Score the model on files, with the code of its training.

        Args:
            files: as `qkv evaluate` is given them.

        Returns:
            The figures, and the translations.

        Raises:
            DataError: a file is invalid; the message gives file and line.
            ConfigError: a file is missing, or a setting is invalid.
        """
        from qkv.tasks.translate.scoring import score_translations

        return score_translations(self, files)

    def scene(self, text: str, tokens: int | None = None) -> "Scene":
        """Translate a text, and return what every layer attends to, for the viewer.

        Args:
            text: one line.
            tokens: number of tokens to read; None for all.

        Returns:
            The scene of the sequences "source" and "target"; row t is the step that wrote token t.

        Raises:
            DataError: the text has no tokens, or is too long for the model.
            ConfigError: the model has no attention.
        """
        from qkv.tasks.translate.scene import translated_scene

        return translated_scene(self, text, tokens)

    def in_page(self) -> "tuple[Translator, LiveModel]":
        """Return the translator with the weights of a page, and what the page needs, see `ComputesInPage`."""
        from qkv.tasks.translate.live import page_of
        from qkv.view.live import lacks, rounded_to_int8

        if len(self.models) > 1 or self.right_to_left[0] or self.table is not None:
            raise lacks("an ensemble, columns or text from right to left", "Give one run that reads plain lines.")
        rounded = copy(self)
        rounded.model = rounded_to_int8(self.model)
        rounded.models = (rounded.model,)
        return rounded, page_of(rounded.model, self.tokenizer, self.longest, self.limit)

    def page_answers(self, texts: Sequence[str]) -> list[str]:
        """Return the greedy translation of each text."""
        return [translation.text for translation in self.translate_fully(texts)]

    def origins(self, source: Sequence[int], target: Sequence[int]) -> tuple[int | None, ...] | None:
        """Return which source tokens target tokens were copied from.

        Args:
            source, target: ids, as for `attention`.

        Returns:
            For each target token, the index of the source token with the largest part in it, if more than half of its
            probability was copied; None if it was generated.
        """
        from qkv.models.copying import CopyingTranslator

        if not isinstance(self.model, CopyingTranslator):
            return None
        shares, indices = self.model.origins(*self._inputs(source, target))
        pairs = zip(shares[0].tolist(), indices[0].tolist(), strict=True)
        copied = tuple(index if share > 0.5 else None for share, index in pairs)
        return copied[::-1] if self.right_to_left[0] else copied

    def _inputs(self, source: Sequence[int], target: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the model reads: a source (1, S), its length (1,), and a target as the model writes it (1, T)."""
        device = device_of(self.model)
        source_1S, lengths = collate_sources([source], self.tokenizer.pad, device)
        written = reversed(target) if self.right_to_left[0] else target
        target_1T = torch.tensor([[self.tokenizer.bos, *written]], device=device)
        return source_1S, lengths, target_1T

    def with_columns(self, source_col: int | None = None, features_col: int | None = None) -> "Translator":
        """Return a translator for lines of other columns; the column of the target is not read.

        Args:
            source_col, features_col: numbers from 1; None for those of its training.

        Raises:
            ConfigError: it was not trained on columns, or a column is out of range.
        """
        if source_col is None and features_col is None:
            return self
        if (table := self.table) is None:
            raise reads_no_columns("features_col" if source_col is None else "source_col")
        source = table.source_col if source_col is None else source_col
        features = table.features_col if features_col is None else features_col
        return self.with_table(replace(table, source_col=source, features_col=features, target_col=_UNREAD_COLUMN))

    def with_table(self, table: WordTable | None) -> "Translator":
        """Return the same models for lines with other columns, or for text that is split into symbols (None)."""
        translator = copy(self)
        translator.table = table
        return translator

    def encode(self, text: str) -> OpenSource:
        """Return the tokens of a source, see `symbols`; a model that copies numbers words beyond its vocabulary."""
        if getattr(self.model.config, "copy", "none") != "none":
            return encode_source(text, self.tokenizer)
        return OpenSource(tuple(self.tokenizer.source.encode(text)), ())

    def _decode_different(
        self, sources: Sequence[OpenSource], how: Decoding, keys: RowKeys | None, session: DecodingSession
    ) -> list[list[Hypothesis]]:
        """Decode; of a beam the n best of different texts, for which it is widened where some are the same."""
        hypotheses = self._decode(sources, how, keys, session)
        count, width = how.n_best, how.beam
        if count == 1 or how.sampling is not None:
            return hypotheses

        def of_texts(source: OpenSource, ranked: Sequence[Hypothesis]) -> list[Hypothesis]:
            return _different(ranked, lambda one: decode_open(one.ids, self.tokenizer, source.unknown))

        different = list(map(of_texts, sources, hypotheses))
        missing = [index for index, ranked in enumerate(different) if len(ranked) < min(count, len(hypotheses[index]))]
        while missing and width < _WIDER * how.beam:
            width *= 2
            wide = replace(how, beam=width, n_best=width)
            wider = self._decode([sources[index] for index in missing], wide, keys, session)
            for index, ranked in zip(missing, wider, strict=True):
                different[index] = of_texts(sources[index], ranked)
            missing = [index for index in missing if len(different[index]) < count]
        return [ranked[:count] for ranked in different]

    def beginning(self, source: OpenSource, prefix: str = "") -> list[int]:
        """Return the tokens that a translation begins with: the code of its language, and those of a prefix.

        Raises:
            ConfigError: a model writes right to left, or cannot write them.
        """
        imported = self.tokenizer.imported
        if not prefix and (imported is None or imported.forced < 0):
            return []
        if any(self.right_to_left):
            hint = "Translate with models that write left to right."
            raise ConfigError("prefix", "models that write left to right", "one that writes right to left", hint)
        text = prefix if self.table is None else self.table.text_symbols(prefix, "prefix")
        tokenizer = self.tokenizer
        ids = list(
            encode_target(text, tokenizer, source.unknown) if source.unknown else tokenizer.encode(text, target=True)
        )
        expect_length(setting("prefix"), len(ids), self.longest, tokenizer)
        if self.tokenizer.unk in ids:
            written = surfaces(text, self.tokenizer)[ids.index(self.tokenizer.unk)]
            hint = "Begin with words of the training targets."
            raise ConfigError("prefix", "tokens of the model's vocabulary", repr(written)[:80], hint)
        return ids

    def _decode(
        self, encoded: Sequence[OpenSource], how: Decoding, row_keys: RowKeys | None, session: DecodingSession
    ) -> list[list[Hypothesis]]:
        sources = [source.ids for source in encoded]
        prefixes = [self.beginning(source, how.prefix or "") for source in encoded]
        filled = [index for index, ids in enumerate(sources) if ids]
        hypotheses = [[Hypothesis((), 0.0)] for _ in sources]
        if filled:
            filled_sources = [sources[index] for index in filled]
            keys = list[list[int]]()
            if how.sampling is not None:
                row_keys = row_keys or RowKeys()
                keys = [row_keys.of(filled_sources, draw) for draw in range(how.n_best)]
            # A beam repeats each source as many times as it is wide.
            batches = inference_batches([len(ids) * how.beam for ids in filled_sources], _BATCH_TOKENS)
            results = []
            for batch in counted(batches):
                batch_sources = [filled_sources[index] for index in batch]
                batch_keys = [[row[index] for index in batch] for row in keys]
                batch_prefixes = [prefixes[filled[index]] for index in batch]
                results.append(self._decode_batch(batch_sources, batch_keys, batch_prefixes, how, session))
            for index, ranked in zip(filled, restore_order(batches, results), strict=True):
                hypotheses[index] = [one.ended_at(self.tokenizer.other_ends) for one in ranked]
        return hypotheses

    def _decode_batch(
        self,
        sources: Sequence[Sequence[int]],
        keys: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        how: Decoding,
        session: DecodingSession,
    ) -> list[list[Hypothesis]]:
        device = device_of(self.model)
        source_BS, lengths_B = collate_sources(sources, self.tokenizer.pad, device)
        settings: dict[str, Any] = {"bos": self.tokenizer.bos, "eos": self.tokenizer.eos, "session": session}
        never = (*self.tokenizer.never_written, *([self.tokenizer.unk] if how.ban_unknown else []))
        limit = how.limit(lengths_B, self.limit).clamp(min=max(map(len, prefixes), default=0) + 1)
        settings |= {"limit": limit, "never": never, "prefixes": prefixes}
        left_to_right, right_to_left = (
            [model for model, backward in zip(self.models, self.right_to_left, strict=True) if backward is direction]
            for direction in (False, True)
        )
        # With both directions, the models of each direction propose every hypothesis of their beam.
        wide = replace(how, n_best=max(how.n_best, how.beam)) if left_to_right and right_to_left else how
        hypotheses = [
            decode(models, source_BS, lengths_B, keys, wide, **settings) if models else []
            for models in (left_to_right, right_to_left)
        ]
        if not right_to_left:
            return hypotheses[0]
        from qkv.decode.agreement import Agreement, reversed_hypothesis

        if not left_to_right:
            return [[reversed_hypothesis(hypothesis) for hypothesis in row] for row in hypotheses[1]]
        first, second = (as_stepper(models, how.mean) for models in (left_to_right, right_to_left))
        agreement = Agreement(first, second, self.tokenizer.bos, self.tokenizer.eos)
        return [row[: how.n_best] for row in agreement.choose(source_BS, lengths_B, *hypotheses)]

    def _translation(
        self, line: str, symbols: str, source: OpenSource, hypothesis: Hypothesis, attention: bool, how: Decoding
    ) -> Translation:
        shows = attention and bool(source.ids)
        ids, unknown = hypothesis.ids, source.unknown
        if how.unknown is not None and source.ids and self.tokenizer.unk in ids:
            ids, unknown = self._replaced(symbols, source, ids, how.unknown)
        written = decode_open(ids, self.tokenizer, unknown)
        return Translation(
            source=line,
            text=written if self.table is None else self.table.target_text(written),
            score=hypothesis.score,
            finished=hypothesis.finished,
            source_tokens=tuple(pieces_open(source.ids, self.tokenizer.source, source.unknown)),
            target_tokens=(*pieces_open(ids, self.tokenizer, unknown), shown_end(hypothesis.finished)),
            weights=self.attention(source.ids, hypothesis.ids) if shows else None,
            ranked=hypothesis.ranked,
            origins=self.origins(source.ids, hypothesis.ids) if shows else None,
        )

    def _replaced(
        self, line: str, source: OpenSource, target: tuple[int, ...], reading: AlignmentReading
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Number each unknown token of the target by the source word it was aligned to, and return these words."""
        tokenizer = self.tokenizer
        aligned = self.attention(source.ids, target, reading).argmax(-1).tolist()
        written = surfaces(line, tokenizer.source)
        words = (*source.unknown, *(written[index] for index in aligned))
        first = tokenizer.size + len(source.unknown)
        ids = tuple(first + index if number == tokenizer.unk else number for index, number in enumerate(target))
        return ids, words


def _different(ranked: Iterable[R], text: Callable[[R], str]) -> list[R]:
    """Return the first of each text."""
    first: dict[str, R] = {}
    for one in ranked:
        first.setdefault(text(one), one)
    return list(first.values())


def _averaged(run: Path, trained: Trained, device: str | torch.device, average: int) -> Translator:
    """Build the model of a checkpoint of a run, with the average weights of the newest ones if there are several."""
    expect_task(trained, "translate")
    if average < 1:
        raise ConfigError(setting("average"), "at least 1", f"{average}", "1 uses the best checkpoint.")
    if average == 1:
        return Translator.of(trained, device)
    if is_checkpoint(run):
        hint = "Give the run folder."
        raise CheckpointError(str(run), "a run folder, whose checkpoints can be averaged", "one checkpoint", hint)
    from qkv.checkpoint.average import average_checkpoints, last_checkpoints

    return Translator.of(trained, device, average_checkpoints(last_checkpoints(run, average)))


def _word_table(columns: object, folder: Path) -> WordTable:
    try:
        return build(WordTable, columns if isinstance(columns, Mapping) else {"table": columns}, "table")
    except ConfigError as error:
        raise CheckpointError(str(folder), "columns in config.json", str(error)[:200], OTHER_VERSION) from error
