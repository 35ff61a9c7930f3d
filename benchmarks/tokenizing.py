"""Time and memory of tokenization as the text grows: `python -m benchmarks.tokenizing`

Inputs that are hard for one tokenizer or another, at n, 2n and 4n characters, alternating; the minimum processor time
of several rounds, and its growth: 2 is linear, 4 quadratic. Memory is the peak beyond what the process had before
(Linux), per byte of UTF-8 text; the ids alone take eight bytes each. Writes `benchmarks/results/tokenizing.json`, and
keeps the rows that it did not measure.
"""

import argparse
import json
import re
import sys
import time
from itertools import pairwise
from pathlib import Path
from random import Random

from qkv.data.tokenizer import Tokenizer

RESULTS = Path(__file__).parent / "results" / "tokenizing.json"
LEARNT = ["the cat sat on the mat , a.a. aaaa abab" * 4, "abcdefghij" * 9]
KINDS = ("bpe", "word", "char")
SCRIPTS = ("word", "λόγος", "слово", "כתב", "शब्द", "漢字", "e\u0301te\u0301", "kelime!", "٤٢", "🙂")
SIZES = 3


def texts(size: int) -> dict[str, str]:
    """Return adversarial inputs of about this many characters."""
    random = Random(0)
    return {
        "one letter": "a" * size,
        "one letter of two bytes": "é" * size,
        "one space": " " * size,
        "one mark": "." * size,
        "letters and marks in turn": "a." * (size // 2),
        "joiners": "￭" * size,
        "combining marks": "e" + "\u0301" * (size - 1),
        "digits": "7" * size,
        "random letters": "".join(random.choices("abcdefghij", k=size)),
        "words of many scripts": " ".join(random.choices(SCRIPTS, k=size // 5)),
        "random characters": "".join(chr(random.randrange(32, 0xD7FF)) for _ in range(size)),
    }


def resident(most: bool) -> int:
    """Return the resident memory of the process in bytes, now or the peak since the last reset."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"^{'VmHWM' if most else 'VmRSS'}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def once(tokenizer: Tokenizer, text: str) -> tuple[float, float]:
    """Return seconds of processor time, and the peak memory in bytes per byte of text."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset the peak
    before, begun = resident(most=False), time.process_time()
    tokenizer.encode(text)
    seconds = time.process_time() - begun
    return seconds, (resident(most=True) - before) / len(text.encode())


def measure(kinds: list[str], size: int, rounds: int) -> list[dict[str, object]]:
    """Return, for each tokenizer and input, the seconds at three sizes, their growth, and the memory of the longest."""
    found = []
    sizes = [size * 2**step for step in range(SIZES)]
    runs = [texts(n) for n in sizes]
    for kind in kinds:
        tokenizer = Tokenizer.learn(LEARNT, kind=kind, size=300, minimum=1)
        for name in runs[0]:
            least, memory = [float("inf")] * SIZES, 0.0
            for _ in range(rounds):
                for place, run in enumerate(runs):
                    seconds, memory = once(tokenizer, run[name])
                    least[place] = min(least[place], seconds)
            growth = [round(later / sooner, 2) for sooner, later in pairwise(least)]
            row = {"tokenizer": kind, "run": name, "characters": sizes, "seconds": [round(s, 3) for s in least]}
            found.append(row | {"growth": growth, "bytes_for_each_byte": round(memory, 1)})
            print(
                f"{kind:5} {name:26} {least[-1]:7.3f} s at {sizes[-1]:,}  growth {growth}  {memory:.1f} bytes per byte"
            )
            sys.stdout.flush()
    return found


def kept(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Merge the measured rows into those of the file."""
    measured = {(row["tokenizer"], row["run"]): row for row in rows}
    before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    return [row for row in before if (row["tokenizer"], row["run"]) not in measured] + rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2_500_000, help="n; the longest input has 4n characters")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokenizer", choices=KINDS, action="append", help="only these")
    given = parser.parse_args()
    rows = kept(measure(given.tokenizer or list(KINDS), given.size, given.rounds))
    RESULTS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
