"""`qkv embed`: vectors of the lines of standard input."""

from pathlib import Path

from qkv.cli.tables import command_of_table
from qkv.tasks.embed.settings import EmbedSettings


def _embed(runs: list[Path], settings: EmbedSettings) -> None:
    from io import BytesIO

    import numpy as np
    from numpy.typing import NDArray

    from qkv.checkpoint.disk import save_file
    from qkv.tasks.answering import answered, parts_of_stdin
    from qkv.tasks.load import load
    from qkv.tasks.notes import working
    from qkv.tasks.streams import format_json, write, write_text

    with working("loading the model"):
        encoder = load(runs[0], settings.device, task="fill")

    def embed(lines: list[str], first: int) -> NDArray[np.float32]:
        return encoder.embed(lines, pool=settings.pool, unscaled=settings.unscaled, first=first).numpy()

    parts = answered("embedding", parts_of_stdin(), embed)
    if settings.out is None:
        # The shortest decimal number of a float32 is read back as the same.
        rows = ((first + index, row) for first, vectors in parts for index, row in enumerate(vectors))
        write_text(format_json({"line": line, "vector": [float(str(x)) for x in row]} for line, row in rows))
        return
    vectors = np.concatenate([np.empty((0, encoder.model.config.width), np.float32), *(part for _, part in parts)])
    array = BytesIO()
    np.save(array, vectors)
    save_file(settings.out, array.getvalue())
    write([{"file": settings.out}], ())


embed = command_of_table("embed", EmbedSettings, _embed)
