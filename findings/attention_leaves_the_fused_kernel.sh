#!/bin/sh
# Most people guess that `scaled_dot_product_attention` on a CPU uses its fused kernel for every dense input. It does
# so only for four axes: without the axis of heads, or with a mask of three axes, or with values wider than keys, it
# takes the kernel that holds the whole matrix of weights, without a warning. Whoever drops a head axis of 1 to keep
# code simple pays with memory that grows with the square of the length.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$work/show.py" <<'END'
import torch
from torch.nn.functional import scaled_dot_product_attention as attention
from torch.profiler import ProfilerActivity, profile


def kernel(*inputs, **options):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        attention(*inputs, **options)
    names = {event.key.removeprefix("aten::_scaled_dot_product_") for event in profiler.key_averages()}
    return names & {"flash_attention_for_cpu", "attention_math"}


print("torch", torch.__version__.partition("+")[0])
x = torch.ones(2, 1, 64, 16)
print("(2, 1, 64, 16):", *kernel(x, x, x))
print("(2, 64, 16):", *kernel(x[:, 0], x[:, 0], x[:, 0]))
print("mask (1, 1, 64, 64):", *kernel(x, x, x, attn_mask=torch.zeros(1, 1, 64, 64)))
print("mask (1, 64, 64):", *kernel(x, x, x, attn_mask=torch.zeros(1, 64, 64)))
print("values of width 24:", *kernel(x, x, torch.ones(2, 1, 64, 24)))
END
cat > "$work/expected" <<'END'
torch 2.13.0
(2, 1, 64, 16): flash_attention_for_cpu
(2, 64, 16): attention_math
mask (1, 1, 64, 64): flash_attention_for_cpu
mask (1, 64, 64): attention_math
values of width 24: attention_math
END
"$work/venv/bin/python" "$work/show.py" > "$work/shown"
cat "$work/shown"
diff "$work/expected" "$work/shown"
