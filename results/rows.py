"""The translation rows: each is a training from a settings file in this folder, and how it is scored."""

from dataclasses import dataclass
from pathlib import Path

from results.row import ResultRow
from results.scoring import Words


@dataclass(frozen=True)
class Row(ResultRow):
    """One line of the table.

    Args:
        name, what: as for any row.
        folder: data folder, relative to the given one.
        source, target: the two languages.
        test: name of the test files.
        published: the published figure.
        asked: the target for our figure.
        measured: how the published figure was measured.
        by: who published it.
        words: the baseline's tokenization, see `results.scoring`.
        beam: the baseline's beam width.
        length_penalty: length penalty of that beam, chosen on validation data.
        either_way: whether the first of two trainings learns both directions with one model.
        note: further notes for the reader.
    """

    folder: str
    source: str
    target: str
    test: str
    published: float
    asked: float
    measured: str
    by: str
    words: Words = "spacy"
    beam: int = 1
    length_penalty: float = 1.0
    either_way: bool = False
    note: str = ""

    @property
    def configs(self) -> tuple[Path, ...]:
        """The settings of the training, and of a second one that starts from its weights, if any."""
        both = self.config, self.config.with_stem(f"{self.name}_then")
        return tuple(path for path in both if path.exists())


_BASELINE = "lower-cased words of spaCy's blank tokenizer, greedy, BLEU without smoothing"
_SEQ2SEQ = "bentrevett/pytorch-seq2seq"

ROWS = (
    Row(
        "multi30k_gru",
        "Multi30k De→En, GRU with additive attention",
        "multi30k",
        "de",
        "en",
        "test_2016_flickr",
        28.30,
        31,
        _BASELINE,
        f"{_SEQ2SEQ}, notebook 3",
    ),
    Row(
        "multi30k_transformer",
        "Multi30k De→En, Transformer",
        "multi30k",
        "de",
        "en",
        "test_2016_flickr",
        36.52,
        37,
        _BASELINE,
        f"{_SEQ2SEQ}, legacy notebook 6",
    ),
    Row(
        "multi30k_en_de",
        "Multi30k En→De, Transformer, beam of 5",
        "multi30k",
        "en",
        "de",
        "test_2016_flickr",
        41.02,
        40,
        "lower-cased words of Moses' tokenizer, beam of 5, fairseq's BLEU without smoothing; Wu et al. 2021",
        "LividWo/Revisit-MMT, Transformer-tiny",
        "moses",
        5,
        length_penalty=1.4,
        either_way=True,
        note='the first training learns both directions with one model (Ding et al. 2021, "Improving neural machine '
        'translation by bidirectional training"); the second continues from its weights with this direction only. '
        "Greedy validation BLEU of German was 36.9 after the first training and 39.9 after the second; with a beam of "
        "five and length penalties 1, 1.2 and 1.4 it was 41.05, 41.21 and 41.32, with validation loss 1.463. Without "
        "the other direction, two trainings of 5,200 and 2,400 updates reached 40.5 there (validation loss 1.53), and "
        "one of 7,000 updates with dropout 0.2 reached 40.3 (1.547)",
    ),
)
