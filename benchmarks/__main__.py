"""Run benchmarks one after another: `python -m benchmarks [name ...]`; results go to `benchmarks/results`."""

import argparse
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    files = [*HERE.glob("*.py"), *(path.parent for path in HERE.glob("*/__main__.py"))]
    names = sorted(path.stem for path in files if not path.stem.startswith("_") and path.stem != "versus")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*names, []], help=f"some of {', '.join(names)}; default: all")
    for name in parser.parse_args().names or names:
        print(f"benchmarks.{name}")
        # Each benchmark parses the command line itself: pass none here.
        sys.argv[1:] = []
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
