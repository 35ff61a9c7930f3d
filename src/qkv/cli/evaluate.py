"""`qkv evaluate`: score a trained model on files."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.failure import guarded
from qkv.cli.place import expect_place


@guarded
def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder, or one checkpoint in it.")],
    source: Annotated[Path | None, typer.Option(help="For translators: source sentences, one per line.")] = None,
    target: Annotated[Path | None, typer.Option(help="Their translations, line by line.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Or one file as for training: source<TAB>target, label<TAB>text, words in columns, or CSV."),
    ] = None,
    text: Annotated[Path | None, typer.Option(help="For language models: plain text.")] = None,
    beam: Annotated[int, typer.Option(help="For translators and pointer networks: beam width; 1 is greedy.")] = 1,
    length_penalty: Annotated[
        float, typer.Option(help="For a beam: 0 compares log-probabilities, 1 their mean per token.")
    ] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(help="Maximum tokens per translation; default: 3 per source token plus 16.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the model's output to this file.")] = None,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, ...")] = "cpu",
) -> None:
    """Score a model with the same code as training.

    Translations: sacreBLEU with its signature, chrF, exact match and word error rate. Labels and tags: accuracy and
    F1. Text: loss, perplexity and bits per character. Pointer networks: right positions and exact answers. Regressions:
    errors and R².

    Example: qkv evaluate runs/de-en --source test.de --target test.en
    """
    from qkv.tasks.decoding import Decoding
    from qkv.tasks.evaluation import evaluate as score
    from qkv.tasks.evaluation import evaluate_text
    from qkv.tasks.parallel import Files
    from qkv.tasks.streams import write_lines

    expect_place("--out", out)
    files = Files(source=source, target=target, data=data)
    how = Decoding(beam, length_penalty, max_tokens=max_tokens)
    figures = evaluate_text(run, text, files, device) if text is not None else score(run, files, device, out, how)
    write_lines(f"{figure.name}\t{figure.value:.4f}\t{figure.signature}" for figure in figures)
