"""`qkv train regress`: from columns of a CSV file to a fitted regression."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.failure import guarded
from qkv.cli.place import expect_place
from qkv.cli.training import follow


@guarded
def train_regress(
    data: Annotated[Path | None, typer.Option(help="A CSV file, or one with tabs or semicolons (.gz too).")] = None,
    x: Annotated[
        list[str] | None, typer.Option("--x", help="Input columns: --x age,income or --x age --x income.")
    ] = None,
    y: Annotated[str | None, typer.Option("--y", help="The column to predict.")] = None,
    decimal: Annotated[str | None, typer.Option(help="What separates decimals: point (default) or comma.")] = None,
    missing: Annotated[str | None, typer.Option(help="Rows that lack a number: refuse (default) or skip.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder.")] = None,
    kernel: Annotated[str | None, typer.Option(help="gaussian (default), epanechnikov, triangular or boxcar.")] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            help="A number, one per column (0.5,20), cross-validation (default: a grid of leave-one-out errors) or "
            "learned (their gradient)."
        ),
    ] = None,
    beyond: Annotated[
        str | None, typer.Option(help="Where no point has weight: nearest (default), mean or nan.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw points, curve and 95 % interval: FILE.svg or FILE.png.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings as a TOML file; flags override it.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Show all settings as TOML and exit.")] = False,
) -> None:
    """Fit a Nadaraya-Watson regression: predictions are attention over the rows of a table.

    Example: qkv train regress --data rents.csv --x area --y rent --out runs/rent
    """
    from qkv.tasks.regression import RECIPE, as_bandwidth

    expect_place("--picture", picture, (".svg", ".png"))
    flags = {
        "data": data,
        "x": _names(x),
        "y": y,
        "decimal": decimal,
        "missing": missing,
        "kernel": kernel,
        "bandwidth": as_bandwidth(bandwidth),
        "beyond": beyond,
        "config": config,
        "out": out,
        "print_config": print_config,
    }
    follow(RECIPE, flags)
    if picture is not None and out is not None and not print_config:
        from qkv.tasks.regression_picture import save_picture
        from qkv.tasks.regressor import Regressor

        save_picture(Regressor.load(out), picture)


def _names(given: list[str] | None) -> list[str] | None:
    """Split names at commas; a name with a comma can be written in a TOML file."""
    return None if not given else [name.strip() for some in given for name in some.split(",") if name.strip()]
