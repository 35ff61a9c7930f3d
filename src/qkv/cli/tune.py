"""`qkv tune`: measure qkv's own kernels on a GPU, so that `auto` may take them there."""

from typing import Annotated

import typer

from qkv.cli.failure import guarded


@guarded
def tune(device: Annotated[str, typer.Option(help="The GPU, such as cuda.")] = "cuda") -> None:
    """Compare qkv's own GPU kernels with float64 and with PyTorch's operators, and store the table for this GPU.

    Until then auto takes none of them; afterwards those that were exact and faster. qkv explain names the table.

    Example: qkv tune --device cuda
    """
    from qkv.errors import ConfigError, setting
    from qkv.planner import certificates
    from qkv.tasks.streams import aligned, write
    from qkv.tasks.tune import measure
    from qkv.values.devices import as_device

    place = as_device(device)
    if place.type != "cuda":
        raise ConfigError(setting("device"), 'a GPU, "cuda"', f'"{device}"', "On others qkv has no kernels to measure.")
    import torch

    with torch.cuda.device(place):
        rows = [row._asdict() for row in measure(place)]
        name = certificates.this_device()
        assert name is not None
        certificates.store(name, rows)
    cells = [[f"{x:.3g}" if isinstance(x, float) else str(x) for x in row.values()] for row in rows]
    lines = [*aligned([list(rows[0]), *cells]), f"{name}: stored in {certificates.path()}"]
    write([{"device": name, "file": str(certificates.path()), "rows": rows}], lines)
