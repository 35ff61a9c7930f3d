#!/bin/sh
# One would think that `local_map`, which runs a function on the local part of a DTensor, returns a DTensor of the same
# shape where the function keeps shapes. If the rows do not divide evenly among the processes, each process gets another
# global shape: its own rows times the number of processes. No error is raised, and what collects the result, or sums a
# loss over it, has rows too many or too few. This hurts whoever divides a batch of any size by a custom operator.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy
cat > "$folder/finding.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map


def work(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    x = distribute_tensor(torch.ones(5, 4), init_device_mesh("cpu", (2,)), [Shard(0)])
    plain = x * 2
    mapped = local_map(lambda part: part * 2, out_placements=[Shard(0)])(x)
    print(f"process {rank}: x {tuple(x.shape)}, x * 2 {tuple(plain.shape)}, local_map {tuple(mapped.shape)}", flush=True)
    assert tuple(plain.shape) == (5, 4)
    assert tuple(mapped.shape) == ((6, 4), (4, 4))[rank]
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(work, (sys.argv[1],), nprocs=2)
    print("As found: 5 rows over 2 processes are 6 rows for one process and 4 for the other.")
PYTHON
"$folder/venv/bin/python" "$folder/finding.py" "$folder/store"
