"""How many instructions the Triton kernels take, counted in their machine code.

`python -m benchmarks.launches.machine_code` compiles them. Triton's own assembler does so for GPUs that this machine
need not have, and its disassembler lists the result. The counts go to `benchmarks/results/machine_code.json`, which
`docs/project/launches.md` shows. It needs the extra `triton`, and a process whose kernels are not interpreted.
"""

import collections
import importlib.metadata
import json
import re
import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from qkv.algorithms.additive import triton

STORED = Path(__file__).parents[2] / "benchmarks/results/machine_code.json"
TARGETS = (80, 90)
WIDTH = 64
"""Width of the values."""
KERNELS = {
    "forward": ("out", "top", "total"),
    "query_gradients": ("top", "total", "delta", "grad", "slope", "turn"),
    "key_gradients": ("top", "total", "delta", "grad", "slope", "d_value"),
}
"""The kernels that work on pairs, with the tensors that only they take."""
PAIRS = triton.ROWS * triton.COLUMNS // (32 * triton.WARPS)
"""How many pairs of a tile each thread computes; a loop over features divides for each of them."""
_INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);")
_BRANCH = re.compile(r"\bBRA\b.*\b0x([0-9a-f]+)")


def machine_code(name: str, target: int) -> tuple[list[tuple[int, str]], dict[str, int]]:
    """Compile a kernel as `qkv` launches it; return its instructions by address, and registers and bytes spilled."""
    import triton as compiler
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from qkv.algorithms.additive import triton_kernels

    floats = ("left", "right", "weight", "value", *KERNELS[name])
    types = dict.fromkeys(floats, "*fp32") | dict.fromkeys(("count", "first", "last"), "*i32")
    types |= dict.fromkeys(("queries", "keys", "width", "padded", "of_left", "of_right"), "i32")
    constants = {"WIDTH": WIDTH, "M": triton.ROWS, "N": triton.COLUMNS}
    kernel = getattr(triton_kernels, name)
    types = {arg: types.get(arg, "constexpr") for arg in kernel.arg_names}
    # As Triton specializes tensors of PyTorch, and sizes that are multiples of 16.
    aligned: dict[Any, Any] = {
        (place,): [["tt.divisibility", 16]] for place, kind in enumerate(types.values()) if kind != "constexpr"
    }
    source = ASTSource(kernel, types, constexprs=constants, attrs=aligned)
    options = {"num_warps": triton.WARPS, **triton.FUSED}
    compiled = compiler.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    tools = Path(compiler.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        listing, usage = (
            subprocess.run([tools / "cuobjdump", option, file.name], capture_output=True, text=True, check=True).stdout
            for option in ("-sass", "-res-usage")
        )
    matches = (_INSTRUCTION.match(line) for line in listing.splitlines())
    instructions = [(int(match[1], 16), match[2].strip()) for match in matches if match]
    resources = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", usage))
    return instructions, {"registers": int(resources["REG"]), "spilled": int(resources["STACK"])}


def feature_loops(instructions: list[tuple[int, str]]) -> list[dict[str, Any]]:
    """Return the innermost loops that divide once for four features of a pair, in the order of their addresses."""
    branches = ((address, _BRANCH.search(text)) for address, text in instructions)
    loops = sorted((int(match[1], 16), address) for address, match in branches if match and int(match[1], 16) < address)
    inner = [loop for loop, after in pairwise([*loops, (1 << 62, 0)]) if after[0] > loop[1]]
    counted = []
    for start, stop in inner:
        body = [re.sub(r"^@!?U?P\d+\s+", "", text) for address, text in instructions if start <= address <= stop]
        kinds = collections.Counter(text.split()[0].partition(".")[0] for text in body)
        divisions = sum(text.startswith("MUFU.RCP") for text in body)
        if divisions and divisions % PAIRS == 0:
            counted.append({"instructions": len(body), "divisions": divisions, "kinds": dict(kinds.most_common())})
    return counted


LOOPS = ("scores", "scores, capped", "scores, not factored", "gradients", "gradients, not factored")
"""What the loops over features compute, in the order of their code."""


def count(name: str, target: int) -> dict[str, Any]:
    """Return a kernel's instructions for a pair and a feature, by loop, and its registers and bytes spilled."""
    instructions, resources = machine_code(name, target)
    loops = dict(zip(LOOPS, feature_loops(instructions), strict=False))
    # A division serves four features, or one whose tanh is not factored.
    counted = {
        loop: round(found["instructions"] / found["divisions"] / (1 if "not" in loop else 4), 2)
        for loop, found in loops.items()
    }
    return counted | resources


def table(stored: dict[str, Any]) -> str:
    """Return the stored counts as a section of docs/project/launches.md."""
    head = f"""
## The Triton kernels, in machine code

Additive scores have kernels of qkv's own, `additive.triton`. Compiled for values of width {WIDTH} by Triton
{stored["triton"]} (`python -m benchmarks.launches.machine_code`), their loops take so many instructions for each pair
of query and key and each hidden feature, loads and branches included. No GPU has run them: `make test-gpu` runs them
in Triton's interpreter on the CPU, and `auto` takes them only where `qkv tune --device cuda` has compared and timed
them.

"""
    rows = [["kernel", "GPU", *LOOPS, "registers", "bytes spilled"], ["---"] * (4 + len(LOOPS))]
    for name, targets in stored["kernels"].items():
        for target, counts in targets.items():
            cells = (str(counts.get(loop, "")) for loop in (*LOOPS, "registers", "spilled"))
            rows.append([f"`{name}`", f"sm_{target}", *cells])
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    """Count, and store the counts."""
    counted = {name: {str(target): count(name, target) for target in TARGETS} for name in KERNELS}
    stored = {"triton": importlib.metadata.version("triton"), "kernels": counted}
    STORED.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
