"""The rows of the result table: each a training from a settings file kept here, and how it is scored."""

from dataclasses import dataclass
from pathlib import Path

from results.scoring import Words

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        name: what `python -m results` takes.
        what: for the reader.
        folder: of the data, below the folder that is given.
        source, target: the two languages.
        test: the name of the test files.
        published: the figure of others.
        asked: the least that ours should reach.
        measured: how they measured it.
        by: who.
        words: what the rival's words are, see `results.scoring`.
        beam: how many hypotheses the rival's decoding keeps.
        length_penalty: of that beam, chosen on validation data.
        either_way: whether the first of two trainings learns to translate in both directions, by one model.
        note: what else a reader should know.
    """

    name: str
    what: str
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
        """The settings of the training, and those of a second one that goes on from its weights, where there is one."""
        both = HERE / f"{self.name}.toml", HERE / f"{self.name}_then.toml"
        return tuple(path for path in both if path.exists())

    @property
    def record(self) -> Path:
        """Where the figures are kept."""
        return HERE / "runs" / self.name / "figures.json"


_RIVAL = "lower-cased words of spaCy's blank tokenizer, greedy, BLEU without smoothing"
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
        _RIVAL,
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
        _RIVAL,
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
        'translation by bidirectional training"), the second this one from its weights. After the first validation '
        "BLEU of German, greedy, was 36.9, after the second 39.9, by a beam of five with length penalties 1, 1.2 and "
        "1.4 41.05, 41.21 and 41.32; validation loss 1.463. Without the other direction two trainings of 5,200 and "
        "2,400 updates came to 40.5 there (validation loss 1.53), one of 7,000 with dropout 0.2 to 40.3 (1.547)",
    ),
)
