"""`docs/results.md`, written from the figures that are kept; a row that was not run is shown as not run."""

import json
from pathlib import Path
from typing import Any

from results import alignment, copying, labels, language, pointing, regression, transduction_page
from results.rows import ROWS, Row

_HEAD = """# Results

Made by `python -m results --data FOLDER`; never typed. Figures, logs and loss curves of each run are in `results/runs`.
Settings were chosen on validation data. BLEU is given twice: as the rival measured it, and detokenized and cased by
sacreBLEU.

| row | published | ours, measured alike | asked | sacreBLEU, cased | parameters | training | decoding |
|---|---|---|---|---|---|---|---|
"""


def write_table(path: Path) -> None:
    """Write the table.

    Args:
        path: the page.
    """
    done = [row for row in ROWS if row.record.exists()]
    lines = [_line(row) for row in ROWS]
    details = "".join(_details(row) for row in done)
    families = (language, transduction_page, labels, alignment, regression, pointing, copying)
    sections = "".join(family.section() for family in families)
    path.write_text(f"{_HEAD}{''.join(lines)}\n{details}{sections}".rstrip() + "\n", encoding="utf-8")


def _line(row: Row) -> str:
    published = f"{row.published:.2f} ({row.by})"
    if not row.record.exists():
        return f"| {row.what} | {published} | not run | {row.asked:.0f} | | | | |\n"
    record = json.loads(row.record.read_text(encoding="utf-8"))
    alike, cased = (record["figures"][name]["value"] for name in ("tokenized_bleu", "bleu"))
    minutes, seconds = record["training_seconds"] / 60, record["decoding_seconds"]
    size = record["parameters"] / 1e6
    return (
        f"| {row.what} | {published} | **{alike:.2f}** | {row.asked:.0f} | {cased:.2f} | {size:.1f} M "
        f"| {minutes:.0f} min | {seconds:.1f} s |\n"
    )


def _details(row: Row) -> str:
    record = json.loads(row.record.read_text(encoding="utf-8"))
    folder = f"../results/runs/{row.name}"
    return f"""## {row.what}

- published figure: {row.published:.2f}, {row.by}; {row.measured}
{_commands(record)}- settings: {_settings(row)}, seed 0
- signatures: `{record["figures"]["tokenized_bleu"]["signature"]}`, `{record["figures"]["bleu"]["signature"]}`
{_also(record)}{_note(row)}- machine: {record["machine"]}{_usage(record)}
- {_logs(row, folder)}

{_curves(row, folder)}

![What the model attends to in the first test sentence]({folder}/alignment.png)

"""


def _commands(record: dict[str, Any]) -> str:
    commands = record["commands"]
    if len(commands) == 1:
        return f"- command: `{commands[0]}`\n"
    return "- commands\n" + "".join(f"  - `{command}`\n" for command in commands)


def _settings(row: Row) -> str:
    return ", then ".join(f"[`results/{path.name}`](../results/{path.name})" for path in row.configs)


def _note(row: Row) -> str:
    penalty = f"- length penalty {row.length_penalty:g}, chosen on validation data\n" if row.length_penalty != 1 else ""
    return penalty + (f"- {row.note}\n" if row.note else "")


def _endings(row: Row) -> list[str]:
    return ["", "-then"][: len(row.configs)]


def _logs(row: Row, folder: str) -> str:
    names = [f"metrics{ending}.jsonl" for ending in _endings(row)]
    return ("log: " if len(names) == 1 else "logs: ") + ", ".join(f"[`{name}`]({folder}/{name})" for name in names)


def _curves(row: Row, folder: str) -> str:
    what = "Loss of training and validation, and BLEU"
    return "\n\n".join(
        f"![{what}{', from the weights of the first' if ending else ''}]({folder}/loss{ending}.png)"
        for ending in _endings(row)
    )


def _also(record: dict[str, Any]) -> str:
    """Another decoding than the rival's."""
    also = record.get("also")
    if also is None:
        return ""
    alike, cased = (also["figures"][name]["value"] for name in ("tokenized_bleu", "bleu"))
    return f"- by a beam of {also['beam']}: {alike:.2f}, sacreBLEU {cased:.2f}\n"


def _usage(record: dict[str, Any]) -> str:
    usage = record.get("usage")
    if usage is None:
        return ""
    return (
        f"; training took {usage['wall_seconds'] / 60:.0f} min, {usage['processor_seconds'] / 60:.0f} min of processor "
        f"time on {usage['threads']} thread{'s' if usage['threads'] > 1 else ''}, load {usage['load'][1]:.0f} on "
        f"{usage['cores']} cores"
    )
