"""`qkv translate`: translate standard input to standard output."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.paths import PICTURES, expect_output_file
from qkv.cli.shards import Out, Pattern, answer_shards, expect_shards
from qkv.tasks.translate.settings import DecodingSettings

if TYPE_CHECKING:
    from qkv.tasks.translate.predict import Translation


@guarded
def translate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders; several form an ensemble. Or: example.")
    ],
    beam: Annotated[int, f.decoding("beam")] = DecodingSettings.beam,
    length_penalty: Annotated[float, f.decoding("length_penalty")] = DecodingSettings.length_penalty,
    normalization: Annotated[str, f.decoding("normalization")] = DecodingSettings.normalization,
    coverage: Annotated[float, f.decoding("coverage")] = DecodingSettings.coverage,
    stop: Annotated[str, f.decoding("stop")] = DecodingSettings.stop,
    max_tokens: Annotated[int | None, f.decoding("max_tokens")] = DecodingSettings.max_tokens,
    n_best: Annotated[int, f.decoding("n_best")] = DecodingSettings.n_best,
    sample: Annotated[bool, typer.Option("--sample", help="Sample tokens by their probabilities.")] = False,
    temperature: Annotated[
        float | None, typer.Option(help="With --sample: below 1 sharper, above 1 flatter (default 1).")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="With --sample: sample from the k most likely tokens.")] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="With --sample: sample from the most likely tokens with this total probability."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="With --sample: random seed (default 0).")] = None,
    mean: Annotated[str, f.decoding("mean")] = DecodingSettings.mean,
    average: Annotated[int, typer.Option(help="Average the weights of this many newest checkpoints of each run.")] = 1,
    replace_unknown: Annotated[
        bool, typer.Option("--replace-unknown", help="Replace unknown tokens by source words.")
    ] = False,
    valid_source: Annotated[
        Path | None, typer.Option(help="With --replace-unknown: sentences for choosing layer and head.")
    ] = None,
    valid_target: Annotated[Path | None, typer.Option(help="Their translations.")] = None,
    attention: Annotated[Path | None, f.picture_option("the attention")] = None,
    show: Annotated[bool, f.terminal_option("the attention")] = False,
    line_buffered: f.LineBuffered = False,
    source_col: f.SourceColumn = None,
    features_col: f.FeaturesColumn = None,
    shards: Pattern = None,
    out: Out = None,
    device: f.OnDevice = "cpu",
) -> None:
    """Translate standard input, one sentence per line, to standard output.

    Example: echo "Ein Hund läuft." | qkv translate runs/de-en --beam 5 --show
    """
    from qkv.decode.sampling import RowKeys
    from qkv.errors import on_command_line
    from qkv.settings import as_dict
    from qkv.tasks.align.unknown import as_unknown
    from qkv.tasks.answering import answered, parts_of_stdin
    from qkv.tasks.drawing import Drawing, alignments
    from qkv.tasks.example_run import GrammarCheck, sentences
    from qkv.tasks.length import CutCounter
    from qkv.tasks.notes import as_json, note, working
    from qkv.tasks.streams import format_json, format_lines, write_text
    from qkv.tasks.tokenizing import UnknownCounter, unknown_name
    from qkv.tasks.translate.decoding import Decoding, as_sampling
    from qkv.tasks.translate.predict import Translator, columns_of

    expect_output_file("attention", attention, PICTURES)
    batch = expect_shards(shards, out, {"attention": attention, "show": show, "line_buffered": line_buffered})
    with working("loading the model"):
        translator = columns_of(Translator.load(runs, device, average=average), source_col, features_col)
        names: dict[str, Any] = {"normalization": normalization, "stop": stop, "mean": mean}
        how = Decoding(
            beam,
            length_penalty,
            coverage=coverage,
            n_best=n_best,
            sampling=as_sampling(sample, temperature, top_k, top_p, seed),
            max_tokens=max_tokens,
            unknown=as_unknown(translator, replace_unknown, valid_source, valid_target),
            **names,
        )
    tabs = translator.table is not None
    examples = sentences(runs) if batch is None else ()
    for sentence in examples:
        note(f"qkv: translating {sentence!r}; a pipe gives sentences of your own")
    show = show or bool(examples)
    drawing = Drawing(attention, terminal=show)
    grammar = GrammarCheck(runs)

    def translated(parts: Iterable[list[str]], file: Path | None = None) -> Iterator[str]:
        cut, keys, unknown = CutCounter(), RowKeys(), UnknownCounter(unknown_name(translator.tokenizer.source))

        def answer(lines: list[str], first: int) -> "list[list[Translation]]":
            grammar.check(lines, first, translator.tokenizer)
            return translator.translate_best(lines, how, attention=drawing.active, first=first, keys=keys)

        for first, results in answered("translating", parts, answer, file):
            if as_json():
                yield from format_json(_objects(results, start=first))
            elif n_best == 1:
                yield format_lines(best.text for best, *_ in results)
            else:
                yield format_lines(_listed(results, start=first))
            cut.add(all(translation.finished for translation in best) for best in results)
            unknown.add(best[0].source_tokens for best in results)
            drawing.add(alignments(best[0] for best in results))
        if grammar.failed:
            return
        unknown.report(file)
        if (message := cut.message(on_command_line("max_tokens"))) is not None:
            note(f"qkv: {message}" if file is None else f"qkv: {file}: {message}")

    if batch is not None:
        work = {"command": "translate", "source_col": source_col, "features_col": features_col, **as_dict(how)}
        answer_shards(batch, "translated", work, runs, translated, average=average, tabs=tabs)
        return
    parts = [list(examples)] if examples else parts_of_stdin(line_buffered=line_buffered, tabs=tabs)
    write_text(translated(parts))
    drawing.finish()


def _listed(translations: "list[list[Translation]]", start: int) -> Iterator[str]:
    """Format number, score and text of each translation, line by line."""
    for number, best in enumerate(translations, start):
        for translation in best:
            score = translation.score if translation.ranked is None else translation.ranked
            text = translation.text.replace("\t", " ")
            yield f"{number}\t{score:.4f}\t{text}"


def _objects(ranked: "list[list[Translation]]", start: int) -> Iterator[dict[str, object]]:
    """Return each line with its translations, best first."""
    from qkv.tasks.streams import fields_of

    for number, best in enumerate(ranked, start):
        translations = [
            {name: item for name, item in fields_of(translation).items() if name != "source"} for translation in best
        ]
        yield {"line": number, "source": best[0].source, "translations": translations}
