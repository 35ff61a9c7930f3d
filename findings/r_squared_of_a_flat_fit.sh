#!/bin/sh
# Most people guess that `r_squared()` of statsmodels' KernelReg is the share of variance that the fit explains. It is
# the squared correlation of fit and target: a curve that a huge bandwidth has flattened to the mean within a
# thousandth still scores 0.64 where the share explained is 0.00. It hurts whoever compares bandwidths, or kernel
# regression with other models, by this number.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet statsmodels==0.15.0 numpy==2.4.6

cat > "$work/show.py" <<'END'
import numpy as np
import statsmodels
from statsmodels.nonparametric.kernel_regression import KernelReg

print("statsmodels", statsmodels.__version__)
x = np.linspace(0, 1, 50)
y = np.sin(6 * x)
model = KernelReg(y, [x], "c", reg_type="lc", bw=[30.0])
fit, _ = model.fit()
explained = 1 - ((y - fit) ** 2).sum() / ((y - y.mean()) ** 2).sum()
print("the fit is flat within 0.001:", bool(np.ptp(fit) < 0.001))
print(f"r_squared {model.r_squared():.2f}, variance explained {explained:.2f}")
END
cat > "$work/expected" <<'END'
statsmodels 0.15.0
the fit is flat within 0.001: True
r_squared 0.64, variance explained 0.00
END
"$work/venv/bin/python" "$work/show.py" > "$work/shown"
cat "$work/shown"
diff "$work/expected" "$work/shown"
