"""Write `kernel_figures.json`: what statsmodels and nprobust compute, and Stata computed for a file of statsmodels.

Run it where both are installed: python tests/models/make_kernel_figures.py
"""

import json
from importlib.metadata import version
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


def corrected_aic(y: np.ndarray, x: np.ndarray, kinds: str, bandwidth: np.ndarray) -> float:
    """Hurvich, Simonoff and Tsai's criterion, from the estimates of unit vectors.

    `KernelReg.aic_hurvich` takes the trace of the matrix of local means also for `reg_type="ll"`.
    """
    columns = [KernelReg(unit, x, kinds, reg_type="ll", bw=bandwidth, rng=0).fit()[0] for unit in np.eye(len(y))]
    hat = np.column_stack(columns)
    trace, count = np.trace(hat), len(y)
    return float(np.log(np.mean((y - hat @ y) ** 2)) + (1 + trace / count) / (1 - (trace + 2) / count))


def local_linear() -> dict[str, object]:
    """`KernelReg(reg_type="ll")` with the Gaussian kernel, at given bandwidths and at those of `cv_ls` and `aic`."""
    random = np.random.default_rng(1)
    x = np.column_stack([random.uniform(0, 5, 60), random.uniform(0, 100, 60)])
    y = 2 * np.sin(x[:, 0]) + x[:, 1] / 50 + random.normal(0, 0.3, 60)
    query = np.column_stack([np.linspace(0.1, 4.9, 15), np.linspace(98, 2, 15)])
    found = {}
    for name, columns, bandwidth in (("one column", [0], [0.4]), ("two columns", [0, 1], [0.5, 20.0])):
        given, kinds = x[:, columns], "c" * len(columns)
        fixed = KernelReg(y, given, kinds, reg_type="ll", bw=bandwidth, rng=0)
        found[name] = {
            "x": given.tolist(),
            "query": query[:, columns].tolist(),
            "bandwidth": bandwidth,
            "estimates": fixed.fit(query[:, columns])[0].tolist(),
        }
        for way in ("cv_ls", "aic"):
            chosen = KernelReg(y, given, kinds, reg_type="ll", bw=way, rng=0).bw
            if way == "aic":
                value = corrected_aic(y, given, kinds, chosen)
            else:
                value = np.asarray(fixed.cv_loo(chosen, fixed.est["ll"])).item()
            found[name][way] = {"chosen": chosen.tolist(), "criterion": value}
    return {"source": f"statsmodels {statsmodels.__version__}, KernelReg", "y": y.tolist(), **found}


def categories() -> dict[str, object]:
    """`KernelReg(reg_type="lc")` with Aitchison and Aitken's kernel for a column of categories."""
    random = np.random.default_rng(2)
    x = np.column_stack([random.uniform(0, 5, 60), random.integers(0, 3, 60)])
    y = np.sin(x[:, 0]) + x[:, 1] + random.normal(0, 0.2, 60)
    query = np.column_stack([np.linspace(0.2, 4.8, 9), np.arange(9) % 3])
    model = KernelReg(y, x, "cu", reg_type="lc", bw=[0.5, 0.2], rng=0)
    return {
        "source": f"statsmodels {statsmodels.__version__}, KernelReg",
        "x": x.tolist(),
        "y": y.tolist(),
        "query": query.tolist(),
        "bandwidth": [0.5, 0.2],
        "estimates": model.fit(query)[0].tolist(),
    }


def robust() -> dict[str, object]:
    """Estimates of `lprobust(p=1)`, and bias-corrected with b = h."""
    random = np.random.default_rng(3)
    x = random.uniform(0, 5, 100)
    y = np.sin(2 * x) + random.normal(0, 0.3, 100)
    places = np.linspace(0, 5, 9)
    found = {}
    for kernel, name in (("epanechnikov", "epa"), ("triangular", "tri"), ("boxcar", "uni"), ("gaussian", "gau")):
        import nprobust

        table = nprobust.lprobust(y, x, eval=places, p=1, h=0.8, b=0.8, kernel=name, bwcheck=None).Estimate
        found[kernel] = {"estimates": table[:, 4].tolist(), "corrected": table[:, 5].tolist()}
    return {
        "source": f"nprobust {version('nprobust')}, lprobust",
        "x": x.tolist(),
        "y": y.tolist(),
        "query": places.tolist(),
        "bandwidth": 0.8,
        **found,
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
    figures = {
        "stata": stata(),
        "statsmodels": local_constant(),
        "local linear": local_linear(),
        "categories": categories(),
        "nprobust": robust(),
    }
    Path(__file__).with_name("kernel_figures.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
