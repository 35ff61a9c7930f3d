"""Figures of speed that pages quote are those that benchmarks stored, for the processor that the page names."""

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
README, DOCS = ROOT / "README.md", ROOT / "docs"
PLANNER = DOCS / "understanding" / "planner.md"
ZEN3, ZEN4, ZEN5 = "amd-zen3-avx2", "amd-zen4-avx512", "amd-zen5-avx512"
PASSES = ("forward", "forward + backward")


def stored(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def table(page: Path, head: str) -> list[list[str]]:
    """Return the rows of the first table whose first line begins so, without bold type and signs."""
    lines = [line.strip() for line in page.read_text(encoding="utf-8").splitlines()]
    start = next(index for index, line in enumerate(lines) if line.startswith(head)) + 2
    stop = next(index for index in range(start, len(lines)) if not lines[index].startswith("|"))
    return [[cell.strip(" *×") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[start:stop]]


def shown(number: float) -> str:
    """Return a ratio as pages write it: two digits, all of them from 100 on."""
    return f"{number:.0f}" if number >= 100 else f"{float(f'{number:.2g}'):g}"


def as_number(cell: str) -> str:
    return f"{float(cell.replace(',', '')):g}"


def test_the_table_of_decoding_and_training() -> None:
    decode, train = stored("decode"), stored("train")
    expected = [
        [shown(decode[processor][job][rival]["qkv_is_times_as_fast"]) for processor in (ZEN5, ZEN3)]
        for job in ("greedy", "beam 5")
        for rival in ("CTranslate2", "CTranslate2, one thread", "Marian")
    ] + [
        [shown(train[processor][job][rival]["times_as_long_as_qkv"]) for processor in (ZEN5, ZEN3)]
        for job, rival in (
            ("translator", "torch.nn.Transformer"),
            ("translator", "Hugging Face Marian"),
            ("gpt", "nanoGPT's modules"),
            ("gpt", "torch.nn layers"),
        )
    ]
    assert [[as_number(cell) for cell in row[1:3]] for row in table(PLANNER, "| job | AMD Zen 5 |")] == expected


def test_the_table_of_dot_products() -> None:
    cells = stored("dot_products")[ZEN3]["2 threads, wall time"]
    assert f"{len(cells)} cells" in PLANNER.read_text(encoding="utf-8")
    rows = table(PLANNER, "| PyTorch's call takes | forward")
    for row, low, high in zip(rows, (0, 0.4, 4), (0.4, 4, 1e9), strict=True):
        for cell, way in zip(row[1:], ("forward", "with backward"), strict=True):
            speeds = [
                each["times as fast"][0]
                for name, each in cells.items()
                if name.endswith(way) and low <= each["PyTorch, ms"] < high
            ]
            numbers = re.findall(r"\d\.\d\d", cell)
            assert float(numbers[0]) == pytest.approx(median(speeds), abs=0.006)
            assert [float(number) for number in numbers[1:]] == [min(speeds)][: len(numbers) - 1]


@pytest.mark.parametrize(("after", "processor"), [("two cores of an AMD Zen 5,", ZEN5), ("On an AMD Zen 3", ZEN3)])
def test_the_tables_beside_other_processes(after: str, processor: str, tmp_path: Path) -> None:
    text = PLANNER.read_text(encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(text[text.index(after, text.index("Tokens per second of the model")) :], encoding="utf-8")
    rates = {
        (row["job"], row["busy"], row["threads"], row["spins"]): row["tokens_per_second"]
        for row in stored("beside")[processor]["rows"]
    }
    expected = [
        [f"{rates[job, busy, threads, spins]:,}" for threads, spins in ((1, "default"), (2, "default"), (2, "2000"))]
        for job in ("train", "decode", "evaluate")
        for busy in (False, True)
    ]
    assert [row[1:] for row in table(page, "| job | one thread |")] == expected


def test_the_tables_of_flex_attention() -> None:
    figures, page = stored("flex_attention"), DOCS / "how_to" / "flex_attention.md"
    functions = ("causal", "alibi", "softcap", "relative", "generic")
    speeds = [[shown(figures[processor][name]["ratio"]) for name in functions] for processor in (ZEN4, ZEN3)]
    assert [[as_number(cell) for cell in row[1:]] for row in table(page, "| processor | causal |")] == speeds
    memory = [[f"{figures[ZEN3][f'{name}, MiB'][n]:.0f}" for name in functions[:4]] for n in ("4096", "8192", "16384")]
    assert [row[1:] for row in table(page, "| positions | causal |")] == memory


def test_the_table_of_prepared_corpora() -> None:
    figures, page = stored("corpora")[ZEN3], DOCS / "how_to" / "scale.md"
    assert [row[1:] for row in table(page, "| text | processor time")] == [
        [
            f"{each['prepare']['processor_seconds']:.0f} s",
            f"{each['prepare']['mib']} MiB",
            f"{each['train']['mib']} MiB",
        ]
        for each in (figures["1 GB"], figures["4 GB"])
    ]


def test_figures_in_sentences() -> None:
    def sentence(page: str, pattern: str) -> list[str]:
        match = re.search(pattern, (DOCS / "how_to" / page).read_text(encoding="utf-8"))
        assert match is not None, pattern
        return list(match.groups())

    attached = stored("attached")[ZEN3]
    assert sentence("huggingface.md", r"Zen 3 an attached model takes (\S+) times .*, and (\S+) times while") == [
        f"{attached[name]['ratio']:.2f}" for name in ("attached", "recorded")
    ]
    tiles = stored("loaded_map")[ZEN3]
    levels = [each for name, each in tiles.items() if name.startswith("tile, level")]
    medians = [each["median"] for each in levels]
    times = (max(each["largest"] for each in levels), min(medians), max(medians))
    quoted = sentence("view.md", r"within (\d+) ms, medians (\d+) to (\d+) ms")
    assert list(map(float, quoted)) == pytest.approx([1e3 * seconds for seconds in times], abs=0.51)
