"""Sizes of the viewer's saved pages and notebook cells, by the length of the text.

    python -m benchmarks.pages                       of this checkout
    python -m benchmarks.pages --against HEAD~20     beside those of another commit

A translator of three and three layers with four heads and random weights reads and writes so many tokens. The same
text gives the same page, so a size is measured once. Results go to benchmarks/results/pages.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "pages.json"
PROGRAM = """
import json, torch
from pathlib import Path
from qkv.recording import record

def translator(count):
    from qkv.models.configs.translator import TransformerConfig
    from qkv.models.translator import TransformerTranslator
    model = TransformerTranslator(TransformerConfig(size=200, width=256, heads=4)).eval()
    source, target = torch.randint(4, 200, (2, 1, count))
    with record(model) as trace:
        model(source, torch.tensor([count]), target)
    return trace

found = {}
for count in (12,):
    torch.manual_seed(0)
    with torch.no_grad():
        trace = translator(count)
        trace.save("page.html")
    found[f"{count} tokens"] = {"page": Path("page.html").stat().st_size, "cell": len(trace._repr_html_().encode())}
print(json.dumps(found))
"""


def sizes(checkout: Path) -> dict[str, dict[str, int]]:
    """Measure the pages that a checkout writes, in bytes."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=folder, env=environment)
    measured: dict[str, dict[str, int]] = json.loads(done.stdout)
    return measured


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", help="a commit to compare with")
    given = parser.parse_args(arguments)
    found = {"now": sizes(ROOT)}
    if given.against:
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.run(
                ["git", "archive", given.against, "src"], check=True, stdout=subprocess.PIPE, cwd=ROOT
            )
            subprocess.run(["tar", "-x", "-C", folder], check=True, input=archive.stdout)
            found["before"] = sizes(Path(folder))
            found = {"before": found["before"], "now": found["now"]}
    for name in found["now"]:
        for part in ("page", "cell"):
            told = ", ".join(f"{when} {found[when][name][part] / 1000:,.0f} kB" for when in found)
            print(f"{name}, {part}: {told}")
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
