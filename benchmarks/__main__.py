"""Run benchmarks one after another: `python -m benchmarks [name ...]`; results go to `benchmarks/results`."""

import argparse
import runpy
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    names = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*names, []], help=f"some of {', '.join(names)}; all by default")
    for name in parser.parse_args().names or names:
        print(f"benchmarks/{name}.py")
        runpy.run_path(str(HERE / f"{name}.py"), run_name="__main__")


if __name__ == "__main__":
    main()
