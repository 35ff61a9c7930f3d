#!/bin/sh
# Most people guess that `KernelReg(reg_type="ll", bw="aic")` of statsmodels minimizes the corrected AIC of the line
# that it fits. It takes the residuals of the line, but counts the parameters of the local mean (the trace of the
# Nadaraya-Watson smoother), so that too narrow a bandwidth looks cheap. Whoever lets it choose gets a rougher curve
# than the criterion of Hurvich, Simonoff and Tsai asks for, and figures that no other program reproduces.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet statsmodels==0.15.0 numpy==2.4.6

cat > "$work/show.py" <<'END'
import numpy as np
import statsmodels
from statsmodels.nonparametric.kernel_regression import KernelReg

x = np.linspace(0.0, 3.0, 40)
y = np.sin(2 * x) + 0.1 * np.cos(37 * x)
width, n = 0.3, len(x)


def smoother(kind):
    """The matrix that maps targets to fitted values, column by column."""
    columns = [KernelReg(e, x, "c", reg_type=kind, bw=[width], rng=0).fit()[0] for e in np.eye(n)]
    return np.column_stack(columns)


def corrected_aic(residuals, trace):
    return np.log(np.mean(residuals**2)) + (1 + trace / n) / (1 - (trace + 2) / n)


line, mean = smoother("ll"), smoother("lc")
residuals = y - line @ y
theirs = KernelReg(y, x, "c", reg_type="ll", bw=[width], rng=0).aic_hurvich(np.array([width])).item()
print("statsmodels", statsmodels.__version__)
print("its AIC of the line:            ", f"{theirs:.4f}")
print("with the trace of the line:     ", f"{corrected_aic(residuals, np.trace(line)):.4f}")
print("with the trace of the local mean:", f"{corrected_aic(residuals, np.trace(mean)):.4f}")
END
cat > "$work/expected" <<'END'
statsmodels 0.15.0
its AIC of the line:             -2.8050
with the trace of the line:      -2.7405
with the trace of the local mean: -2.8050
END
"$work/venv/bin/python" "$work/show.py" > "$work/shown"
cat "$work/shown"
diff "$work/expected" "$work/shown"
