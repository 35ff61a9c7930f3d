#!/bin/sh
# Most people guess that an optimizer computes the step of a float64 weight in float64, as every other one of
# `torch.optim` does. `torch.optim.Muon` casts momentum to bfloat16 before it orthogonalizes it, whatever the dtype, and
# its documentation does not say so: a step has two digits, and that of a symmetric gradient is not symmetric. It hurts
# whoever checks a training in float64, compares with another implementation, or relies on a symmetry of weights.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$work/show.py" <<'END'
import torch


def step(kind, gradient, **settings):
    weight = torch.nn.Parameter(torch.zeros_like(gradient))
    weight.grad = gradient.clone()
    kind([weight], lr=1.0, weight_decay=0.0, **settings).step()
    return weight.detach()


def orthogonalized(x, a=3.4445, b=-4.775, c=2.0315):  # the algorithm of the documentation, five iterations
    x = x / x.norm()
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x


print("torch", torch.__version__.partition("+")[0])
print("documented:", "bfloat16" in torch.optim.Muon.__doc__)
torch.manual_seed(0)
gradient = torch.randn(8, 8, dtype=torch.float64)
gradient += gradient.T.clone()
for kind in (torch.optim.AdamW, torch.optim.Muon):
    taken = step(kind, gradient)
    rounded = bool((taken == taken.bfloat16().double()).all())
    print(kind.__name__, taken.dtype, "symmetric to 1e-9:", bool((taken - taken.T).abs().max() < 1e-9))
print("all numbers of Muon's step are bfloat16:", rounded)
error = (taken + orthogonalized(gradient)).norm() / taken.norm()
print("farther than 0.1 % from the algorithm in float64:", bool(error > 1e-3))
END
cat > "$work/expected" <<'END'
torch 2.13.0
documented: False
AdamW torch.float64 symmetric to 1e-9: True
Muon torch.float64 symmetric to 1e-9: False
all numbers of Muon's step are bfloat16: True
farther than 0.1 % from the algorithm in float64: True
END
"$work/venv/bin/python" "$work/show.py" > "$work/shown"
cat "$work/shown"
diff "$work/expected" "$work/shown"
