#!/bin/sh
# Most people guess that a maximum over processes is NaN if one of them has NaN, as `torch.maximum` is. With gloo it
# depends on which process has it: the comparison keeps one operand and drops the other. It hurts whoever reduces a
# loss or a gradient norm by MAX to stop all processes when one has diverged.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$work/show.py" <<'END'
import os
import tempfile

import torch
from torch import distributed, multiprocessing


def reduce(rank, store):
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for owner in (0, 1):
        x = torch.tensor([float("nan") if rank == owner else 1.0])
        distributed.all_reduce(x, distributed.ReduceOp.MAX)
        if rank == 0:
            print(f"NaN in process {owner}, 1 in the other: {x.item()}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__.partition("+")[0])
    nan, one = torch.tensor(float("nan")), torch.tensor(1.0)
    print("torch.maximum:", torch.maximum(nan, one).item(), torch.maximum(one, nan).item(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(reduce, (os.path.join(folder, "store"),), 2)
END
cat > "$work/expected" <<'END'
torch 2.13.0
torch.maximum: nan nan
NaN in process 0, 1 in the other: nan
NaN in process 1, 1 in the other: 1.0
END
"$work/venv/bin/python" "$work/show.py" > "$work/shown"
cat "$work/shown"
diff "$work/expected" "$work/shown"
