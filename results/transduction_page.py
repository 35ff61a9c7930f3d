"""The section of `docs/project/results.md` on short texts that are right or wrong as a whole."""

import json
import math
from typing import Any

from qkv.settings import read_toml
from qkv.tasks.translate.recipe import RECIPE
from qkv.training.schedules import learning_rate
from results.transduction import ROWS, ShortRow

_HEAD = """## Short texts, right or wrong as a whole

Every figure is a percentage of whole test texts, scored once with settings chosen on pairs held out from training.
Processor time is that of the whole training on one thread. Wall time depends on the load of the shared machine, given
in parentheses.

| row | published | ours | target | also | parameters | processor time | wall time (load) |
|---|---|---|---|---|---|---|---|
"""


def section() -> str:
    """Return the table and the details of each row."""
    lines = "".join(_line(row) for row in ROWS)
    return f"{_HEAD}{lines}\n{''.join(_details(row) for row in ROWS if row.record.exists())}"


def _line(row: ShortRow) -> str:
    if not row.record.exists():
        return f"| {row.what} | {row.published} | not run | {row.asked} | | | | |\n"
    record = json.loads(row.record.read_text(encoding="utf-8"))
    figures, usage = record["figures"], record["usage"]
    wall = f"{usage['wall_seconds'] / 60:.0f} min ({usage['load'][1]:.0f} on {usage['cores']} cores)"
    return (
        f"| {row.what} | {row.published} | **{figures['exact']:.2f}** | {row.asked} "
        f"| {_also(figures)} | {record['parameters'] / 1e6:.1f} M "
        f"| {usage['processor_seconds'] / 60:.1f} min | {wall} |\n"
    )


def _also(figures: dict[str, Any]) -> str:
    shown = f"{figures['symbols_in_place']:.2f} % of symbols correct by position, BLEU {figures['symbol_bleu']:.2f}"
    return shown + (f", {figures['unfinished']} unfinished" if figures["unfinished"] else "")


def _details(row: ShortRow) -> str:
    record = json.loads(row.record.read_text(encoding="utf-8"))
    folder = f"../../results/runs/{row.name}"
    note = "".join(f"\n- {text}" for text in (row.note, *_resumed(row)) if text)
    commands = "\n".join(f"  - `{command}`" for command in record["commands"])
    return f"""### {row.what}

- published figure: {row.published}, {row.source}{note}
- command: `python -m results --data FOLDER --row {row.name}`, which writes the files and runs
{commands}
- settings: [`results/{row.name}.toml`](../../results/{row.name}.toml)
- machine: {record["machine"]}, {record["usage"]["threads"]} thread; decoding {record["decoding_seconds"]} s
- log: [`metrics.jsonl`]({folder}/metrics.jsonl)

![Loss of training and validation, and exact match]({folder}/loss.png)

![What the model attends to in the first test text]({folder}/alignment.png)

"""


def _resumed(row: ShortRow) -> list[str]:
    """Say that a run began as a longer one, if its log shows so: the command alone then gives a different run."""
    training = RECIPE.load_settings(read_toml(row.config)).training
    lines = [json.loads(line) for line in (row.kept / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rates = [(line["step"], line["learning_rate"]) for line in lines if line["kind"] == "train"]
    others = [step for step, rate in rates if not math.isclose(rate, learning_rate(training, step), rel_tol=1e-6)]
    if not others:
        return []
    return [
        f"up to update {max(others)} the learning rate was that of a longer run, which was then shortened to "
        f"{training.steps:,} updates: from scratch, the command gives slightly different figures"
    ]
