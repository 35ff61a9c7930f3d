"""Open a prepared corpus for a training; apart from `corpus`, which processes read that load no PyTorch."""

from pathlib import Path

from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, setting
from qkv.tasks.notes import working
from qkv.tasks.prepared.corpus import Corpus
from qkv.tasks.prepared.manifest import CorpusKind
from qkv.training.processes import current


def open_for_training(folder: Path, kind: CorpusKind, tokenizer: Tokenizer | None) -> Corpus:
    """Open a prepared corpus; a new run compares every byte with its sha256, one that resumes need not.

    Args:
        folder: the corpus.
        kind: text or pairs.
        tokenizer: that of the run to resume or to start from; None for a new run.

    Raises:
        DataError: there is no such corpus, or it is damaged.
        ConfigError: it was made with another tokenizer.
    """
    corpus = Corpus.load(folder, kind)
    if tokenizer is None:
        if current().leads:
            with working("verifying the files of the corpus"):
                corpus.verify()
    elif tokenizer.to_json() != corpus.tokenizer.to_json():
        got = f"{folder}, which has another one"
        hint = f"Prepare it with that tokenizer ({setting('tokenizer_from')})."
        raise ConfigError(setting("prepared"), "a corpus with the tokenizer of the run", got, hint)
    return corpus
