"""Scoring a trained model on files."""

from pathlib import Path

from qkv.checkpoint.disk import replace_file
from qkv.metrics.figure import Figure
from qkv.tasks.parallel import Files, read_for_scoring
from qkv.tasks.translation import judge
from qkv.tasks.translator import Translator


def evaluate_translation(run: Path, files: Files, device: str = "cpu", out: Path | None = None) -> list[Figure]:
    """Score a translation model.

    Args:
        run: the folder that training wrote, or one checkpoint in it.
        files: sources and their translations.
        device: where to compute.
        out: where to write the translations, if anywhere.

    Returns:
        The figures.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        DataError: a file cannot be used; names file and line.
    """
    pairs = read_for_scoring(files)
    translator = Translator.load(run, device)
    hypotheses = translator.translate([pair.source for pair in pairs])
    if out is not None:
        replace_file(out, "".join(f"{line}\n" for line in hypotheses).encode("utf-8"))
    return judge(hypotheses, pairs)
