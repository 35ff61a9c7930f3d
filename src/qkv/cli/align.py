"""`qkv align`: align source and target words of two files."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.shards import Out, Pattern, expect_shards, finish_shards
from qkv.tasks.translate.settings import ReadingSettings


@guarded
def align(
    run: Annotated[Path, typer.Argument(help="Run folder of a translation model.")],
    source: Annotated[Path | None, typer.Option(help="Source sentences, words separated by spaces.")] = None,
    target: Annotated[Path | None, typer.Option(help="Their translations, line by line.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Or one TSV file; of a model of columns a table with the same columns, whose symbols are words."
        ),
    ] = None,
    reverse: Annotated[Path | None, typer.Option(help="Run folder of a model of the other direction.")] = None,
    symmetrize: Annotated[
        str,
        typer.Option(help="With --reverse: mutual, intersection, union, grow-diagonal or grow-diagonal-final."),
    ] = "mutual",
    gold: Annotated[Path | None, typer.Option(help="Manual alignments, to report the error rate.")] = None,
    gold_from: Annotated[
        int, typer.Option(min=0, max=1, help="Number of a sentence's first word in the manual alignments, 0 or 1.")
    ] = 0,
    valid_source: Annotated[Path | None, typer.Option(help="Sentences for choosing layer and head.")] = None,
    valid_target: Annotated[Path | None, typer.Option(help="Their translations.")] = None,
    valid_data: Annotated[Path | None, typer.Option(help="Or one TSV file.")] = None,
    valid_gold: Annotated[
        Path | None, typer.Option(help="Their manual alignments; without them, agreement with IBM Model 1 decides.")
    ] = None,
    layer: Annotated[str | None, f.option_of(ReadingSettings, "layer")] = ReadingSettings.layer,
    head: Annotated[int | None, f.option_of(ReadingSettings, "head")] = ReadingSettings.head,
    when: Annotated[str | None, f.option_of(ReadingSettings, "when")] = ReadingSettings.when,
    shards: Pattern = None,
    out: Out = None,
    device: f.OnDevice = "cpu",
) -> None:
    """Write the alignment links of each line to standard output, source word first, counted from 0 (Pharaoh format).

    Example: qkv align runs/en-fr --source test.en --target test.fr --gold test.align
    """
    from qkv.errors import ConfigError, setting
    from qkv.tasks.align.file_aligner import Aligned, FileAligner, SentenceFiles
    from qkv.tasks.notes import as_json, note, working
    from qkv.tasks.shards import model_digest
    from qkv.tasks.streams import format_lines, write_text

    if gold_from and gold is None and valid_gold is None:
        hint = "It says how they count words."
        expected = f"{setting('gold')} or {setting('valid_gold')} as well"
        raise ConfigError(setting("gold_from"), expected, "neither", hint)
    batch = expect_shards(shards, out, {"source": source, "target": target, "data": data, "gold": gold})
    names: dict[str, Any] = {"when": when}
    reading = ReadingSettings(layer, head, **names)
    valid = SentenceFiles(valid_source, valid_target, valid_gold, valid_data, gold_from)
    with working("aligning"):
        aligner = FileAligner(run, reverse, valid, reading, symmetrize, device)

    def aligned(files: SentenceFiles) -> Aligned:
        with working("aligning" if batch is None else f"aligning {files.data}"):
            return aligner.align(files)

    def written(result: Aligned) -> str:
        return format_lines(result.as_json() if as_json() else result.as_pharaoh())

    if batch is not None:
        runs = [run] if reverse is None else [run, reverse]
        work = {"command": "align", "readings": aligner.readings, "symmetrize": symmetrize}
        for line in aligner.report:
            note(line)
        work["model"] = model_digest(runs)
        finish_shards(batch, "aligned", work, lambda path: [written(aligned(SentenceFiles(data=path)))])
        return
    result = aligned(SentenceFiles(source, target, gold, data, gold_from))
    write_text([written(result)])
    for line in result.report:
        note(line)
