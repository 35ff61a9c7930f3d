"""`qkv align`: align source and target words of two files."""

from dataclasses import replace
from pathlib import Path

from qkv.cli.shards import finish_shards, shards_of
from qkv.cli.tables import command_of_table
from qkv.settings import as_dict
from qkv.tasks.align.settings import AlignSettings


def _align(runs: list[Path], settings: AlignSettings) -> None:
    from qkv.tasks.align.file_aligner import Aligned, FileAligner
    from qkv.tasks.drawing import Drawing
    from qkv.tasks.notes import as_json, note, working
    from qkv.tasks.shards import model_digest
    from qkv.tasks.streams import format_lines, write_text

    batch = shards_of(settings)
    with working("aligning"):
        aligner = FileAligner(runs[0], settings)

    def aligned(files: AlignSettings) -> Aligned:
        with working("aligning" if batch is None else f"aligning {files.data}"):
            return aligner.align(files)

    def written(result: Aligned) -> str:
        return format_lines(result.as_json() if as_json() else result.as_pharaoh())

    if batch is not None:
        models = runs if settings.reverse is None else [*runs, settings.reverse]
        columns = {name: item for name, item in as_dict(settings).items() if name in AlignSettings.as_trained}
        work = {"command": "align", "readings": aligner.readings, "symmetrize": settings.symmetrize, **columns}
        for line in aligner.report:
            note(line)
        work["model"] = model_digest(models)
        one = replace(settings, shards=None, out=None)
        finish_shards(batch, "aligned", work, lambda path: [written(aligned(replace(one, data=path)))])
        return
    result = aligned(settings)
    write_text([written(result)])
    drawing = Drawing(settings.attention, terminal=False)
    drawing.add(result.alignments())
    drawing.finish()
    for line in result.report:
        note(line)


align = command_of_table("align", AlignSettings, _align)
