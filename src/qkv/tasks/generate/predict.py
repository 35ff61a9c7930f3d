"""A trained language model: continues prompts, and measures the likelihood of texts."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, cast, final

import torch
from torch import Tensor

from qkv.data.batches import collate_sources, device_of, in_batches
from qkv.data.segments import SPECIALS
from qkv.data.text import read_text
from qkv.data.tokenizer import Tokenizer
from qkv.decode.beam import Beam
from qkv.decode.beam import beam as search
from qkv.decode.constraints import Constraining, repeating
from qkv.decode.greedy import greedy
from qkv.decode.likeliest import expect_numbers
from qkv.decode.prompted import PaddedReader, Prompted
from qkv.decode.protocol import Stepper
from qkv.decode.sampling import Sampling, row_keys, sample
from qkv.errors import ConfigError, DataError, QkvError, setting
from qkv.metrics.figure import Figure
from qkv.models.language_model import LanguageModel
from qkv.settings import build
from qkv.tasks.corpora.text import TextInMemory
from qkv.tasks.generate.model import Config, build_model
from qkv.tasks.generate.scoring import TextModel, judge
from qkv.tasks.generate.settings import TEMPERATURE, TOKENS, GenerateEvaluation, GenerateRequest, LongPrompt
from qkv.tasks.python_values import as_source, expect_texts, text_line
from qkv.tasks.runs import Trained, rebuild
from qkv.tasks.task import Scored
from qkv.tasks.text_attention import last_self_attention, read_scene
from qkv.tasks.tokenizing import report_unknown
from qkv.values.checked import answering

if TYPE_CHECKING:
    from qkv.view.live import LiveModel
    from qkv.view.scene import Scene

_ROWS = 64
_PAGE_TOKENS = 20
"""Tokens that are compared before and after the weights of a page are rounded."""


@final
@answering
class Generator:
    """A language model with its tokenizer, ready to use.

    Args:
        model: the network.
        tokenizer: text to tokens and back.

    Example:
        >>> import qkv  # doctest: +SKIP
        >>> qkv.load("runs/plays").generate(["KING:"], tokens=100, temperature=0.8)  # doctest: +SKIP
        ['KING:\\nWhat say you, my lord? ...']
    """

    def __init__(self, model: TextModel, tokenizer: Tokenizer) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer

    @classmethod
    def of(cls, trained: Trained, device: str | torch.device = "cpu") -> "Generator":
        """Build the model of a checkpoint, see `Answerer.of`."""
        model = rebuild(
            lambda: build_model(build(Config, trained.model_table, "model"), trained.tokenizer.size), trained, device
        )
        return cls(model, trained.tokenizer)

    def generate(
        self,
        prompts: Sequence[str],
        *,
        tokens: int | None = None,
        temperature: float = TEMPERATURE,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        beam: int = 1,
        no_repeat_ngram: int | None = None,
        long_prompt: LongPrompt = "refuse",
    ) -> list[str]:
        """Continue each prompt, independently of the other prompts and their order.

        Text that exceeds the model's context continues from the context's last half. A beam, and a published model,
        end at the end token, and stay within the context.

        Args:
            prompts: texts of at least one token each.
            tokens: number of tokens to add; None for 200, or for what the context holds, of text that
                cannot exceed it.
            temperature: scores are divided by it: below 1 for likelier text, 1 for the model's own distribution; 0
                takes the most likely token.
            top_k: sample from the k most likely tokens only.
            top_p: sample from the most likely tokens with this total probability only.
            seed: random seed.
            beam: beam width; more than 1 takes the likeliest continuation that a beam finds, per token, and draws
                nothing.
            no_repeat_ngram: n; no n tokens in a row are written twice, and none of the prompt again. None for no limit.
            long_prompt: whether to "refuse" a prompt longer than the context, or read only its last tokens ("window").

        Returns:
            Each prompt with its continuation.

        Raises:
            DataError: a prompt is empty, too long, or has characters that the model does not know.
            ConfigError: a number is outside its range, or a setting of sampling is given with a beam.
        """
        _check(tokens=tokens, beam=beam, no_repeat_ngram=no_repeat_ngram, long_prompt=long_prompt)
        sampling = Sampling(temperature, top_k, top_p, seed)
        prompts = expect_texts(prompts, "prompts")
        sources = [self._encode(prompt, long_prompt) for prompt in prompts]
        if beam != 1:
            _expect_no_sampling(sampling)
        if beam != 1 or self.tokenizer.imported is not None:
            added = self.continuations(
                sources, tokens=tokens, sampling=sampling, beam=beam, no_repeat_ngram=no_repeat_ngram
            )
            texts = ("".join(self.tokenizer.decode_stream(*pair)) for pair in zip(sources, added, strict=True))
            return [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
        keys = row_keys(sources)
        completed = [""] * len(prompts)
        for indices in _by_length(sources):
            draws = self._sample_endlessly(
                [sources[index] for index in indices], [keys[index] for index in indices], sampling, no_repeat_ngram
            )
            # One row of token ids per step.
            steps = [next(draws) for _ in range(tokens or TOKENS)]
            for index, ids in zip(indices, zip(*steps, strict=True) if steps else [()] * len(indices), strict=True):
                completed[index] = prompts[index] + "".join(self.tokenizer.decode_stream(sources[index], ids))
        return completed

    def stream(
        self,
        prompt: str,
        *,
        tokens: int | None = None,
        temperature: float = TEMPERATURE,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        no_repeat_ngram: int | None = None,
        long_prompt: LongPrompt = "refuse",
    ) -> Iterator[str]:
        """Continue a prompt, yielding the text as it is generated; the same text as from `generate`.

        Args:
            prompt, tokens, temperature, top_k, top_p, seed, no_repeat_ngram, long_prompt: as for `generate`.

        Returns:
            The continuation in pieces, without the prompt.

        Raises:
            DataError, ConfigError: as for `generate`, before the first piece.
        """
        _check(tokens=tokens, no_repeat_ngram=no_repeat_ngram, long_prompt=long_prompt)
        sampling = Sampling(temperature, top_k, top_p, seed)
        source = self._encode(prompt, long_prompt)
        if self.tokenizer.imported is not None:
            drawn = self._sampled_tokens(source, sampling, self._limit(tokens, source), no_repeat_ngram)
            return self.tokenizer.decode_stream(source, drawn)
        draws = self._sample_endlessly([source], row_keys([source]), sampling, no_repeat_ngram)
        return self.tokenizer.decode_stream(source, (next(draws)[0] for _ in range(tokens or TOKENS)))

    def continuations(
        self,
        sources: Sequence[list[int]],
        *,
        tokens: int | None = None,
        sampling: Sampling | None = None,
        beam: int = 1,
        no_repeat_ngram: int | None = None,
    ) -> list[list[int]]:
        """Continue prompts that are token ids, to the end token at most.

        Args:
            sources: at least one token each.
            tokens: the largest number of tokens to add, the end token included; None as for `generate`.
            sampling: how tokens are drawn; None for the likeliest one at each step.
            beam: beam width; more than 1 draws nothing.
            no_repeat_ngram: as for `generate`.

        Returns:
            The ids of each continuation, without the end token.

        Raises:
            DataError: a prompt leaves no room for so many tokens in the context.
            ConfigError: a number is outside its range.
        """
        _check(tokens=tokens, beam=beam, no_repeat_ngram=no_repeat_ngram)
        limits = [self._limit(tokens, ids) for ids in sources]
        sampling, keys = sampling or Sampling(temperature=0), row_keys(sources)
        continuations: list[list[int]] = [[] for _ in sources]
        padded = isinstance(self.model, LanguageModel)
        for indices in in_batches(range(len(sources)), _ROWS) if padded else _by_length(sources):
            rows, row_limits = [sources[i] for i in indices], [limits[i] for i in indices]
            batch = self._continue_batch(rows, [keys[i] for i in indices], row_limits, sampling, beam, no_repeat_ngram)
            for index, ids in zip(indices, batch, strict=True):
                continuations[index] = ids
        return continuations

    def attention(self, text: str) -> tuple[tuple[str, ...], Tensor]:
        """Return what each token of a text attends to in the last layer, the mean over its heads.

        Args:
            text: at least one token; of a text longer than the context its end is read.

        Returns:
            The tokens, and their weights (S, S), 0 for later tokens.

        Raises:
            DataError: the text is empty, or has characters that the model does not know.
        """
        ids = self._encode(text, "window")
        return tuple(self.tokenizer.pieces(ids)), last_self_attention(self, ids)

    def evaluate(self, text: str) -> list[Figure]:
        """Measure how well the model predicts a text, with the same code as training.

        Args:
            text: at least two tokens.

        Returns:
            Loss, perplexity and bits per character.

        Raises:
            DataError: the text is shorter.
            QkvError: the model's scores are NaN.
        """
        tokens = TextInMemory.of(text, self.tokenizer)
        if len(tokens.ids) < 2:
            raise DataError("text", "at least two tokens", f"{len(tokens.ids)}", "Give a longer text.")
        report_unknown([tokens.ids.tolist()], self.tokenizer.unk)
        figures = judge(self.model, tokens)
        expect_numbers(torch.tensor(figures[0].value, device="cpu"), "this text")
        return figures

    def score_files(self, files: GenerateEvaluation) -> Scored:
        """Score the model on files, with the code of its training.

        Args:
            files: as `qkv evaluate` is given them.

        Returns:
            The figures, and no lines: it is scored by the probability of each token.

        Raises:
            DataError: a file is invalid; the message gives file and line.
            ConfigError: a file is missing, or a setting is invalid.
        """
        if files.text is None:
            hint = "A language model is scored on plain text."
            raise ConfigError(setting("text"), "a file of plain text", "none", hint)
        return Scored(self.evaluate(read_text(as_source(files.text, "text", text_line))), ())

    def scene(self, text: str, tokens: int | None = None) -> "Scene":
        """Run the model on a text, and return what every layer attends to, for the viewer.

        Args:
            text: one text.
            tokens: number of tokens to read; None for all.

        Raises:
            DataError: the text has no tokens.
            ConfigError: the model has no attention.
        """
        return read_scene(self, self.tokenizer.encode(text)[:tokens], text)

    def export_facts(self, to: str) -> dict[str, Any]:
        """Return what `about.json` of an export says, see `qkv.tasks.task.Answerer`."""
        never = list(self._forbidden())
        return {"task": "generate", "longest": self.model.config.context, "labels": [], "never_written": never}

    def in_page(self) -> "tuple[Generator, LiveModel]":
        """Return the language model with the weights of a page, and what the page needs, see `ComputesInPage`."""
        from qkv.tasks.generate.live import page_of
        from qkv.view.live import rounded_to_int8

        rounded = Generator(rounded_to_int8(self.model), self.tokenizer)
        return rounded, page_of(rounded.model, self.tokenizer)

    def page_answers(self, texts: Sequence[str]) -> list[str]:
        """Return the likeliest continuation of each text."""
        return self.generate(texts, tokens=_PAGE_TOKENS, temperature=0)

    def _encode(self, prompt: str, long_prompt: LongPrompt) -> list[int]:
        ids = self.tokenizer.encode(prompt)
        context = self.model.config.context
        if not ids:
            raise DataError("prompt", "at least one token", "none", "For example, start with a newline.")
        if self.tokenizer.imported is None and self.tokenizer.unk in ids:
            got = f"{prompt[ids.index(self.tokenizer.unk)]!r}" if self.tokenizer.kind == "char" else "others"
            hint = "The model has never seen this character: remove it, or train with subwords."
            raise DataError("prompt", "characters of the training text", got, hint)
        if len(ids) > context and long_prompt != "window":
            hint = f"Shorten it, or read only its last {context:,} tokens (" + setting("long_prompt", "window") + ")."
            raise DataError("prompt", f"at most {context:,} tokens, the model's context", f"{len(ids):,}", hint)
        return ids[-context:]

    def _continue_batch(
        self,
        sources: list[list[int]],
        keys: list[int],
        limits: list[int],
        sampling: Sampling,
        beam: int,
        ngram: int | None,
    ) -> list[list[int]]:
        """Continue a batch of prompts to the end token."""
        device = device_of(self.model)
        source, lengths = collate_sources(sources, max(self.tokenizer.pad, 0), device)
        limit = torch.tensor(limits, device=device)
        settings: dict[str, Any] = {"bos": 0, "eos": self._end(), "limit": limit, "never": self._forbidden()}
        model: Stepper[Any] = Prompted(cast("PaddedReader", self.model))
        if ngram is not None:
            sink = self._forbidden()[0] if self._forbidden() else self.model.config.size
            model = Constraining(model, sink, ngram, prompted=True)
            settings["never"] = (*settings["never"], sink)
        if beam > 1:
            hypotheses = [ranked[0] for ranked in search(model, source, lengths, search=Beam(beam), **settings)]
        elif sampling.temperature == 0:
            hypotheses = greedy(model, source, lengths, **settings)
        else:
            sample_keys = torch.tensor(keys, device=device)
            hypotheses = sample(model, source, lengths, sampling=sampling, keys=sample_keys, **settings)
        return [list(hypothesis.ended_at(self._ends()).ids) for hypothesis in hypotheses]

    def _sampled_tokens(self, source: list[int], sampling: Sampling, limit: int, ngram: int | None) -> Iterator[int]:
        """Sample tokens one at a time, up to the end token, as `continuations` does."""
        draws = self._sample_endlessly([source], row_keys([source]), sampling, ngram)
        return takewhile(lambda token: token not in self._ends(), (next(draws)[0] for _ in range(limit)))

    def _limit(self, tokens: int | None, source: list[int]) -> int:
        """Return how many tokens a prompt gets; refuse more than fit in the context after it."""
        longest = self.model.config.context - len(source)
        if (tokens or 1) > longest:
            got, hint = f"{tokens or 1:,}", "Ask for fewer, or shorten the prompt."
            raise DataError("tokens", f"at most {longest:,}, to the end of the context", got, hint)
        return tokens or min(TOKENS, longest)

    def _end(self) -> int:
        """Return the end token; one beyond the vocabulary where the model has none."""
        return self.tokenizer.eos if self.tokenizer.eos >= 0 else self.model.config.size

    def _ends(self) -> tuple[int, ...]:
        """Return all end tokens."""
        return self._end(), *self.tokenizer.other_ends

    def _forbidden(self) -> tuple[int, ...]:
        """Return the tokens that are never written."""
        if self.tokenizer.imported is not None:
            return self.tokenizer.never_written
        return tuple(number for number in range(len(SPECIALS)) if number != self.tokenizer.eos)

    @torch.no_grad()
    def _sample_endlessly(
        self, sources: list[list[int]], keys: list[int], sampling: Sampling, ngram: int | None
    ) -> Iterator[list[int]]:
        """Generate tokens for sources of one length, without end."""
        device, context = device_of(self.model), self.model.config.context
        ids, rows = torch.tensor(sources, device=device), torch.tensor(keys, device=device)
        scores, state = self._read(ids)
        written, step = ids, 0
        while True:
            if ngram is not None:
                scores = _without_repeats(scores, written, ngram)
            tokens, gains = sampling.pick(scores, rows, step)
            expect_numbers(gains, f"token {step + 1} after the prompt")
            _expect_possible(gains, step)
            yield tokens.tolist()
            ids = torch.cat([ids, tokens[:, None]], 1)[:, -context:]
            written = written if ngram is None else torch.cat([written, tokens[:, None]], 1)
            if state.position < context:
                scores, state = self.model.step(tokens, state)
                scores = self._allowed(scores)
            else:
                scores, state = self._read(ids[:, -max(1, context // 2) :])
            step += 1

    def _read(self, ids: Tensor) -> tuple[Tensor, Any]:
        logits, state = self.model.read(ids)
        return self._allowed(logits[:, -1]), state

    def _allowed(self, scores: Tensor) -> Tensor:
        """Set the probability of tokens that are never written to zero: for a model of ours, of special tokens."""
        never = slice(len(SPECIALS)) if self.tokenizer.imported is None else list(self.tokenizer.never_written)
        scores[:, never] = -torch.inf
        return scores


def _without_repeats(scores: Tensor, written: Tensor, ngram: int) -> Tensor:
    """Set the probability of tokens that would repeat an n-gram to zero.

    Raises:
        ConfigError: nothing is left that can follow.
    """
    allowed = scores.masked_fill(repeating(written, ngram, scores.shape[-1]), -torch.inf)
    if (allowed.amax(-1) == -torch.inf).any():
        hint = "Give a larger number, or fewer tokens."
        raise ConfigError("no_repeat_ngram", "a token that may still follow", f"none with {ngram}", hint)
    return allowed


def _expect_no_sampling(sampling: Sampling) -> None:
    """Refuse settings of sampling together with a beam, which does not sample.

    Raises:
        ConfigError: there is one; the message names it.
    """
    usual = Sampling(TEMPERATURE)
    for name in ("temperature", "top_k", "top_p", "seed"):
        value = getattr(sampling, name)
        if value != getattr(usual, name) and (name, value) != ("temperature", 0):
            hint = "A beam takes the likeliest text and draws nothing: use either."
            raise ConfigError(setting(name), "no setting of sampling with " + setting("beam"), f"{value:g}", hint)


def _expect_possible(gains: Tensor, step: int) -> None:
    """Raise if no token has any probability: there is nothing to sample."""
    if (gains == -torch.inf).any():
        hint = "The model's parameters are too large: use an earlier checkpoint."
        got = f"none for token {step + 1} after the prompt"
        raise QkvError("model", "a token with nonzero probability", got, hint)


def _by_length(sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """Group sources by length: no row is padded."""
    lengths: dict[int, list[int]] = {}
    for index, source in enumerate(sources):
        lengths.setdefault(len(source), []).append(index)
    return [part for same_length in lengths.values() for part in in_batches(same_length, _ROWS)]


def _check(**settings: object) -> None:
    """Raise if a setting is outside the range that `qkv generate` allows."""
    build(GenerateRequest, settings)
