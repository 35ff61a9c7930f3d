"""The generated parts of pages, each between two marker comments.

docs/project/benchmarks.md has every row of the processor that was measured last; docs/understanding/planner.md has ten
rows of every processor, and README the first of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine import findings, store
from benchmarks.engine.findings import Cell, Rows
from benchmarks.engine.mechanisms import Size
from benchmarks.engine.plot import draw
from benchmarks.engine.rivals import COMPILED, FULL, FUSED
from benchmarks.engine.rows import ROWS, TABLE, TABLE_SIZES

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "project" / "benchmarks.md"
PLANNER = ROOT / "docs" / "understanding" / "planner.md"
README = ROOT / "README.md"
PLOT = store.FOLDER / "engine.svg"
BEGIN, END = "<!-- table: begin, made by python -m benchmarks.engine --write -->", "<!-- table: end -->"
SUMMARY = (
    ("additive (Bahdanau), 512 × 512, A = 128", "additive_512", FULL, "the full tensor in PyTorch"),
    ("Gaussian kernel, 4,096", "gaussian_4096", FULL, "`cdist` and softmax"),
    ("entmax 1.5, 4,096", "entmax_4096", FULL, "the `entmax` package"),
    ("plain, 8 heads, 256", "sdpa_scaled_dot_256", FUSED, "`scaled_dot_product_attention`"),
    ("causal, 8 heads, 256", "sdpa_causal_256", FUSED, "`scaled_dot_product_attention`"),
    ("dropout on the weights, 4,096", "sdpa_dropout_4096", FUSED, "`scaled_dot_product_attention`"),
    ("additive (Bahdanau), 512 × 512, A = 128", "additive_512", COMPILED, "the full tensor under `torch.compile`"),
    ("concatenation under mean, 16,384", "concat_mean_16384", FULL, "the full tensor in PyTorch"),
    ("Epanechnikov kernel in one dimension, 16,384", "epanechnikov_line_16384", FULL, "the full tensor in PyTorch"),
)
"""What pages call a row, its name, the rival, and what pages call the rival. The slowest row follows."""
README_ROWS = 2
"""How many of these rows README has, before the slowest."""
PROCESSORS = {"amd-zen3-avx2": "AMD Zen 3", "amd-zen5-avx512": "AMD Zen 5", "intel-avx512": "Intel Xeon"}
HEADING = "## Table"
PASSES = ("forward", "forward + backward")


def write_all() -> None:
    """Write the pages and the plot from the rows that are stored."""
    measured = store.every()
    write(next(iter(measured.values())))
    for page, table in summaries(measured).items():
        page.write_text(insert(page.read_text(encoding="utf-8"), table), encoding="utf-8")


def write(rows: Rows, page: Path = PAGE, plot: Path = PLOT) -> None:
    """Write the generated part of the page, and the plot.

    Args:
        rows: the stored rows.
        page: text outside the markers is left unchanged; missing markers are added at the end, below a heading.
        plot: where the plot is written.
    """
    draw(rows, plot)
    text = page.read_text(encoding="utf-8") if page.exists() else "# Performance\n"
    page.write_text(insert(text, generated(rows)), encoding="utf-8")


def summaries(measured: Mapping[str, Rows]) -> dict[Path, str]:
    """Return the tables of the pages that have a few rows of every processor.

    Args:
        measured: the stored rows by processor, the one that was measured last first.
    """
    return {README: _summary(measured, SUMMARY[:README_ROWS]), PLANNER: _summary(measured, SUMMARY)}


def _summary(measured: Mapping[str, Rows], rows: Sequence[tuple[str, str, str, str]]) -> str:
    """Return a table of these rows, and of the slowest row of the processor that was measured last."""
    newest = next(iter(measured.values()))
    worst = min((cell for cell in findings.cells(newest) if not cell.rival.startswith("qkv")), key=lambda c: c.middle)
    name, _, n = worst.row.rpartition("_")
    slowest = (f"{name.replace('_', ' ')}, 8 heads, {n}: the slowest row", worst.row, worst.rival, RIVALS[worst.rival])
    head = ["mechanism, number of keys", *(PROCESSORS[name] for name in measured), "against"]
    lines = [
        [label, *(_both(stored[row]["passes"], rival) for stored in measured.values()), against]
        for label, row, rival, against in (*rows, slowest)
    ]
    days = ", ".join(
        f"{PROCESSORS[name]} {max(row['day'] for row in rows.values())}" for name, rows in measured.items()
    )
    return f"{_markdown(head, lines)}\n\nMeasured: {days}."


def _both(passes: Mapping[str, Any], rival: str) -> str:
    return ", ".join(f"{_short(passes[what]['times'][rival]['middle'])} ×" for what in PASSES)


RIVALS = {FULL: "the full tensor in PyTorch", FUSED: "`scaled_dot_product_attention`"}
"""What these tables call a rival."""


def insert(text: str, part: str) -> str:
    """Insert the generated part between the markers of a page.

    Example:
        >>> insert(insert("# Performance", "old"), "new").count("new"), "old" in insert(insert("", "old"), "new")
        (1, False)
    """
    if BEGIN not in text:
        whole = text if HEADING in text else f"{text.rstrip()}\n\n{HEADING}".lstrip()
        above, below = whole.split(HEADING, 1)
        text = f"{above}{HEADING}\n\n{BEGIN}\n{END}\n{below.lstrip()}"
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{part.strip()}\n{END}{rest.split(END, 1)[1]}"


def generated(rows: Rows) -> str:
    """Return all tables, in the order in which a reader asks for them."""
    parts = (
        _head(rows),
        _table(rows),
        _asked(rows),
        _growth(rows),
        _training(rows),
        _open(rows),
        _skipped(rows),
        _missing(rows),
    )
    return "\n\n".join(part for part in parts if part)


def _head(rows: Rows) -> str:
    kinds = sorted({f"{row['machine']}, PyTorch {row['torch']}" for row in rows.values()})
    days = sorted({row["day"] for row in rows.values()})
    measured = f"Measured on {'; '.join(kinds)}; {' to '.join(dict.fromkeys((days[0], days[-1])))}." if rows else ""
    return f"""Generated by `python -m benchmarks.engine` and `python -m benchmarks.engine --write`. {measured}

Contenders alternate within one run. Each figure is the rival's time divided by that of `qkv.attention` with
`backend="auto"`: the median of the ratios of neighboring turns, with their quartiles in brackets. Each rival's result
is compared with qkv's before it is timed. {_clocks(rows)}

![How many times as fast as the full tensor](../../{PLOT.relative_to(ROOT).as_posix()})"""


def _clocks(rows: Rows) -> str:
    """Say which rows were measured with which clock."""
    kinds: dict[str, list[str]] = {}
    for name, row in rows.items():
        kinds.setdefault(row["clock"], []).append(f"`{name}`")
    if len(kinds) < 2:
        return "".join(f"All rows: {kind}." for kind in kinds)
    common = max(kinds, key=lambda kind: len(kinds[kind]))
    others = (f"{kind} for {', '.join(names)}" for kind, names in kinds.items() if kind != common)
    return f"Clock: {common}; but {'; '.join(others)}."


def _table(rows: Rows) -> str:
    """Return the table of mechanism × n × pass against the full tensor."""
    head = ["mechanism", "n", *(f"{what}: {column}" for what in PASSES for column in ("backend", "times as fast"))]
    lines = []
    for name in TABLE:
        for n in TABLE_SIZES:
            if f"{name}_{n}" in rows:
                kept = rows[f"{name}_{n}"]["passes"]
                size = f"{n:,}{_heads(rows[f'{name}_{n}'])}"
                lines.append([name.replace("_", " "), size, *(x for what in PASSES for x in _cell(kept, what, n))])
    return (
        f"### Every mechanism, 8 heads × 64, against the full tensor in PyTorch\n\n{_markdown(head, lines)}\n\n"
        "**✗**: takes more than 1.05 times as long as the full tensor above n = 16, an open defect. For `sparsemax` "
        "and `entmax` the full tensor is that of the `entmax` package; for `additive` at 4,096 it does not fit in "
        "memory and is computed in chunks of queries."
    )


def _heads(row: Mapping[str, Any]) -> str:
    """Return the number of heads in parentheses unless it is eight."""
    *_, count = row["size"]["leading"]
    return "" if count == 8 else f" ({count} heads)"


def _cell(passes: Mapping[str, Any], what: str, n: int) -> list[str]:
    kept = passes[what]
    if FULL not in kept["times"]:
        return [kept["backend"], f"none: {kept['skipped'][FULL]}"]
    figures = kept["times"][FULL]
    defect = n > findings.SMALL and figures["middle"] < findings.SLOWEST
    return [kept["backend"], _spread(figures["middle"], figures["low"], figures["high"]) + (" **✗**" if defect else "")]


def _asked(rows: Rows) -> str:
    """Return the table of single problems against all rivals."""
    table = {f"{name}_{n}" for name in TABLE for n in TABLE_SIZES}
    head = ["problem", "pass", "rival", "its ms", "qkv's ms", "backend", "times as fast", "target"]
    chosen = [c for c in findings.cells(rows) if not c.rival.startswith("qkv") and (c.row not in table or c.asked)]
    chosen.sort(key=lambda cell: (list(ROWS).index(cell.row), PASSES.index(cell.what)))
    lines = [
        [
            f"`{c.row}`", c.what, c.rival, f"{c.ms:,.2f}", f"{c.ours_ms:,.2f}", c.backend,
            _spread(c.middle, c.low, c.high), _verdict(c),
        ]
        for c in chosen
    ]  # fmt: skip
    sizes = [
        f"`{name}`: {_size(rows[name])}" for name in ROWS if name in rows and name not in table and _size(rows[name])
    ]
    return f"### Single problems against all rivals\n\n{_markdown(head, lines)}\n\nSizes: {'; '.join(sizes)}."


def _size(row: Mapping[str, Any]) -> str:
    if "size" not in row:
        return ""
    size = row["size"]
    text = str(Size(**{**size, "leading": tuple(size["leading"])}))
    return text + (", one key far from all others" if row["outlier"] else "")


def _verdict(cell: Cell) -> str:
    if cell.asked is None:
        return ""
    return f"{cell.asked:g}: {'reached' if cell.middle >= cell.asked else '**missed**'}"


def _growth(rows: Rows) -> str:
    chosen = {name: row for name, row in rows.items() if row["kind"] == "growth"}
    if not chosen:
        return ""
    sizes = list(next(iter(chosen.values()))["ms"])
    head = ["problem", "backend", *(f"{int(n):,}" for n in sizes), "exponent"]
    lines = [
        [f"`{name}`", row["backend"], *(f"{row['ms'][n]:,.1f}" for n in sizes), f"{row['exponent']:.2f}"]
        for name, row in chosen.items()
    ]
    return (
        "### Growth: milliseconds of a forward pass, one head, equally many queries and keys\n\n"
        f"{_markdown(head, lines)}\n\nThe exponent is the slope of log time over log size in the larger half of the "
        "sizes; 1 is linear, and n log n looks like 1.07 here."
    )


def _training(rows: Rows) -> str:
    head = ["problem", "rival", "its tokens/s", "qkv's", "times as fast", "target", "largest difference of losses"]
    lines = []
    for name, row in rows.items():
        if row["kind"] == "training":
            speed = row["tokens_per_second"]
            for rival, faster in row["faster"].items():
                reached = "reached" if faster["middle"] >= row["asked"] else "**missed**"
                ratio = _spread(faster["middle"], faster["low"], faster["high"])
                shown = [_RIVALS[rival], f"{speed[rival]:,.0f}", f"{speed['auto']:,.0f}", ratio]
                apart = f"{row['losses_apart'][rival]:.1e}"
                lines.append([f"`{name}`", *shown, f"{row['asked']:g}: {reached}", apart])
    return f"### Training the RNN translation model, whole steps\n\n{_markdown(head, lines)}" if lines else ""


_RIVALS = {"reference": "the full tensor in qkv's model", "plain": "the full tensor in PyTorch's modules"}


def _open(rows: Rows) -> str:
    wrong = [
        f"- `{c.row}`, {c.what}: `auto` chooses {c.backend}; "
        f"{c.rival.removeprefix('qkv, ')} takes {c.middle:.2f} of its time"
        for c in findings.wrongly_chosen(rows)
    ]
    slow = [f"- `{c.row}`, {c.what}: {c.backend} is {c.middle:.2f} times as fast" for c in findings.slow(rows)]
    parts = []
    if slow:
        parts.append("### Open: slower than the full tensor\n\n" + "\n".join(slow))
    if wrong:
        parts.append("### Open: `auto` did not choose the fastest backend\n\n" + "\n".join(wrong))
    return "\n\n".join(parts)


def _skipped(rows: Rows) -> str:
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, row in rows.items():
        for kept in row.get("passes", {}).values():
            for rival, reason in kept["skipped"].items():
                names = reasons.setdefault((rival, reason), [])
                if name not in names:
                    names.append(name)
    lines = [
        f"- {rival}: {reason} ({', '.join(f'`{n}`' for n in names)})" for (rival, reason), names in reasons.items()
    ]
    return "### Contenders left out\n\n" + "\n".join(lines) if lines else ""


def _missing(rows: Rows) -> str:
    names = [f"`{name}`" for name in ROWS if name not in rows]
    return f"### Rows not measured yet\n\n{', '.join(names)}." if names else ""


def _spread(middle: float, low: float, high: float) -> str:
    return f"{_short(middle)} [{_short(low)}, {_short(high)}]"


def _short(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
