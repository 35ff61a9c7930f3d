"""Write `kernel_figures.json`: what statsmodels computes, and what Stata computed for the file that statsmodels ships.

Run it where statsmodels is installed: python tests/models/make_kernel_figures.py
"""

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
import statsmodels
from statsmodels.nonparametric.kernel_regression import KernelReg

KERNELS = {"gaussian": "s_gau", "boxcar": "s_rec", "triangular": "s_tri", "epanechnikov": "s_epan2"}
"""Stata's names; its "epan2" is 1 − u², and its "epanechnikov" the same kernel with bandwidth √5 h."""


def stata() -> dict[str, object]:
    """Ship accidents by log months of service: Stata's `lpoly accident service, degree(0) bwidth(1)`, 40 points."""
    name = "nonparametric/tests/results/results_kernel_regression.csv"
    table = pd.read_csv(files(statsmodels) / name)
    served = table["service"].to_numpy() > 0
    x, y = np.log(table["service"].to_numpy()[served]), table["accident"].to_numpy()[served]
    return {
        "source": f"statsmodels {statsmodels.__version__}, {name}",
        "bandwidth": 1.0,
        "x": x.tolist(),
        "y": y.tolist(),
        "grid": np.linspace(x.min(), x.max(), 40).tolist(),
        "estimates": {kernel: table[column].tolist() for kernel, column in KERNELS.items()},
    }


def local_constant() -> dict[str, object]:
    """`KernelReg(reg_type="lc")` with the Gaussian kernel, at given bandwidths and at those of `cv_ls`."""
    random = np.random.default_rng(0)
    x = np.column_stack([random.uniform(0, 5, 60), random.uniform(0, 100, 60)])
    y = 2 * np.sin(x[:, 0]) + x[:, 1] / 50 + random.normal(0, 0.3, 60)
    query = np.column_stack([np.linspace(0.2, 4.8, 15), np.linspace(95, 5, 15)])
    found = {}
    for name, columns, bandwidth in (("one column", [0], [0.4]), ("two columns", [0, 1], [0.5, 20.0])):
        given, kinds = x[:, columns], "c" * len(columns)
        fixed = KernelReg(y, given, kinds, reg_type="lc", bw=bandwidth, rng=0)
        chosen = KernelReg(y, given, kinds, reg_type="lc", bw="cv_ls", rng=0)
        found[name] = {
            "x": given.tolist(),
            "query": query[:, columns].tolist(),
            "bandwidth": bandwidth,
            "estimates": fixed.fit(query[:, columns])[0].tolist(),
            "chosen": chosen.bw.tolist(),
            "error": np.asarray(chosen.cv_loo(chosen.bw, chosen.est["lc"])).item(),
        }
    return {"source": f"statsmodels {statsmodels.__version__}, KernelReg", "y": y.tolist(), **found}


if __name__ == "__main__":
    figures = {"stata": stata(), "statsmodels": local_constant()}
    Path(__file__).with_name("kernel_figures.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
