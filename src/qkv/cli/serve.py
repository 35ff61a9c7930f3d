"""`qkv serve`: trained models behind HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded


@guarded
def serve(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, one model each. Or: example.")],
    port: Annotated[int, typer.Option(help="Port; 0 for any free port.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen at; other machines reach 0.0.0.0.")] = "127.0.0.1",
    token: Annotated[
        str,
        typer.Option(
            envvar="QKV_TOKEN", help="What requests must know; needed where other machines reach the address."
        ),
    ] = "",
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Another name of the server, such as that of a proxy; several times.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Most inputs computed together.", min=1, max=4096)] = 64,
    waiting: Annotated[int, typer.Option(help="Most inputs that wait for a model; more get 429.", min=1)] = 1024,
    timeout: Annotated[float, typer.Option(help="Seconds that an answer may take.", min=0.1, max=3600)] = 60.0,
    device: f.OnDevice = "cpu",
) -> None:
    """Serve models over HTTP: JSON, batches of waiting requests, streamed texts, OpenAPI, health and metrics.

    Example: qkv serve runs/de-en --port 8000
    """
    from qkv.errors import UnsupportedError, expect_enough_memory

    try:
        from qkv.serving.serve import serve as run
    except ImportError as error:
        expect_enough_memory(error)
        hint = "Install them: in the checkout, pip install '.[serve]'."
        raise UnsupportedError("serve", "prometheus-client, starlette and uvicorn", str(error), hint) from error
    run(
        runs,
        host=host,
        port=port,
        allowed_hosts=allowed_host or (),
        token=token,
        batch=batch,
        waiting=waiting,
        timeout=timeout,
        device=device,
    )
