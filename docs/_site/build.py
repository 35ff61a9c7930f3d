"""Build the site: `python docs/_site/build.py [--out build/docs] [--no-notebooks]`.

The pages are copied, the generated ones are added, Sphinx builds all of them with warnings as errors, and every link is
checked. Nothing is read from the network, and no page asks another host for anything.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "src")]

_ABOVE = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}


def main() -> int:
    """Build and check; return 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs", help="the folder of the site")
    parser.add_argument("--no-notebooks", action="store_true", help="show the notebooks without running them")
    arguments = parser.parse_args()
    began = time.monotonic()
    source = copy_pages(arguments.out.parent / "docs-source")
    status = _sphinx(source, arguments.out, "off" if arguments.no_notebooks else "cache")
    if status:
        return status
    from links import check

    broken = check(arguments.out)
    pages = len(list(arguments.out.rglob("*.html")))
    print(*broken, sep="\n", end="\n" if broken else "")
    print(f"{pages} pages in {time.monotonic() - began:.0f} s, {len(broken)} broken links: {arguments.out}/index.html")
    return 1 if broken else 0


def copy_pages(source: Path) -> Path:
    """Copy the pages, and add those that are generated or lie at the top of the repository.

    Args:
        source: a folder for them; what it holds is replaced.

    Returns:
        The folder.
    """
    from extension import repository_links
    from reference import write

    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(HERE.parent, source, ignore=shutil.ignore_patterns("_site", "__pycache__"))
    for name, page in _ABOVE.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        up = repository_links(text, "../top.md").replace("](docs/", "](../")
        (source / page).write_text(up, encoding="utf-8")
    for folder in ("benchmarks/results", "results/runs"):  # pictures that pages show
        for picture in (ROOT / folder).rglob("*"):
            if picture.suffix in (".svg", ".png"):
                copy = source.parent / picture.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(picture, copy)
    write(source / "reference")
    return source


def _sphinx(source: Path, out: Path, notebooks: str) -> int:
    environment = {
        **os.environ,
        "QKV_SITE": str(HERE),
        "QKV_NOTEBOOKS": notebooks,
        "QKV_NOTEBOOK_CACHE": str(out.parent / "notebooks"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-c", str(HERE)]
    shutil.rmtree(out, ignore_errors=True)
    return subprocess.run([*command, str(source), str(out)], env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
