"""Alignments read from a model that rewrites each source word in another alphabet, reversed or not."""

import shutil
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple, get_args

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors

import qkv
from qkv.data.corpus import Pair
from qkv.data.tokenizer import Tokenizer
from qkv.data.words import split_words
from qkv.errors import CheckpointError, ConfigError, DataError
from qkv.metrics.alignment import alignment_error_rate, parse_alignments
from qkv.metrics.figure import Figure
from qkv.metrics.ibm_model_1 import ExpectedLinks
from qkv.tasks.align.file_aligner import Aligned, FileAligner
from qkv.tasks.align.settings import AlignSettings
from qkv.tasks.run import train_run
from qkv.tasks.translate.aligner import NO_WORD, Aligner, join, likeliest, mutual, words_of_tokens
from qkv.tasks.translate.alignment_reading import AGREEMENT, AlignmentReading, stored_reading
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.recipe import RECIPE
from qkv.tasks.translate.settings import ReadingSettings, When


class SentenceFiles(NamedTuple):
    """Sentences, their translations, and manual alignments that count words from 0 or 1."""

    source: Path | None = None
    target: Path | None = None
    gold: Path | None = None
    gold_from: int = 0


_NO_FILES = SentenceFiles()


def _mirrored(count: int, seed: int) -> list[Pair]:
    """Sentences whose translation has the words in the opposite order."""
    random = Random(seed)
    found = []
    for _ in range(count):
        words = [random.choice("abcdefghij") for _ in range(random.randint(2, 6))]
        found.append(Pair(" ".join(words), " ".join(word.upper() for word in reversed(words)), len(found) + 1))
    return found


def _gold(pairs: list[Pair]) -> list[str]:
    counts = (len(pair.source.split()) for pair in pairs)
    return [" ".join(f"{n - 1 - place}-{place}" for place in range(n)) for n in counts]


def _write(folder: Path, pairs: list[Pair]) -> SentenceFiles:
    files = SentenceFiles(folder / "source", folder / "target", folder / "gold")
    for path, lines in zip(
        files[:3], ([p.source for p in pairs], [p.target for p in pairs], _gold(pairs)), strict=True
    ):
        path.write_text("".join(f"{line}\n" for line in lines))
    return files


def align_files(
    run: Path,
    reverse: Path | None,
    files: SentenceFiles,
    valid: SentenceFiles,
    chosen: AlignmentReading | None,
    how: str,
) -> Aligned:
    reading = chosen or ReadingSettings()
    settings = AlignSettings(
        source=files.source,
        target=files.target,
        gold=files.gold,
        reverse=reverse,
        symmetrize=how,  # type: ignore[arg-type]
        valid_source=valid.source,
        valid_target=valid.target,
        valid_gold=valid.gold,
        gold_from=files.gold_from,
        layer=reading.layer,
        head=reading.head,
        when=reading.when,
    )
    return FileAligner(run, settings).align(settings)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mirror")
    files = _write(folder, _mirrored(600, 0))
    tables = {
        "data": {"source": files.source, "target": files.target},
        "tokenizer": {"tokenizer": "word"},
        "model": {"model": "gru", "embedding": 24, "hidden": 32, "attention": 24, "dropout": 0.0},
        "training": {"steps": 90, "batch_tokens": 512, "learning_rate": 0.01, "warmup": 20, "validate_every": 90},
    }
    assert train_run(RECIPE, RECIPE.load_settings(tables), folder / "run").exit_code == 0
    return folder / "run"


def test_words_are_aligned_as_the_model_attends(run: Path, tmp_path: Path) -> None:
    pairs = _mirrored(30, 1)
    gold = parse_alignments(_gold(pairs), "gold")
    aligner = Aligner(Translator.load(run))
    reading, figure = aligner.choose(pairs, gold)
    assert figure.value < 10
    assert alignment_error_rate(aligner.align(pairs, reading), gold).value == figure.value
    found = align_files(run, None, _write(tmp_path, pairs), _NO_FILES, None, "mutual")
    assert found.report[1].startswith("alignment_error_rate ")
    assert parse_alignments(found.as_pharaoh(), "out")[0].sure == found.links[0]


def test_training_chooses_what_its_held_out_pairs_agree_with(run: Path, tmp_path: Path) -> None:
    translator = Translator.load(run)
    pairs, held_out = _mirrored(30, 1), _mirrored(60, 2)
    gold = parse_alignments(_gold(pairs), "gold")
    aligner = Aligner(translator)
    expected = ExpectedLinks([(pair.source.split(), pair.target.split()) for pair in held_out])
    reading, figure = aligner.choose_by_agreement(held_out, expected)
    assert translator.chosen == translator.reading == aligner.default == reading
    assert stored_reading([figure]) == reading
    assert alignment_error_rate(aligner.align(pairs), gold).value < 10
    plain = align_files(run, None, _write(tmp_path, pairs), _NO_FILES, None, "mutual")
    assert plain.report[0] == f"read from {reading}: as chosen in training"
    valid = _write(tmp_path, held_out)._replace(gold=None)
    asked = align_files(run, None, valid, valid, None, "mutual").report[0]
    assert asked == f"read from {reading}: {figure.value:.2f} % agreement on the validation sentences"


@given(st.text(st.characters(codec="utf-8", exclude_characters="|:"), min_size=1), st.none() | st.integers(0, 99))
def test_a_stored_reading_is_the_one_that_was_chosen(layer: str, head: int | None) -> None:
    for when in get_args(When):
        reading = AlignmentReading(layer, head, when)
        figure = Figure(AGREEMENT, 90.0, f"{reading.signature}|{ExpectedLinks.signature}")
        assert stored_reading([Figure("bleu", 1.0, ""), figure]) == reading
    assert stored_reading([Figure("bleu", 1.0, "")]) is None


@pytest.mark.parametrize("signature", ["", "layer:a", "layer:a|head:x|when:at", "layer:a|head:0|when:late"])
def test_an_altered_choice_is_refused(signature: str) -> None:
    with pytest.raises(CheckpointError, match=r"figures\.json: expected alignment_agreement of a layer"):
        stored_reading([Figure(AGREEMENT, 90.0, signature)])


def test_manual_alignments_that_count_from_1(run: Path, tmp_path: Path) -> None:
    pairs = _mirrored(10, 1)
    files = _write(tmp_path, pairs)
    expected = align_files(run, None, files, _NO_FILES, None, "mutual").report
    lines = [
        " ".join("-".join(str(int(n) + 1) for n in link.split("-")) for link in line.split()) for line in _gold(pairs)
    ]
    assert files.gold is not None
    files.gold.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"gold:1: expected links to .* gold_from=1"):
        align_files(run, None, files, _NO_FILES, None, "mutual")
    files = files._replace(gold_from=1)
    assert align_files(run, None, files, _NO_FILES, None, "mutual").report == expected
    with pytest.raises(DataError, match=r"gold:1: expected links to .* gold_from=1"):
        align_files(run, None, files._replace(gold_from=0), files, None, "mutual")


@pytest.mark.parametrize(("sentences", "first", "told"), [(4, 1, False), (5, 1, True), (30, 1, True), (30, 0, False)])
def test_links_from_1_that_are_inside_their_sentences_are_doubted(
    run: Path, sentences: int, first: int, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where the final mark is not linked: counted from 1, every link of such a file names a word that exists."""
    files = _write(tmp_path, _mirrored(sentences, 4))
    assert files.gold is not None
    files.gold.write_text(f"{first}-{first}\n" * sentences)
    align_files(run, None, files, _NO_FILES, None, "mutual")
    assert ("--gold-from 1" in capsys.readouterr().err) == told
    align_files(run, None, files._replace(gold_from=first), _NO_FILES, None, "mutual")
    assert "--gold-from" not in capsys.readouterr().err


def test_alignments_do_not_depend_on_the_batch(run: Path) -> None:
    pairs, aligner = _mirrored(12, 2), Aligner(Translator.load(run))
    together = aligner.align(pairs)
    assert together == [aligner.align([pair])[0] for pair in pairs]


def test_two_directions_agree(run: Path, tmp_path: Path) -> None:
    # The mirror uses a different alphabet: the model is its own reverse only in form.
    files = _write(tmp_path, _mirrored(5, 3))
    found = align_files(run, run, files, files, None, "intersection")
    assert len(found.links) == 5
    assert any(line.startswith("reverse: read from attention") for line in found.report)


def test_bad_settings_and_files_are_named(run: Path, tmp_path: Path) -> None:
    files = _write(tmp_path, _mirrored(3, 4))
    with pytest.raises(ConfigError, match='layer: expected an attention over the source; got "atention"'):
        align_files(run, None, files, _NO_FILES, AlignmentReading("atention"), "mutual")
    with pytest.raises(ConfigError, match="head: expected from 0 to 0; got 3"):
        align_files(run, None, files, _NO_FILES, AlignmentReading("attention", 3), "mutual")
    with pytest.raises(ConfigError, match='when: expected "at" or "after"'):
        AlignmentReading("attention", when="before")  # type: ignore[arg-type]
    for head in (2.5, "0", True):
        with pytest.raises(ConfigError, match="head: expected a whole number or None"):
            AlignmentReading("attention", head)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r'source: expected source="FILE" and target="FILE", or data="FILE.tsv"; got source'
    ):
        align_files(run, None, SentenceFiles(files.source), _NO_FILES, None, "mutual")
    (tmp_path / "gold").write_text("0-0\n")
    with pytest.raises(DataError, match="expected one line of links per sentence; got 1 for 3 sentences"):
        align_files(run, None, files, _NO_FILES, None, "mutual")


def test_a_line_that_is_too_long_is_named(run: Path) -> None:
    loaded = Translator.load(run)
    aligner = Aligner(Translator(loaded.model, loaded.tokenizer, longest=4))
    for pair, name in ((("a b c d", "A B C D E"), "target"), (("a b c d e", "A"), "source")):
        with pytest.raises(DataError, match=f"{name} line 2: expected from 1 to 4 tokens; got 5. Remove or split"):
            aligner.align([Pair("a", "A", 1), Pair(*pair, 2)])


@pytest.mark.parametrize(("kind", "size"), [("bpe", 300), ("word", 8000), ("char", 8000)])
def test_pieces_know_their_words(kind: str, size: int) -> None:
    text = "The dog's (small) house, don't 3.5 über-all … 日本 x"
    tokenizer = Tokenizer.learn([text] * 3, kind=kind, size=size)
    places = words_of_tokens(text, tokenizer)
    assert len(places) == len(tokenizer.encode(text))
    assert sorted({place for place in places if place >= 0}) == list(range(len(text.split())))
    if kind == "char":
        words: dict[int, str] = {}
        for place, character in zip(places, text, strict=True):
            words[place] = words.get(place, "") + character
        assert [words[place] for place in range(len(text.split()))] == text.split()


SPACES = " \u00a0\u2007\u2009\u202f\u2028\u3000\u1680\x85\x0b\t\x1c\x1d\x1e\x1f"


@pytest.mark.parametrize("form", ["NFC", "NFKC", "none"])
@pytest.mark.parametrize(
    ("kind", "size"), [("bpe", 400), ("unigram", 300), ("word", 8000), ("char", 8000), ("none", 9)]
)
@given(text=st.text(f"ab\u0301é日.\ufdfa¨{SPACES}", max_size=12))
@settings(max_examples=40, deadline=None)
def test_words_are_those_between_any_white_space(kind: str, size: int, form: str, text: str) -> None:
    """A link names a word by its number, which a space that is not a plain one must not shift."""
    tokenizer = learned(kind, size, form)
    places = words_of_tokens(text, tokenizer)
    words = text.translate(dict.fromkeys(map(ord, "\u00a0\u2007\u202f"), "_")).split()
    assert len(places) == len(tokenizer.encode(text))
    visible = [index for index, word in enumerate(words) if form != "NFKC" or word.strip("_")]
    assert sorted({place for place in places if place != NO_WORD}) == visible
    named = [place for place in places if place != NO_WORD]
    assert named == sorted(named)


@cache
def learned(kind: str, size: int, form: str) -> Tokenizer:
    texts = ["a b\u0301 é日 . \ufdfa ¨", *(f"a{space}b" for space in SPACES), "ab ab"]
    return Tokenizer.learn(texts * 3, kind=kind, size=size, unicode=form)


FAMILIES = Path(__file__).parents[1] / "hub" / "families"


def _published(name: str, folder: Path) -> Translator:
    """A published translator of random weights, whose tokenizer ends sources with a special token."""
    shutil.copytree(FAMILIES / name, folder)
    if name != "marian":
        pieces = [("<pad>", 0.0), ("<s>", 0.0), ("<unk>", -9.0), ("▁the", -1.0), ("é", -2.0), ("</s>", 0.0)]
        letters = [(letter, -3.0) for letter in "▁abcdefghijklmnopqrstuvwxyz"]
        library = tokenizers.Tokenizer(models.Unigram([*pieces, *letters], unk_id=2))
        library.normalizer, library.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
        library.add_special_tokens(["<pad>", "</s>"])
        library.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 5)])
        library.save(str(folder / "tokenizer.json"))
    translator = qkv.load(folder)
    assert isinstance(translator, Translator)
    return translator


@pytest.mark.parametrize("name", ["marian", "pegasus", "t5"])
def test_words_of_a_published_translator(name: str, tmp_path: Path) -> None:
    translator = _published(name, tmp_path / "model")
    tokenizer = translator.tokenizer
    for text in ("the cat", " the  cat\u00a0sat on", "the e\u0301té", "te\u0301\u0301 ½ ﬁt", "a 日本 t", ""):
        for side, target in ((tokenizer.source, False), (tokenizer, True)):
            places = words_of_tokens(text, side, target=target)
            assert len(places) == len(side.encode(text, target=target))
            named = [place for place in places if place != NO_WORD]
            assert sorted(set(named)) == list(range(len(split_words(text))))
            assert named == sorted(named)


@pytest.mark.parametrize("name", ["marian", "pegasus", "t5"])
def test_alignments_of_a_published_translator(name: str, tmp_path: Path) -> None:
    aligner = Aligner(_published(name, tmp_path / "model"))
    pairs = [Pair("the cat sat on the mat", "le chat est la", 1), Pair("a hat", "la tasse", 2)]
    for pair, links in zip(pairs, aligner.align(pairs), strict=True):
        assert {target for _, target in links} == set(range(len(pair.target.split())))
        assert {source for source, _ in links} <= set(range(len(pair.source.split())))


@given(words=st.tuples(st.integers(0, 6), st.integers(0, 6)), seed=st.integers(0, 999))
def test_words_that_are_each_others_likeliest(words: tuple[int, int], seed: int) -> None:
    sources, targets = words
    random = torch.Generator().manual_seed(seed)
    forward, backward = (torch.rand(shape, generator=random) for shape in ((targets, sources), (sources, targets)))
    together = forward + backward.T
    expected = {
        (s, t)
        for s in range(sources)
        for t in range(targets)
        if together[t, s] == together[t].max() and together[t, s] == together[:, s].max()
    }
    assert mutual(forward, backward) == expected
    assert join("mutual", [forward], [backward]) == [expected]
    assert join("intersection", [forward], [forward.T]) == [
        likeliest(forward) & {(s, t) for t, s in likeliest(forward.T)}
    ]


def test_words_that_nothing_attended_to_have_no_link() -> None:
    assert mutual(torch.zeros(2, 3), torch.zeros(3, 2)) == set()
    assert mutual(torch.tensor([[0.0, 0.0], [0.2, 0.8]]), torch.zeros(2, 2)) == {(1, 1)}


def test_no_such_way_to_join() -> None:
    with pytest.raises(ConfigError, match=r'symmetrize: expected one of mutual.*Did you mean "mutual"'):
        join("mutal", [], [])
