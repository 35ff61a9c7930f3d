"""`qkv warm`: compile kernels ahead of their first call."""

import sys
from typing import Annotated

import typer

from qkv.cli.failure import guarded


@guarded
def warm(
    families: Annotated[
        list[str] | None, typer.Argument(help="Only these: additive, rowwise, additive.direct, ...; all by default.")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="float32 or float64; both by default.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Number of processes; by default one per core.", min=1)] = None,
) -> None:
    """Compile the kernels for this processor on all cores, so that no later call waits. Interrupt and repeat freely.

    Example: qkv warm additive recurrent --dtype float32
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from qkv.tasks import warming
    from qkv.tasks.notes import as_json, quiet
    from qkv.tasks.streams import write_json

    wanted = warming.jobs(families or (), dtype or warming.DTYPES)
    columns = (
        TextColumn("compile"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
    )
    console = Console(file=sys.stderr, highlight=False)
    with Progress(*columns, console=console, disable=quiet()) as progress:
        task = progress.add_task("compile", total=len(wanted), text="")
        for job in warming.run(wanted, jobs):
            progress.update(task, advance=1, text=str(job))
            if as_json():
                write_json([{"kernel": str(job), "dtype": job.dtype}])
