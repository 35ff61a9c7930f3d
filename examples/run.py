"""Run any example by its name, from any folder: python PATH/examples/run.py kernels --out pictures.

Figures go to the folder after `--out`, `pictures` by default.
"""

import runpy
import sys
from difflib import get_close_matches
from pathlib import Path

HERE = Path(__file__).resolve().parent


def found() -> dict[str, Path]:
    """Return the examples by name, except the files that they share."""
    scripts = [*sorted(HERE.glob("*/*.py")), *sorted(HERE.glob("*.py"))]
    return {path.stem: path for path in scripts if path.stem not in ("drawing", "run", "__init__")}


def main(names: list[str]) -> None:
    """Run the example that is named first; the others are its arguments."""
    examples = found()
    if not names or names[0] not in examples:
        (close,) = get_close_matches(names[0], examples, n=1) or ("",) if names else ("",)
        hint = f'Did you mean "{close}"?' if close else f"There are {', '.join(examples)}."
        print(f"Give the name of an example. {hint}", file=sys.stderr)
        raise SystemExit(2)
    path = examples[names[0]]
    sys.path[:0] = [str(HERE.parent), str(path.parent)]
    sys.argv = [str(path), *names[1:]]
    runpy.run_path(str(path), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
