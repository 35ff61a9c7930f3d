"""Text survives a round trip through ids, training is reproducible, and a hostile file is refused before use."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from random import Random
from unicodedata import normalize

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data import segments
from qkv.data import tokenizer as tokenizer_module
from qkv.data.choices import Form
from qkv.data.segments import SPECIALS, bpe_splitter, chunks
from qkv.data.tokenizer import Tokenizer
from qkv.data.vocabulary import KINDS
from qkv.errors import ConfigError, DataError

CORPUS = [
    "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
    "Two young, White males are outside near many bushes.",
    'Ein T-Shirt (rot) kostet 12,50 €; "gut", sagt der Mann.',
    "A man's dog - a big one - can't swim ... or can it?!",
] * 3
BPE = Tokenizer.learn(CORPUS, size=500)
UNIGRAM = Tokenizer.learn(CORPUS, kind="unigram", size=400)
WORD = Tokenizer.learn(CORPUS, kind="word")
CHAR = Tokenizer.learn(CORPUS, kind="char")
NONE = Tokenizer.learn(CORPUS, kind="none")
ALL = [BPE, UNIGRAM, WORD, CHAR, NONE]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(TEXT)
def test_pieces_of_bytes_return_every_text_as_it_was(text: str) -> None:
    for tokenizer in (BPE, UNIGRAM):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.unk not in tokenizer.encode(text)


LINES = st.lists(
    st.text(st.one_of(st.sampled_from(" \t\ra1.e\u0301Σσ"), st.characters(exclude_categories=["Cs"])), max_size=9)
)
FORMS = st.sampled_from(["none", "NFC", "NFD", "NFKC"])


@given(LINES, st.lists(st.booleans(), min_size=9), FORMS, st.booleans(), st.sampled_from(ALL))
def test_a_text_in_parts_of_lines_has_the_tokens_of_the_whole(
    lines: list[str], cuts: list[bool], form: Form, lowercase: bool, known: Tokenizer
) -> None:
    tokenizer = Tokenizer(replace(known.vocabulary, unicode=form, lowercase=lowercase))
    parts = [""]
    for line, cut in zip(lines, cuts, strict=False):
        parts[-1] += line.replace("\n", "") + "\n"
        parts += [""] if cut else []
    ids = [tokenizer.encode(part, continued=number > 0) for number, part in enumerate(parts)]
    assert [number for some in ids for number in some] == tokenizer.encode("".join(parts))


RUNS = st.tuples(st.sampled_from([*" \n\t.,a1é￭漢\u0301\u2028", "ab", "a.", " a", "\r\n"]), st.integers(1, 200))


@given(st.lists(RUNS, max_size=8), st.integers(1, 300))
def test_chunks_are_cut_between_pieces_alone(runs: list[tuple[str, int]], size: int) -> None:
    """Each chunk splits into the tokens that the whole text has there."""
    text = "".join(part * count for part, count in runs)
    parts = list(chunks(text, size))
    assert "".join(parts) == text
    split = bpe_splitter().pre_tokenize_str
    assert [piece for part in parts for piece, _ in split(part)] == [piece for piece, _ in split(text)]


def test_chunks_are_short_wherever_there_is_a_place_to_cut() -> None:
    for text in ("a" * 9999, " " * 9999, "a." * 5000, "\n" * 9999, ("\n" + "x" * 63) * 150, " word" * 2000, "￭" * 9999):
        assert max(map(len, chunks(text, 1000))) <= 1000
    for text in ("é" * 9999, "e" + "\u0301" * 9999, "漢" * 9999, "é" * 999 + " a" + "\u0301" * 2000):
        assert max(map(len, chunks(text, 1000))) <= 1000


@given(TEXT)
def test_a_text_in_chunks_has_the_ids_of_the_whole(text: str) -> None:
    for tokenizer in (BPE, UNIGRAM):
        whole = tokenizer.encode(text * 3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tokenizer_module, "CHUNK", 7)
            assert tokenizer.encode(text * 3) == whole


def words_at_once(text: str) -> list[str]:
    """What `words` promises, computed from all tokens of the text at once."""
    pieces, last_end = list[str](), -1
    for piece, (start, end) in segments._WORD_SPLIT.pre_tokenize_str(text.replace("￭", "■")):
        touches, is_mark = start == last_end, segments._is_mark(piece)
        if touches and not is_mark:
            pieces[-1] += "￭"
        pieces.append("￭" + piece if touches and is_mark else piece)
        last_end = end
    return pieces


@given(st.lists(RUNS, max_size=8).map(lambda runs: "".join(part * count for part, count in runs)) | TEXT)
def test_words_do_not_depend_on_where_their_chunks_end(text: str) -> None:
    whole = words_at_once(text)
    for size in (1, 2, 7, 64, 1 << 14):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(segments, "_WORD_CHUNK", size)
            assert list(segments.words(text)) == whole


@given(TEXT)
def test_pieces_of_bytes_make_up_the_text(text: str) -> None:
    for tokenizer in (BPE, UNIGRAM):
        ids = tokenizer.encode(text)
        shown = tokenizer.pieces(ids)
        assert len(shown) == len(ids)
        assert not text.isascii() or "".join(shown) == ("▁" + text.replace(" ", "▁") if text else "")


@given(st.text("".join(sorted(set("".join(CORPUS)))), max_size=60))
def test_characters_that_were_seen_come_back(text: str) -> None:
    assert CHAR.decode(CHAR.encode(text)) == text


@pytest.mark.parametrize("text", CORPUS[:4])
@pytest.mark.parametrize("tokenizer", ALL, ids=KINDS)
def test_training_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(TEXT)
def test_words_come_back_up_to_white_space_once_they_are_known(text: str) -> None:
    plain = text.replace("￭", "")
    if not plain.strip():
        assert Tokenizer.learn(["x"], kind="word").encode(plain) == []
        return
    tokenizer = Tokenizer.learn([plain], kind="word", size=9999)
    again = tokenizer.decode(tokenizer.encode(plain))
    assert tokenizer.encode(again) == tokenizer.encode(plain)
    assert "".join(again.split()) == "".join(plain.split())


@given(st.lists(st.integers(0, 40), max_size=20))
def test_any_ids_decode(ids: list[int]) -> None:
    for tokenizer in ALL:
        assert isinstance(tokenizer.decode(ids), str)
        assert len(tokenizer.pieces(ids)) == len(ids)


@given(TEXT)
def test_encoding_stays_inside_the_vocabulary_and_makes_no_frame(text: str) -> None:
    for tokenizer in ALL:
        ids = tokenizer.encode(text)
        assert all(tokenizer.unk <= number < tokenizer.size for number in ids)


@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize("tokenizer", ALL, ids=KINDS)
def test_text_that_spells_a_special_is_only_text(tokenizer: Tokenizer, special: str) -> None:
    ids = tokenizer.encode(f"a {special} b")
    assert not {tokenizer.pad, tokenizer.bos, tokenizer.eos} & set(ids)
    learned = Tokenizer.learn([special] * 5, kind=tokenizer.kind, size=600)
    assert learned.decode(learned.encode(special)) == special


@pytest.mark.parametrize("tokenizer", ALL, ids=KINDS)
def test_specials_come_first_and_leave_no_text(tokenizer: Tokenizer) -> None:
    marks = [tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk]
    assert marks == [0, 1, 2, 3]
    assert tokenizer.pieces(marks) == list(SPECIALS)
    assert tokenizer.decode(marks[:3]) == ""


def test_digits_and_marks_are_divided_from_words() -> None:
    tokenizer = Tokenizer.learn(["may2011, may2011, " * 20], size=400)
    assert tokenizer.pieces(tokenizer.encode("may2011,")) == ["▁may", "2", "0", "1", "1", ","]


def test_first_word_is_the_same_piece_as_in_the_middle() -> None:
    assert BPE.encode("man")[0] == BPE.encode("a man")[-1]


def test_partial_character_is_shown_by_its_bytes_and_decoded_as_replacement() -> None:
    first = BPE.encode("字")
    assert BPE.pieces(first)[-3:] == ["<E5>", "<AD>", "<97>"]
    assert BPE.decode(first[:-1]) == "\ufffd"


def test_unknown_words_and_characters_are_said() -> None:
    assert WORD.decode(WORD.encode("young zebras, many")) == "young <unk>, many"
    assert CHAR.decode(CHAR.encode("a字b")) == "a\ufffdb"


def test_what_spaces_separate_stays_whole() -> None:
    tokenizer = Tokenizer.learn(["tʃ ɪ n"], kind="none")
    assert tokenizer.pieces(tokenizer.encode("n  tʃ\tx")) == ["n", "tʃ", "<unk>"]
    assert tokenizer.decode(tokenizer.encode(" tʃ  ɪ ")) == "tʃ ɪ"


def test_mark_never_seen_with_this_spacing_is_still_known() -> None:
    tokenizer = Tokenizer.learn(["a - b"], kind="word")
    assert tokenizer.pieces(tokenizer.encode("a-b")) == ["a", "-", "b"]


@pytest.mark.parametrize("kind", KINDS)
def test_lower_casing(kind: str) -> None:
    tokenizer = Tokenizer.learn(CORPUS, kind=kind, size=400, lowercase=True)
    assert tokenizer.decode(tokenizer.encode("Zwei MÄNNER")) == "zwei männer"
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.encode("MÄNNER") == tokenizer.encode("männer")


def test_minimum_leaves_out_what_is_rare() -> None:
    texts = ["b b a a a c"]
    assert Tokenizer.learn(texts, kind="word", minimum=2).pieces([4, 5]) == ["a", "b"]
    assert Tokenizer.learn(texts, kind="word", minimum=2).size == 6
    assert Tokenizer.learn(["low low"], minimum=3).size == 260


@pytest.mark.parametrize(("kind", "size"), [("bpe", 300), ("unigram", 275), ("word", 10), ("char", 10), ("none", 10)])
def test_size_is_never_exceeded(kind: str, size: int) -> None:
    assert Tokenizer.learn(CORPUS, kind=kind, size=size).size == size


@pytest.mark.parametrize("kind", KINDS)
def test_learning_is_repeatable_across_processes_and_orders(kind: str) -> None:
    code = (
        "import sys, json\n"
        "from qkv.data.tokenizer import Tokenizer\n"
        "texts, kind = json.loads(sys.argv[1]), sys.argv[2]\n"
        "sys.stdout.buffer.write(Tokenizer.learn(texts, kind=kind, size=450).to_json().encode())\n"
    )
    made = set()
    for seed, texts in (("1", CORPUS), ("2", CORPUS[::-1])):
        command = [sys.executable, "-c", code, json.dumps(texts), kind]
        made.add(
            subprocess.run(command, capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}).stdout
        )
    assert made == {Tokenizer.learn(CORPUS, kind=kind, size=450).to_json().encode()}


LETTERS = st.text("abc ", min_size=1, max_size=12)


@given(st.lists(LETTERS, min_size=2, max_size=30).filter(lambda some: any(each.strip() for each in some)), st.randoms())
def test_pieces_do_not_depend_on_the_order_of_texts(texts: list[str], random: Random) -> None:
    """Few letters make many pieces equally likely, and the library counts words in a table of random order."""
    other = random.sample(texts, len(texts))
    for kind in KINDS:
        first, second = (Tokenizer.learn(some, kind=kind, size=268).to_json() for some in (texts, other))
        assert first == second


def test_unigram_pieces_are_the_likeliest() -> None:
    """The pieces of a word are a split with the largest sum of log-probabilities."""
    scores = dict(zip(UNIGRAM.vocabulary.pieces, UNIGRAM.vocabulary.scores, strict=True))
    for word in ("ĠBüschen", "ĠMännern", "Ġoutside", "Ġswimming"):
        surface = word.replace("Ġ", "")
        named = [UNIGRAM.vocabulary.pieces[number] for number in UNIGRAM.encode(surface)]
        letters = "".join(named)
        best = [0.0]
        for end in range(1, len(letters) + 1):
            ends = (best[start] + scores[letters[start:end]] for start in range(end) if letters[start:end] in scores)
            best.append(max(ends))
        assert sum(scores[name] for name in named) == pytest.approx(best[-1], abs=1e-9)


@pytest.mark.parametrize("tokenizer", ALL, ids=KINDS)
def test_json_keeps_everything(tokenizer: Tokenizer) -> None:
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.vocabulary == tokenizer.vocabulary
    assert again.to_json() == tokenizer.to_json()
    assert all(again.encode(text) == tokenizer.encode(text) for text in CORPUS)


@pytest.mark.parametrize("kind", KINDS)
def test_one_endless_word_is_served(kind: str) -> None:
    # A quadratic step anywhere would take minutes.
    length = 400_000
    tokenizer = Tokenizer.learn(["a" * length], kind=kind)
    ids = tokenizer.encode("a" * length)
    assert tokenizer.decode(ids) == "a" * length


@pytest.mark.parametrize("character", [" ", "\u00a0", ",", "1", "\u0301", "￭"])
def test_endless_runs_are_served(character: str) -> None:
    run = character * 50_000
    assert BPE.decode(BPE.encode(run)) == run
    assert len(WORD.encode(run)) <= len(run)


def test_learning_refuses_what_it_cannot_use() -> None:
    with pytest.raises(ConfigError, match='Did you mean "word"'):
        Tokenizer.learn(CORPUS, kind="words")
    with pytest.raises(ConfigError, match="at least 260"):
        Tokenizer.learn(CORPUS, size=100)
    with pytest.raises(ConfigError, match="at least 5"):
        Tokenizer.learn(CORPUS, kind="char", size=4)
    with pytest.raises(ConfigError, match="minimum"):
        Tokenizer.learn(CORPUS, minimum=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_no_text_is_refused(kind: str, texts: list[str]) -> None:
    with pytest.raises(DataError, match="text to learn from"):
        Tokenizer.learn(texts, kind=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_surrogate_pair_is_refused(kind: str) -> None:
    with pytest.raises(DataError, match=r"U\+D800 at character 2"):
        Tokenizer.learn(["x\ud800"], kind=kind)
    with pytest.raises(DataError, match=r"U\+DFFF"):
        Tokenizer.learn(["x"], kind=kind).encode("\udfff")


@pytest.mark.parametrize("wrong", [-1, 10**6, 2**70])
def test_foreign_ids_are_refused(wrong: int) -> None:
    for tokenizer in ALL:
        with pytest.raises(DataError, match="ids: expected numbers from 0"):
            tokenizer.decode([wrong])
        with pytest.raises(DataError, match="ids"):
            tokenizer.pieces([wrong])


def test_ids_may_come_as_a_tensor() -> None:
    assert BPE.decode(torch.tensor(BPE.encode("a man"))) == "a man"  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["bpe", "word", "char", "none"])
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_texts_that_look_the_same_have_the_same_tokens(kind: str, form: str) -> None:
    composed, apart = (normalize(name, "Ein Bär läuft über Ångström 각") for name in ("NFC", "NFD"))
    assert composed != apart
    tokenizer = Tokenizer.learn([composed], kind=kind, size=400, unicode=form)
    assert tokenizer.encode(composed) == tokenizer.encode(apart)
    assert tokenizer.decode(tokenizer.encode(apart)) == normalize(form, composed)
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.vocabulary == tokenizer.vocabulary
    assert again.encode(apart) == tokenizer.encode(composed)


def test_no_form_leaves_text_and_file_as_they_were() -> None:
    tokenizer = Tokenizer.learn(["e\u0301"], kind="char")
    assert "unicode" not in json.loads(tokenizer.to_json())
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "e\u0301"


def test_an_unknown_form_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'unicode: expected one of none, NFC.*Did you mean "NFC"'):
        Tokenizer.learn(["a"], kind="char", unicode="NFCC")


def altered(tokenizer: Tokenizer, **fields: object) -> str:
    return json.dumps(json.loads(tokenizer.to_json()) | fields)


HOSTILE = {
    "nothing": "",
    "no JSON": "{",
    "a list": "[1]",
    "a number": "1",
    "a huge number": "9" * 5000,
    "deep": "[" * 100_000,
    "no fields": "{}",
    "a field too many": altered(CHAR, run="os.system"),
    "another format": altered(CHAR, format="qkv tokenizer 2"),
    "unhashable format": altered(CHAR, format=[]),
    "unknown kind": altered(CHAR, kind="pickle"),
    "unhashable kind": altered(CHAR, kind=["bpe"]),
    "lowercase as text": altered(CHAR, lowercase="no"),
    "an unknown form": altered(CHAR, unicode="NFX"),
    "a form that cannot be hashed": altered(CHAR, unicode=["NFC"]),
    "pieces as text": altered(CHAR, pieces="abc"),
    "pieces as numbers": altered(CHAR, pieces=[*SPECIALS, 1]),
    "an empty piece": altered(CHAR, pieces=[*SPECIALS, ""]),
    "a piece twice": altered(CHAR, pieces=[*SPECIALS, "a", "a"]),
    "a special twice": altered(WORD, pieces=[*SPECIALS, "<pad>"]),
    "no specials": altered(CHAR, pieces=["a"]),
    "specials in another order": altered(CHAR, pieces=["<bos>", "<pad>", "<eos>", "<unk>"]),
    "half a surrogate pair": altered(CHAR, pieces=[*SPECIALS, "\ud800"]),
    "a long character": altered(CHAR, pieces=[*SPECIALS, "ab"]),
    "merges of characters": altered(CHAR, merges=["a b"]),
    "bytes missing": altered(BPE, pieces=[*SPECIALS, "a"], merges=[]),
    "a piece outside the bytes": altered(BPE, pieces=[*BPE.vocabulary.pieces, "字"]),
    "a merge without a space": altered(BPE, merges=["ab"]),
    "a merge of three": altered(BPE, merges=["a b c"]),
    "a merge of nothing": altered(BPE, merges=[" a"]),
    "a merge of unknown pieces": altered(BPE, merges=["字 a"]),
    "a merge into an unknown piece": altered(BPE, merges=["Z Z"]),
    "a merge twice": altered(BPE, merges=["e r", "e r"]),
    "a merge of specials": altered(BPE, merges=["<pad> <bos>"]),
    "scores of byte pairs": altered(BPE, scores=[-1.0]),
    "too few scores": altered(UNIGRAM, scores=[0.0]),
    "no scores": json.dumps({k: v for k, v in json.loads(UNIGRAM.to_json()).items() if k != "scores"}),
    "positive scores": altered(UNIGRAM, scores=[1.0] * UNIGRAM.size),
    "scores that are no numbers": altered(UNIGRAM, scores=[float("nan")] * UNIGRAM.size),
    "scores as text": altered(UNIGRAM, scores=["0"] * UNIGRAM.size),
    "scores that are true": altered(UNIGRAM, scores=[False] * UNIGRAM.size),
    "merges as pairs": altered(BPE, merges=[["e", "r"]]),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_json_is_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"^tokenizer: expected .*; got .*\. Restore the file"):
        Tokenizer.from_json(text)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.sampled_from(ALL), st.sampled_from(["format", "kind", "lowercase", "pieces", "merges", "scores"]), JSON_VALUES
)
def test_any_other_value_in_a_field_is_refused_or_harmless(tokenizer: Tokenizer, field: str, value: object) -> None:
    try:
        read = Tokenizer.from_json(altered(tokenizer, **{field: value}))
    except DataError:
        return
    assert read.decode(read.encode("x")) in {"x", "<unk>", "\ufffd"}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@given(
    st.lists(st.text("abcdefgh ", max_size=40) | st.text(max_size=20), min_size=1, max_size=20),
    st.integers(260, 280) | st.just(260),
    st.text(),
)
@settings(max_examples=40)
def test_the_smallest_vocabularies_lose_no_text_and_read_their_own_file(
    kind: str, texts: list[str], size: int, text: str
) -> None:
    """Random texts make random vocabularies, down to the special tokens and the 256 bytes alone."""
    tokenizer = Tokenizer.learn([*texts, "abc"], kind, size)
    assert tokenizer.size <= size
    for each in (*texts, text, "".join(map(chr, range(1, 0x180)))):
        assert tokenizer.decode(tokenizer.encode(each)) == each
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.to_json() == tokenizer.to_json()
    assert again.encode(text) == tokenizer.encode(text)
