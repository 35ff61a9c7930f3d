"""Pronunciation from the plain TSV, one command for each language: single models, and the ensemble that they form."""

import json
import os
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.data.corpus import Pair
from qkv.data.word_table import WordTable
from qkv.metrics.edits import token_error_rate
from qkv.metrics.matches import exact_match
from qkv.tasks.decoding import Decoding
from qkv.tasks.drawing import draw
from qkv.tasks.members import members_of
from qkv.tasks.translator import Translation, Translator
from results.transduction import QKV, shown
from results.usage import run as timed

ROOT = Path(__file__).parent.parent
_FOLDER, _SHOWN = "g2p_sigmorphon2021", 4
_ALONE = Decoding(6, length_penalty=0.0)
_TOGETHER = Decoding(6, length_penalty=0.0, mean="log_probability")


@dataclass(frozen=True)
class SpokenRow:
    """One language.

    Args:
        name: the row's name for `python -m results`.
        what: title shown to the reader.
        file: the language in file names.
        settings: the settings file in this folder.
        models: number of models, half of them right to left.
        before: percent of words wrong, and minutes of processor time, of the row that this one replaces.
    """

    name: str
    what: str
    file: str
    settings: str
    models: int
    before: tuple[float, float]

    @property
    def kept(self) -> Path:
        """The folder with the stored figures."""
        return ROOT / "results" / "runs" / self.name

    @property
    def record(self) -> Path:
        """The file with the stored figures."""
        return self.kept / "figures.json"


ROWS = (
    SpokenRow("pronunciation_hun", "Hungarian", "hun", "pronunciation.toml", 4, (1.9, 8.3)),
    SpokenRow("pronunciation_dut", "Dutch", "dut", "pronunciation.toml", 4, (11.0, 8.3)),
    SpokenRow("pronunciation_fre", "French", "fre", "pronunciation_fre.toml", 6, (7.8, 20.0)),
)


def run_row(row: SpokenRow, data: Path, run: Path, *, train: bool) -> None:
    """Train a language, score each model alone and all together on the development words, and store the figures.

    Args:
        row: the language.
        data: folder with the data sets.
        run: the ensemble's folder.
        train: whether to train, or only score a finished run again.
    """
    files = {part: data / _FOLDER / f"{row.file}_{part}.tsv" for part in ("train", "dev")}
    settings = ROOT / "results" / row.settings
    command = [str(QKV), "train", "translate", "--data", str(files["train"]), "--config", str(settings)]
    command += ["--ensemble", str(row.models), "--both-directions", "--out", str(run)]
    if train:
        timed(command, row.kept / "usage.json")
    table = WordTable(target_sep=" ")
    pairs = table.read(files["dev"])
    runs = members_of(run)
    alone = [
        judge(Translator.load(member).over(None).translate_fully(_sources(pairs), _ALONE), pairs) for member in runs
    ]
    translator = Translator.load(run)
    start = time.perf_counter()
    found = translator.over(None).translate_fully(_sources(pairs), _TOGETHER)
    record: dict[str, Any] = {
        "ensemble": judge(found, pairs),
        "alone": {member.name: figures for member, figures in zip(runs, alone, strict=True)},
        "usage": json.loads((row.kept / "usage.json").read_text(encoding="utf-8")),
        "decoding_seconds": round(time.perf_counter() - start, 1),
        "parameters": sum(parameter.numel() for model in translator.models for parameter in model.parameters()),
        "commands": [
            " ".join(map(_shown, command)),
            f"qkv evaluate runs/{row.name} --data {_FOLDER}/{row.file}_dev.tsv --beam 6 --length-penalty 0 "
            "--mean log_probability",
        ],
        "machine": f"{os.cpu_count()} cores, PyTorch {torch.__version__}",
    }
    row.record.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for member in runs:
        shutil.copy(member / "metrics.jsonl", row.kept / f"metrics-{member.name}.jsonl")
    drawn = Translator.load(runs[0]).over(None).translate_fully(_sources(pairs[:_SHOWN]), attention=True)
    draw(drawn[:1], row.kept / "alignment.png", terminal=False)
    print(json.dumps(record["ensemble"], indent=1))


def judge(found: Sequence[Translation], pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the percentages of wrong words, and of wrong phones (edits per phone)."""
    texts, right = [each.text for each in found], [pair.target for pair in pairs]
    errors = token_error_rate([text.split() for text in texts], [text.split() for text in right])
    return {"wrong": 100 - exact_match(texts, right).value, "phone_errors": errors.value}


def _sources(pairs: Sequence[Pair]) -> list[str]:
    return [pair.source for pair in pairs]


def _shown(part: str) -> str:
    path = Path(part)
    return f"{_FOLDER}/{path.name}" if path.parent.name == _FOLDER else shown(part)


_HEAD = """## Pronunciation from the plain TSV, one command for each language

Percent of the 1,000 development words wrong. 100 training words, held out, chose everything there was to choose; the
settings are those of the rows above, which took scripts. Single models are those of the ensemble, half of which write
right to left, each with its own seed: mean, standard deviation and range. Processor time is that of the whole ensemble
on one thread.

| language | single models | ensemble | rows above | phones wrong | parameters | processor time | rows above |
|---|---|---|---|---|---|---|---|
"""


def section() -> str:
    """Return the section of `docs/results.md`."""
    done = [row for row in ROWS if row.record.exists()]
    if not done:
        return ""
    return f"{_HEAD}{''.join(map(_line, done))}\n{''.join(map(_details, done))}\n"


def _line(row: SpokenRow) -> str:
    record = json.loads(row.record.read_text(encoding="utf-8"))
    wrong, (before, minutes) = [each["wrong"] for each in record["alone"].values()], row.before
    single = f"{statistics.mean(wrong):.2f} ± {statistics.stdev(wrong):.2f} ({min(wrong):.1f} to {max(wrong):.1f})"
    return (
        f"| {row.what} | {len(wrong)}: {single} | **{record['ensemble']['wrong']:.2f}** | {before:.2f} "
        f"| {record['ensemble']['phone_errors']:.2f} | {record['parameters'] / 1e6:.1f} M "
        f"| {record['usage']['processor_seconds'] / 60:.1f} min | {minutes:.1f} min |\n"
    )


def _details(row: SpokenRow) -> str:
    record = json.loads(row.record.read_text(encoding="utf-8"))
    usage = record["usage"]
    commands = "\n".join(f"  - `{command}`" for command in record["commands"])
    return (
        f"- {row.what}: wall time {usage['wall_seconds'] / 60:.0f} min at a load of {usage['load'][1]:.0f} on "
        f"{usage['cores']} cores, decoding {record['decoding_seconds']} s; {record['machine']}; settings "
        f"[`results/{row.settings}`](../results/{row.settings})\n{commands}\n"
    )
