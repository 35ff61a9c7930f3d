"""`qkv evaluate`: score a trained model on files."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.paths import expect_output_file
from qkv.settings import help_of
from qkv.tasks.translate.settings import TRANSLATE, DecodingSettings, TranslateFiles

BLEU = help_of(TranslateFiles, "bleu_tokenize", "as in training")


@guarded
def evaluate(
    run: f.Run,
    source: Annotated[Path | None, typer.Option(help="For translators: source sentences, one per line.")] = None,
    target: Annotated[Path | None, typer.Option(help="Their translations, line by line.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Or one file as for training: source<TAB>target, label<TAB>text, words in columns, or CSV."),
    ] = None,
    text: Annotated[Path | None, typer.Option(help="For language models: plain text.")] = None,
    source_col: f.SourceColumn = None,
    target_col: f.TargetColumn = None,
    features_col: f.FeaturesColumn = None,
    source_sep: f.SourceSeparator = None,
    target_sep: f.TargetSeparator = None,
    features_sep: f.FeaturesSeparator = None,
    beam: Annotated[int, f.decoding("beam", "translators and pointer networks")] = DecodingSettings.beam,
    length_penalty: Annotated[float, f.decoding("length_penalty", "a beam")] = DecodingSettings.length_penalty,
    mean: Annotated[str, f.decoding("mean")] = DecodingSettings.mean,
    max_tokens: Annotated[int | None, f.decoding("max_tokens", "translators")] = DecodingSettings.max_tokens,
    bleu_tokenize: Annotated[str | None, f.option_of(TranslateFiles, "bleu_tokenize", BLEU)] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the model's output to this file.")] = None,
    device: f.OnDevice = "cpu",
) -> None:
    """Score a model with the same code as training.

    Translations: sacreBLEU with its signature, chrF, exact match and word error rate. Labels and tags: accuracy and
    F1. Text: loss, perplexity and bits per character. Pointer networks: right positions and exact answers. Regressions:
    errors and R².

    Example: qkv evaluate runs/de-en --source test.de --target test.en
    """
    sources = {"source": source, "target": target, "data": data}
    columns = {"source_col": source_col, "target_col": target_col, "features_col": features_col}
    separators = {"source_sep": source_sep, "target_sep": target_sep, "features_sep": features_sep}
    from qkv.errors import on_command_line
    from qkv.settings import build
    from qkv.tasks.evaluation import evaluate as score
    from qkv.tasks.evaluation import evaluate_text
    from qkv.tasks.notes import as_json, working
    from qkv.tasks.settings import spelling_settings
    from qkv.tasks.streams import fields_of, write_json, write_lines
    from qkv.tasks.translate.decoding import Decoding

    expect_output_file("out", out)
    settings = {**sources, **columns, **separators, "bleu_tokenize": bleu_tokenize}
    typed = {name: item for name, item in settings.items() if item is not None}
    with spelling_settings(TRANSLATE, typed, on_command_line):
        files = build(TranslateFiles, typed, "data")
    how = Decoding(beam, length_penalty, max_tokens=max_tokens, mean=mean)  # type: ignore[arg-type]  # it checks names
    with working("evaluating"):
        if text is not None:
            figures = evaluate_text(run, text, files, device, out, how)
        else:
            figures = score(run, files, device, out, how)
    if as_json():
        write_json({**fields_of(figure), "unit": figure.unit} for figure in figures)
        return
    write_lines(f"{figure.name}\t{figure.value:.4f}\t{figure.signature}\t{figure.unit}" for figure in figures)
