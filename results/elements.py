"""Text files for `qkv train point`: numbers to sort, points with their convex hull.

python -m results.elements hull --size 10 --count 200000 --out hulls.tsv
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from random import Random

from results.hulls import hull

TASKS = ("sort", "hull")
LARGEST = 100
"""Numbers to sort are integers below this."""


def lines(task: str, size: int, count: int, seed: int = 0) -> Iterator[str]:
    """Generate lines of elements and positions.

    Args:
        task: "sort": integers, and their positions in increasing order, ties in input order; "hull": points of the unit
            square, and the corners of their convex hull, counter-clockwise from the one that comes first.
        size: elements per line.
        count: number of lines.
        seed: random seed.

    Example:
        >>> list(lines("sort", 4, 1))
        ['18 75 34 33\\t1 4 3 2']
    """
    random = Random(f"{task}:{size}:{seed}")
    for _ in range(count):
        if task == "sort":
            numbers = [random.randrange(LARGEST) for _ in range(size)]
            order = sorted(range(size), key=numbers.__getitem__)
            elements = " ".join(map(str, numbers))
        else:
            # Rounded first, so that the hull is that of the points in the file.
            points = [(round(random.random(), 4), round(random.random(), 4)) for _ in range(size)]
            order = hull(points)
            elements = " ".join(f"{x},{y}" for x, y in points)
        yield f"{elements}\t{' '.join(str(place + 1) for place in order)}"


def main() -> None:
    """Write a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--size", type=int, default=10)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with options.out.open("w", encoding="utf-8") as stream:
        for line in lines(options.task, options.size, options.count, options.seed):
            stream.write(line + "\n")


if __name__ == "__main__":
    main()
