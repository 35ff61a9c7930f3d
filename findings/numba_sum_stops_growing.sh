#!/bin/sh
# Most people guess that `x.sum()` means the same inside `numba.njit` as outside. NumPy adds float32 in pairs; Numba
# adds one number after another in float32, so the sum of ones ends at 2**24 and a mean of ones can be 0.5. It hurts
# whoever compiles a normalizer, a loss or a statistic over a long axis and tests it on a short one.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet numba==0.68.1 numpy==2.4.6

cat > "$work/show.py" <<'END'
import numba
import numpy as np


@numba.njit
def total(x):
    return x.sum()


@numba.njit
def mean(x):
    return x.mean()


print("numba", numba.__version__, "numpy", np.__version__)
ones = np.ones(2**25, np.float32)
print("NumPy:", int(ones.sum()), float(ones.mean()))
print("Numba:", int(total(ones)), mean(ones))
END
cat > "$work/expected" <<'END'
numba 0.68.1 numpy 2.4.6
NumPy: 33554432 1.0
Numba: 16777216 0.5
END
"$work/venv/bin/python" "$work/show.py" > "$work/shown"
cat "$work/shown"
diff "$work/expected" "$work/shown"
