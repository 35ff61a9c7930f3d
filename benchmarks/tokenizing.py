"""Does tokenization take time in proportion to the length? `python -m benchmarks.tokenizing`

Long runs that are hard for one tokenizer or another, at n, 2n and 4n characters, in turn; the least processor time of
several rounds, and its growth: 2 is linear, 4 quadratic. Writes `benchmarks/results/tokenizing.json`.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from random import Random

from qkv.data.tokenizer import Tokenizer

RESULTS = Path(__file__).parent / "results" / "tokenizing.json"
LEARNT = ["the cat sat on the mat , a.a. aaaa abab" * 4, "abcdefghij" * 9]


def texts(size: int) -> dict[str, str]:
    """Adversarial runs of about so many characters."""
    random = Random(0)
    return {
        "one letter": "a" * size,
        "one space": " " * size,
        "one mark": "." * size,
        "letters and marks in turn": "a." * (size // 2),
        "joiners": "￭" * size,
        "combining marks": "e" + "\u0301" * (size - 1),
        "random letters": "".join(random.choices("abcdefghij", k=size)),
        "random characters": "".join(chr(random.randrange(32, 0xD7FF)) for _ in range(size)),
    }


def measure(size: int, rounds: int) -> list[dict[str, object]]:
    """For each tokenizer and run the seconds at three sizes, and the growth between them."""
    found = []
    for kind in ("bpe", "word", "char"):
        tokenizer = Tokenizer.learn(LEARNT, kind=kind, size=300, minimum=1)
        sizes = [size, 2 * size, 4 * size]
        runs = [texts(n) for n in sizes]
        for name in runs[0]:
            least = [float("inf")] * 3
            for _ in range(rounds):
                for place, run in enumerate(runs):
                    begun = time.process_time()
                    tokenizer.encode(run[name])
                    least[place] = min(least[place], time.process_time() - begun)
            growth = [least[1] / least[0], least[2] / least[1]]
            found.append({"tokenizer": kind, "run": name, "characters": sizes, "seconds": least, "growth": growth})
            print(f"{kind:5} {name:26} {least[2]:7.3f} s at {sizes[2]:,}  grows {growth[0]:.2f}, {growth[1]:.2f}")
            sys.stdout.flush()
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2_500_000, help="n; the longest run has 4n characters")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    RESULTS.write_text(json.dumps(measure(given.size, given.rounds), indent=1) + "\n", encoding="utf-8")
