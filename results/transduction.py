"""Rows of short texts that are right or wrong as a whole: dates, reversed symbols, pronunciations, actions."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.data.corpus import Pair
from qkv.metrics.edits import token_error_rate
from qkv.metrics.matches import accuracy, exact_match
from qkv.metrics.translation import tokenized_bleu
from qkv.tasks.decoding import Decoding
from qkv.tasks.drawing import draw
from qkv.tasks.translator import Translation, Translator
from results.both_ways import translate, turned
from results.transduction_data import Parts, date_parts, pronunciation_parts, reverse_parts, scan_parts, write
from results.usage import run as timed

ROOT = Path(__file__).parent.parent
QKV = Path(sys.executable).parent / "qkv"
_SHOWN = 8


@dataclass(frozen=True)
class ShortRow:
    """One line of the table.

    Args:
        name: the row's name for `python -m results`.
        what: title shown to the reader.
        published: the published figure, as text.
        source: where the published figure is from.
        asked: the target, as text.
        parts: makes the pairs from the data folder.
        symbols: splits a target into symbols.
        errors: whether to report the share of wrong texts instead of right ones.
        beam: beam width.
        average: number of last checkpoints whose weights are averaged; 1 takes the best checkpoint.
        seeds: seeds of the trainings; several models decode as an ensemble.
        backward: seeds of trainings on reversed targets; both directions decide together.
        note: further notes for the reader.
    """

    name: str
    what: str
    published: str
    source: str
    asked: str
    parts: Callable[[Path], Parts]
    symbols: Callable[[str], list[str]] = list
    errors: bool = False
    beam: int = 1
    average: int = 1
    seeds: tuple[int, ...] = (0,)
    backward: tuple[int, ...] = ()
    note: str = ""

    @property
    def config(self) -> Path:
        """The settings of the training."""
        return ROOT / "results" / f"{self.name}.toml"

    @property
    def kept(self) -> Path:
        """The folder with the stored figures."""
        return ROOT / "results" / "runs" / self.name

    @property
    def record(self) -> Path:
        """The file with the stored figures."""
        return self.kept / "figures.json"


_SIGMORPHON = "SIGMORPHON 2021 task 1, medium, baseline: an ensemble of neural transducers"
_WORDS = "The 1,000 development words are scored; the checkpoint is chosen on words held out from training."
_SIDES = (
    "Half of the models write left to right and half right to left: each side proposes its six best, and the one with "
    "the largest sum of both sides' log-probabilities wins (`results/both_ways.py`)."
)
_FRENCH = (
    "Development words share their first five letters with training words less often than randomly held-out training "
    "words do (46 against 56 in 100; in Hungarian the first six, 44 against 54), because the data set keeps word "
    "families together. So variants were compared on 1,000 training words whose first five letters occur in no other "
    "training word, one model each, after its last update, in percent wrong. "
    "Baseline (scaled dot, hidden 128, dropout 0.4, 2,400 updates of 512 tokens): 11.8; **without label smoothing: "
    "10.0**. With smoothing: Muon 13.8; weight decay of 0.5 12.7; 15 % of the phones replaced by unknown 13.0; the "
    "embeddings (256) added to the encoder's states 10.3; right to left 11.7; 3,600 updates 11.1, and with an additive "
    "score 9.7; 900 updates of 2,048 tokens, hidden 192, dropout 0.3: 10.4. Without smoothing: additive, 2,400 updates "
    "9.3; scaled dot, hidden 192, 1,500 updates of 1,024 tokens, right to left 8.4. Three smoothed models of different "
    "score and size made the same mistake in 55 words: two left-to-right models together get 9.3 to 10.6 % wrong, but "
    "the last two above, one in each direction, 7.3 %. Writing one token per letter (up to three phones, aligned by "
    "expectation maximization), tried earlier, was 1.6 points worse than writing phones."
)
_LAKE = "Lake and Baroni 2018, the best model of the experiment"
_CORNERS = (
    "A turn and the following action form one target word (`I_TURN_LEFT I_WALK` is `LW`), so an action around a corner "
    "is as long as the turn alone."
)

_UNSEARCHED = (
    "The 1,000 development words are scored with the weights after the last update; 100 training words are held out "
    f"only to monitor training. {_SIDES} The settings are those found on French words."
)

ROWS = (
    ShortRow(
        "dates",
        "Dates, exact",
        "99.99 % of characters",
        "ageron/handson-ml3, chapter 16, LSTM without attention, 10,000 dates",
        "99.9 (aim 100)",
        lambda data: date_parts(),
        note="Neither the texts nor the days of the 10,000 test dates occur in training.",
    ),
    ShortRow(
        "reverse",
        "Reverse, exact",
        "95.2 BLEU",
        "Joey NMT's tutorial, LSTM of 64 with Luong's attention",
        "99 (aim 100)",
        lambda data: reverse_parts(),
        note="As in the tutorial, test sequences have up to 30 symbols and training ones up to 25.",
    ),
    ShortRow(
        "g2p_hun",
        "Pronunciation, Hungarian, wrong words",
        "1.5 (ensemble)",
        _SIGMORPHON,
        "2.5 (aim 1.5)",
        lambda data: pronunciation_parts(data / "g2p_sigmorphon2021", "hun", held_out=100),
        symbols=str.split,
        errors=True,
        beam=6,
        seeds=(0, 1),
        backward=(2, 3),
        note=_UNSEARCHED,
    ),
    ShortRow(
        "g2p_dut",
        "Pronunciation, Dutch, wrong words",
        "10.8 (ensemble)",
        _SIGMORPHON,
        "13 (aim 10.8)",
        lambda data: pronunciation_parts(data / "g2p_sigmorphon2021", "dut", held_out=100),
        symbols=str.split,
        errors=True,
        beam=6,
        seeds=(0, 1),
        backward=(2, 3),
        note=_UNSEARCHED,
    ),
    ShortRow(
        "g2p_fre",
        "Pronunciation, French, wrong words",
        "7.4 (ensemble)",
        _SIGMORPHON,
        "9 (aim 7.4)",
        lambda data: pronunciation_parts(data / "g2p_sigmorphon2021", "fre", held_out=100),
        symbols=str.split,
        errors=True,
        beam=6,
        seeds=(0, 1, 2),
        backward=(3, 4, 5),
        note=f"{_WORDS} {_SIDES} {_FRENCH}",
    ),
    ShortRow(
        "scan_simple",
        "SCAN, simple split, exact",
        "99.8",
        _LAKE,
        "99.8 (aim 100)",
        lambda data: scan_parts(data / "scan", "simple"),
        symbols=str.split,
        average=2,
        note=_CORNERS,
    ),
    ShortRow(
        "scan_length",
        "SCAN, length split, exact",
        "20.8",
        f"{_LAKE}: a GRU of 50 with attention",
        "20.8 (aim 50)",
        lambda data: scan_parts(data / "scan", "length"),
        symbols=str.split,
        average=2,
        note=f"{_CORNERS} Four of five test commands contain an action around a corner three times, which no training "
        "command does: the model must transfer the counting from `turn around left thrice`, which training has.",
    ),
)


def run_row(row: ShortRow, data: Path, run: Path, *, train: bool) -> None:
    """Train a row, score it on its test pairs, and store figures, logs and a map in the repository.

    Args:
        row: the row to run.
        data: folder with the data sets.
        run: folder for its files and run folders.
        train: whether to train, or only score a finished run again.
    """
    parts = row.parts(data)
    for name, pairs in parts._asdict().items():
        write(pairs, run / f"{name}.tsv")
        if row.backward:
            write(turned(pairs), run / f"{name}-backward.tsv")
    seeds = (*row.seeds, *row.backward)
    commands = [_command(row, run, seed) for seed in seeds]
    if train and not any(_folder(run, seed).exists() for seed in seeds):
        (row.kept / "usage.json").unlink(missing_ok=True)
    for command in commands if train else ():
        timed(command, row.kept / "usage.json")
    for seed in seeds:
        for name in ("metrics.jsonl", "loss.png"):
            shutil.copy(_folder(run, seed) / name, row.kept / _numbered(name, seed))
    translator, *back = (
        Translator.load([_folder(run, seed) for seed in side], average=row.average)
        for side in (row.seeds, row.backward)
        if side
    )
    start = time.perf_counter()
    sources = [pair.source for pair in parts.test]
    found = (
        translate(translator, *back, sources, row.beam)
        if back
        else translator.translate_fully(sources, Decoding(row.beam))
    )
    record: dict[str, Any] = {
        "figures": judge(found, parts.test, row.symbols),
        "usage": json.loads((row.kept / "usage.json").read_text(encoding="utf-8")),
        "decoding_seconds": round(time.perf_counter() - start, 1),
        "parameters": sum(
            parameter.numel()
            for side in (translator, *back)
            for model in side.models
            for parameter in model.parameters()
        ),
        "commands": [" ".join(shown(part) for part in command) for command in commands] + _decoding(row),
        "machine": f"{os.cpu_count()} cores, PyTorch {torch.__version__}",
    }
    row.record.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    shown = translator.translate_fully([pair.source for pair in parts.test[:_SHOWN]], attention=True)
    draw(shown, row.kept / "alignment.html", terminal=False)
    draw(shown[:1], row.kept / "alignment.png", terminal=False)
    print(json.dumps(record["figures"], indent=1))


def judge(
    found: Sequence[Translation], pairs: Sequence[Pair], symbols: Callable[[str], list[str]] = list
) -> dict[str, float]:
    """Score texts.

    Args:
        found: model outputs.
        pairs: sources and correct targets.
        symbols: splits a target into symbols.

    Returns:
        In percent: exact texts; wrong ones; correct symbols by position and symbol errors; BLEU over symbols; and the
        number of texts that were cut at the length limit.
    """
    hypotheses, references = [each.text for each in found], [pair.target for pair in pairs]
    ours, theirs = [symbols(text) for text in hypotheses], [symbols(text) for text in references]
    places = [
        (h[at] if at < len(h) else None, symbol)
        for h, r in zip(ours, theirs, strict=True)
        for at, symbol in enumerate(r)
    ]
    exact = exact_match(hypotheses, references).value
    return {
        "exact": exact,
        "wrong": 100 - exact,
        "symbols_in_place": accuracy(*zip(*places, strict=True)).value,
        "symbol_errors": token_error_rate(ours, theirs).value,
        "symbol_bleu": tokenized_bleu(ours, theirs).value,
        "unfinished": sum(not each.finished for each in found),
    }


def _folder(run: Path, seed: int) -> Path:
    return run / f"seed-{seed}"


def _numbered(name: str, seed: int) -> str:
    stem, _, ending = name.partition(".")
    return name if seed == 0 else f"{stem}-{seed}.{ending}"


def _command(row: ShortRow, run: Path, seed: int) -> list[str]:
    order = "-backward" if seed in row.backward else ""
    flags = {
        "--data": run / f"train{order}.tsv",
        "--valid-data": run / f"valid{order}.tsv",
        "--config": row.config,
        "--seed": seed,
        "--out": _folder(run, seed),
    }
    return [str(QKV), "train", "translate", *(str(part) for pair in flags.items() for part in pair)]


def _decoding(row: ShortRow) -> list[str]:
    average = f" --average {row.average}" if row.average > 1 else ""
    beam = f" --beam {row.beam}" if row.beam > 1 else ""
    # Each side proposes a beam of translations; both then score them.
    most = f" --n-best {row.beam} --length-penalty 0 --mean log_probability" if row.backward else ""
    return [
        f"cut -f 1 runs/{row.name}/test.tsv | qkv translate {runs}{beam}{average}{most}"
        for runs in (
            " ".join(f"runs/{row.name}/seed-{seed}" for seed in side) for side in (row.seeds, row.backward) if side
        )
    ]


def shown(part: str) -> str:
    """Strip this machine's folders from a part of a command."""
    path = Path(part)
    if path == QKV:
        return "qkv"
    if not path.is_absolute():
        return part
    # Runs can be anywhere; the page names them as if they were here.
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else f"runs/{path.parent.name}/{path.name}"
