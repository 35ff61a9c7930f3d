"""Check everything that a release needs, build it, try it, and write the text of its tag: `make release`.

    python -m release [--built]

`--built` takes the packages that are in `dist`. Nothing in the repository changes, and nothing is published.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from release import packages, sources

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
TAG = ROOT / "build" / "tag.txt"


def main() -> int:
    """Run all checks; return 0 if a release lacks nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", action="store_true", help="take the packages that are in dist")
    arguments = parser.parse_args()
    problems = sources.missing(ROOT)
    if not arguments.built:
        problems += build()
    problems += packages.missing(ROOT, DIST) + packages.rated(DIST)
    if subprocess.run([sys.executable, "-m", "release.trial", str(DIST)], cwd=ROOT, check=False).returncode:
        problems.append("the wheel fails in a clean environment")
    print(*(f"lacks: {problem}" for problem in problems), sep="\n", end="\n" if problems else "")
    if problems:
        return 1
    TAG.parent.mkdir(exist_ok=True)
    TAG.write_text(tag_text(), encoding="utf-8")
    name = f"v{sources.version(ROOT)}"
    print(f"{name} lacks nothing. To publish it:\n  git tag --annotate {name} --file {TAG}\n  git push origin {name}")
    return 0


def build() -> list[str]:
    """Build both packages in isolation, into an empty `dist`, and print how long it took and how large they are."""
    for path in DIST.glob("*"):
        if path.suffix in (".gz", ".whl"):
            path.unlink()
    began = time.monotonic()
    if subprocess.run([sys.executable, "-m", "build", "--outdir", str(DIST)], cwd=ROOT, check=False).returncode:
        return ["the packages cannot be built"]
    sizes = ", ".join(f"{path.name} {path.stat().st_size / 1e6:.2f} MB" for path in sorted(DIST.iterdir()))
    print(f"built in {time.monotonic() - began:.0f} s: {sizes}")
    return []


def tag_text() -> str:
    """Return the message of the tag: the version, what the changelog says, and the sums of the packages."""
    body = sources.notes(ROOT).partition("\n")[2].strip()
    return (
        f"qkv {sources.version(ROOT)}\n\n{body}\n\nsha256 of the packages\n\n" + "\n".join(packages.sums(DIST)) + "\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
