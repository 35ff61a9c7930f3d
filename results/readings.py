"""Measure which attention weights of Transformers align words, and write the table of `docs/how_to/translate.md`.

    python -m results.readings --runs FOLDER     train what is missing, measure every model, write figures and table
    python -m results.readings                   write the table from the stored figures

The language is made up, so that the links are known: each target word is its source word with a capital, in another
order. Every model has two encoder layers; one thread and a minute suffice for most. The last row is the translator in
the package, on four sentences that were aligned by hand.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, Literal, NamedTuple

import torch

from qkv.data.corpus import Pair
from qkv.data.phrases import generate
from qkv.metrics.alignment import Links, alignment_error_rate, parse_links
from qkv.metrics.ibm_model_1 import ExpectedLinks
from qkv.tasks.example_run import FOLDER as EXAMPLE
from qkv.tasks.run import train_run
from qkv.tasks.translate.aligner import Aligner
from qkv.tasks.translate.alignment_reading import AlignmentReading
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.recipe import RECIPE

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "results" / "runs" / "readings" / "record.json"
PAGE = ROOT / "docs" / "how_to" / "translate.md"
BEGIN, END = "<!-- python -m results.readings -->", "<!-- end of the table -->"
TRAINED, VALID, TESTED, STEPS = 3000, 200, 200, 400
RULES: dict[str, tuple[int, Literal["at", "after"]]] = {
    "first layer, at the step": (0, "at"),
    "layer before the last, at the step": (-2, "at"),
    "last layer, at the step": (-1, "at"),
    "first layer, after the step": (0, "after"),
    "layer before the last, after the step": (-2, "after"),
    "last layer, after the step": (-1, "after"),
}
"""Readings that any model has, as mean of heads: the layer and when. The layer before the last can be the only one."""
_NOUNS, _VERBS, _ADJECTIVES = ([f"{kind}{number}" for number in range(24)] for kind in "nva")
_BY_HAND = (
    (
        "Die alte Frau hat einen kleinen Hund gesehen .",
        "The old woman has seen a small dog .",
        "0-0 1-1 2-2 3-3 7-4 4-5 5-6 6-7 8-8",
    ),
    ("Der alte Mann sieht einen Hund .", "The old man sees a dog .", "0-0 1-1 2-2 3-3 4-4 5-5 6-6"),
    ("Das Kind hat einen Ball .", "The child has a ball .", "0-0 1-1 2-2 3-3 4-4 5-5"),
    ("Die Frau sieht ein Kind .", "The woman sees a child .", "0-0 1-1 2-2 3-3 4-4 5-5"),
)


def reordered(random: Random) -> tuple[list[str], list[int]]:
    """Return a sentence and the order of its translation: verbs come last, and adjectives after their nouns."""
    words, order, verbs = list[str](), list[int](), list[int]()
    for clause in range(random.randint(1, 2)):
        for phrase in range(2):
            if phrase:
                verbs.append(len(words))
                words.append(random.choice(_VERBS))
            start = len(words)
            adjectives = random.choices(_ADJECTIVES, k=random.randint(0, 1))
            words += ["the" if random.random() < 0.6 else "one", *adjectives, random.choice(_NOUNS)]
            noun = len(words) - 1
            order += [start, noun, *range(start + 1, noun)]
        order += verbs
        verbs = []
        if clause == 0:
            order.append(len(words))
            words.append(",")
    return [*words, "."], [*order, len(words)]


class Model(NamedTuple):
    """A row of the table.

    Attributes:
        norm: where its norms are.
        layers: of the decoder.
    """

    norm: Literal["before", "after"]
    layers: int

    @property
    def name(self) -> str:
        """Layers and the place of the norms."""
        return f"{self.layers}, norms {self.norm} the sublayers"


MODELS = tuple(Model(norm, layers) for layers in (1, 2, 3, 6) for norm in ("before", "after"))


class Text(NamedTuple):
    """Pairs with their links: `links[n]` belongs to `pairs[n]`."""

    pairs: list[Pair]
    links: list[Links]


def draw() -> Iterator[Text]:
    """Draw the sentences for training, validation and test."""
    random = Random("readings:reordered")
    for count in (TRAINED, VALID, TESTED):
        drawn = [reordered(random) for _ in range(count)]
        pairs = [
            Pair(" ".join(words), " ".join(words[place].capitalize() for place in order), number)
            for number, (words, order) in enumerate(drawn, 1)
        ]
        yield Text(pairs, [parse_links(" ".join(f"{s}-{t}" for t, s in enumerate(order))) for _, order in drawn])


def train(model: Model, texts: Sequence[Text], folder: Path) -> Path:
    """Train a model, or find it trained; return its run."""
    files = [folder / name for name in ("train.tsv", "valid.tsv")]
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in zip(files, texts, strict=False):
        lines = "".join(f"{pair.source}\t{pair.target}\n" for pair in text.pairs)
        if not file.exists() or file.read_text(encoding="utf-8") != lines:
            file.write_text(lines, encoding="utf-8")
    sizes = {"width": 32, "heads": 4, "feed_forward": 64, "encoder_layers": 2, "decoder_layers": model.layers}
    settings = RECIPE.load_settings(
        {
            "data": {"data": files[0], "valid_data": files[1]},
            "tokenizer": {"tokenizer": "word", "minimum": 1},
            "model": {"model": "transformer", "dropout": 0.0, "norm_first": model.norm == "before", **sizes},
            "training": {
                "steps": STEPS,
                "batch_tokens": 768,
                "optimizer": "muon",
                "learning_rate": 0.01,
                "warmup": 40,
                "validate_every": STEPS,
                "monitor": "loss",
                "label_smoothing": 0.0,
                "log_every": 100,
            },
        }
    )
    run = folder / f"{model.layers}-{model.norm}"
    if train_run(RECIPE, settings, run).exit_code:
        raise SystemExit(1)
    return run


def measure(run: Path, valid: Sequence[Pair], test: Text) -> dict[str, Any]:
    """Return the alignment error of every reading on test sentences, and which one the validation pairs choose."""
    aligner = Aligner(Translator.load(run))
    expected = ExpectedLinks([(pair.source.split(), pair.target.split()) for pair in valid])
    chosen, agreement = aligner.choose_by_agreement(valid, expected)
    errors = {
        when: [_error(aligner, AlignmentReading(layer, None, when), test) for layer in aligner.layers]
        for when in ("at", "after")
    }
    best, figure = aligner.choose(test.pairs, test.links)
    figures = aligner.translator.translate([pair.source for pair in test.pairs])
    right = [text == pair.target for text, pair in zip(figures, test.pairs, strict=True)]
    return {
        "exact": 100 * fmean(right),
        "mean_of_heads": errors,
        "chosen": {**_place(aligner, chosen), "agreement": agreement.value, "error": _error(aligner, chosen, test)},
        "best": {**_place(aligner, best), "error": figure.value},
    }


def _error(aligner: Aligner, reading: AlignmentReading, text: Text) -> float:
    return alignment_error_rate(aligner.align(text.pairs, reading), text.links).value


def _place(aligner: Aligner, reading: AlignmentReading) -> dict[str, Any]:
    return {"layer": aligner.layers.index(reading.layer), "head": reading.head, "when": reading.when}


def measure_all(folder: Path) -> dict[str, Any]:
    """Train and measure every model, and the one in the package."""
    torch.set_num_threads(1)
    record = {}
    training, valid, test = draw()
    for model in MODELS:
        record[model.name] = measure(train(model, (training, valid), folder), valid.pairs, test)
    by_hand = Text(
        [Pair(source, target, number) for number, (source, target, _) in enumerate(_BY_HAND, 1)],
        [parse_links(links) for _, _, links in _BY_HAND],
    )
    record["2, norms before the sublayers (`example`)"] = measure(EXAMPLE, generate(20_500, 0)[-500:], by_hand)
    return record


def table(record: dict[str, Any]) -> str:
    """Return the table of the page, and the mean error of each rule that needs no validation data."""
    head = "| decoder layers | exact | at the step, layer by layer | after the step | chosen | best |"
    lines = [head, "|---|---|---|---|---|---|", *(_line(name, row) for name, row in record.items())]
    rules = ["| what is read without a choice, as mean of heads | mean error |", "|---|---|"]
    for rule, (layer, when) in RULES.items():
        errors = (row["mean_of_heads"][when] for row in record.values())
        rules.append(f"| {rule} | {fmean(each[max(layer, -len(each))] for each in errors):.1f} |")
    for name in ("chosen", "best"):
        what = "as held-out pairs choose" if name == "chosen" else "the best, which needs manual alignments"
        rules.append(f"| {what} | {fmean(row[name]['error'] for row in record.values()):.1f} |")
    return "\n".join([*rules, "", *lines])


def _line(name: str, row: dict[str, Any]) -> str:
    at, after = (" ".join(f"{error:.0f}" for error in row["mean_of_heads"][when]) for when in ("at", "after"))
    chosen, best = (_shown(row[which]) for which in ("chosen", "best"))
    return f"| {name} | {row['exact']:.1f} % | {at} | {after} | {chosen} | {best} |"


def _shown(reading: dict[str, Any]) -> str:
    head = "mean" if reading["head"] is None else f"head {reading['head']}"
    return f"{reading['error']:.1f} (layer {reading['layer']}, {head}, {reading['when']})"


def main() -> None:
    """Parse the command line, measure, write the table into the page."""
    parser = argparse.ArgumentParser(prog="python -m results.readings", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, help="where to create run folders, or find them trained")
    runs = parser.parse_args().runs
    if runs is not None:
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        RECORD.write_text(json.dumps(measure_all(runs), indent=1) + "\n", encoding="utf-8")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    shown = table(json.loads(RECORD.read_text(encoding="utf-8")))
    PAGE.write_text(f"{before}{BEGIN}\n{shown}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
