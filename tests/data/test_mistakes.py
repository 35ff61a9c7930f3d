r"""A hundred mistakes in data files: each is refused with its line, what is wrong and what to do, or is said.

Each case is a file, and words that the message must have; `{f}` is the name of the file.
"""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkv.data.corpus import Pair, read_lines, read_pairs, read_tsv
from qkv.data.labeled import labels_of, read_labeled, read_tagged
from qkv.data.pointing import parse_pairs
from qkv.data.table import read_table
from qkv.data.text import read_text
from qkv.errors import QkvError, on_command_line

Say = Callable[[str], None]
GOOD = "good\ta fine film\nbad\ta dull one\n"

LABELED: list[tuple[str | bytes, list[str]]] = [
    ("", ["{f}", "an empty file"]),
    ("a fine film\tgood\na dull film\tbad\n" * 9, ["{f}", "label first", "Exchange the columns"]),
    (f"{GOOD * 9}a so so film\tgood\n", ["{f}:19", "Exchange the two columns of this line", "a so so film"]),
    (GOOD * 40 + "a fine film\tgood\na dull one\tbad\n" * 10, ["{f}:81", "19 more lines"]),
    ("good,a fine film\n", ["{f}:1", 'separated by ","', "label<TAB>text"]),
    ('"good";"a fine film"\n', ["{f}:1", 'separated by ";"', "quotation marks"]),
    ("good|a fine film\n", ["{f}:1", 'separated by "|"']),
    ("good  a fine film\n", ["{f}:1", "several spaces"]),
    ("good a fine film\n", ["{f}:1", "1 column", "label<TAB>text"]),
    ("__label__good a fine film\n", ["{f}:1", "fastText", "without __label__"]),
    ('{"label": "good", "text": "a film"}\n', ["{f}:1", "JSON"]),
    ('[{"label": "good"}]\n', ["{f}:1", "JSON"]),
    ("good\\ta fine film\n", ["{f}:1", "two characters \\t"]),
    ("1\tgood\ta film\n", ["{f}:1", "3 columns"]),
    (f"{GOOD}good\ta\tfilm\n", ["{f}:3", "3 columns", "replace tabs inside the text"]),
    (f"{GOOD}\tx\n", ["{f}:3", "an empty label", "Fill it or delete the line"]),
    (f"{GOOD}good\t \n", ["{f}:3", "an empty text"]),
    (f"{GOOD}\nbad\ty\n", ["{f}:3", "1 column"]),
    ("good\tx\rbad\ty\r", ["{f}:1", "old Macs"]),
    ("label\ttext\n", ["labels", 'only "label"']),
    ("good\tx\n".encode("utf-16"), ["{f}:1", "UTF-16", "iconv"]),
    ("good\tx\n".encode("utf-32"), ["{f}:1", "UTF-32"]),
    (GOOD.encode() + "bad\tnaïve\n".encode("latin-1"), ["{f}:3", "0xEF", "valid UTF-8"]),
    (gzip.compress(GOOD.encode()), ["{f}:1", "gzip", ".gz"]),
    (GOOD.encode() + b"bad\ta\0b\n", ["{f}:3", "a NUL at character 6"]),
    ("good\tx\ngood\ty\n", ["labels", 'only "good"']),
    (f"Good\tx\n{GOOD}", ["{f}", "capitals", "Good, good"]),
    ("".join(f"{n / 7}\ttext {n}\n" for n in range(30)), ["{f}", "30 different labels", "qkv train regress"]),
    ("good\tx y\nbad\tx y\n", ["{f}", "1 texts", "line 2", '"bad"', "line 1"]),
    (GOOD * 9 + "a fine film\tgood\na dull one\tbad\n" * 9, ["{f}:19", "Exchange the two columns of this line"]),
    ("".join(f"Ada{n}\tgood\nBob{n}\tbad\n" for n in range(9)), ["{f}", "18 different labels", "Exchange the columns"]),
    ("label\ttext\n" + GOOD, ["{f}:1", "a header, skipped"]),
    ("text\tlabel\na film\tgood\none\tbad\n", ["{f}:1", "a header, skipped"]),
]
SENTENCE = "Ada B-PER\nwrote O\n\n"
TAGGED: list[tuple[str | bytes, list[str]]] = [
    ("Ada\nwrote\n", ["{f}:1", "one column", "word, then tag"]),
    ("Ada,B-PER\nwrote,O\n", ["{f}:1", 'separated by ","', "word<TAB>tag"]),
    ("Ada;B-PER\n", ["{f}:1", 'separated by ";"']),
    ("Ada/B-PER wrote/O\n", ["{f}:1", 'joined to their tags by "/"', "one word and its tag per line"]),
    ("Ada_NNP wrote_VBD\nthe_DT cat_NN\n", ["{f}:1", 'joined to their tags by "_"']),
    ("Ada wrote\tB-PER O\nBonn\tB-LOC\n", ["{f}:1", "2 words and as many tags"]),
    ("B-PER Ada\nO wrote\n\nB-LOC Bonn\nO is\n", ["{f}", "word first", "Exchange the columns"]),
    (f"{SENTENCE}Ada NNP B-PER\n", ["{f}:4", "2 columns, as in earlier lines", "got 3"]),
    (f"{SENTENCE}Ada\tB-PER\n", ["{f}:4", "one column", "one space, as in earlier lines"]),
    ("Ada\tB-PER\nwrote O\n", ["{f}:2", "one tab, as in earlier lines"]),
    ("1\tAda\tada\t_\n2\twrote\twrite\t_\n", ["{f}, column 4", '"_" in every line', "cut -f2,5"]),
    ("#begin document x\nx 0 0 Ada NNP *\n", ["{f}:1", "CoNLL-2012"]),
    ("Ada B-PER\nwrote O\nBonn B-LOC\n", ["{f}", "all 3 lines are one sentence", "an empty line"]),
    ("-DOCSTART- O\n\n", ["{f}", "words with their tags", "none"]),
    (f"{SENTENCE * 3}Bonn B-LOC\nsleeps b-misc\n\n", ["{f}", "none of IOB", "b-misc"]),
    (f"{SENTENCE}Bonn \n", ["{f}:4", "a word and its tag"]),
    ('{"words": ["Ada"]}\n', ["{f}:1", "JSON"]),
    ("word tag\nAda B-PER\nwrote O\n\nYes O\n", ["{f}:1", "a header, skipped"]),
    ("1\tAda\tada\tPROPN\tN\t_\t0\troot\t_\t_\n\n" * 2, ["{f}", "CoNLL-U", "words from column 2"]),
    ("0\tAda\tB-PER\n1\twrote\tO\n\n" * 2, ["{f}", "numbered columns", "words from column 2"]),
    (f"{SENTENCE * 3}B-LOC Bonn\nO sleeps\n\n", ["{f}", "none of IOB", "Bonn, sleeps"]),
    (f"{SENTENCE * 3}B-PER Bonn\n\n", ["{f}:10", '"B-PER"', "Exchange the columns of this line"]),
    (f"{SENTENCE * 9}O wrote\nO Ada\n\n", ["{f}:28", '"O"', "1 more lines"]),
    ("dog NN\ncat NN\nruns VB\n\n" * 3 + "NN dog\n\n", ["{f}:13", '"NN"', "Exchange the columns of this line"]),
    ("Ada b-per\nwrote o\n\n" * 2, ["{f}", "b-per", "F1 is missing", "B-PER"]),
    ("Ada PER-B\nwrote O\n\n" * 2, ["{f}", "PER-B", "F1 is missing"]),
    ("Ada B_PER\nwrote O\n\n" * 2, ["{f}", "B_PER", "F1 is missing"]),
    ("Ada S-PER\nNew B-LOC\nYork L-LOC\n\n" * 2, ["{f}", "F1 is missing", "IOBES", "BILOU"]),
    (f"# Ada wrote it\n{SENTENCE * 2}", ["{f}:1: a comment, skipped"]),
    (f"{SENTENCE}#note\n# and one\n{SENTENCE}", ["{f}:4: a comment, skipped, as is 1 more line"]),
]
PAIRS: list[tuple[str | bytes, list[str]]] = [
    ("", ["{f}", "an empty file"]),
    ("ein Hund a dog\n", ["{f}:1", "1 column", "--source-col"]),
    ("ein Hund,a dog\n", ["{f}:1", 'separated by ","']),
    ("ein Hund ||| a dog\n", ["{f}:1", 'separated by "|||"', "source<TAB>target"]),
    ("ein Hund    a dog\n", ["{f}:1", "several spaces"]),
    ("ein Hund\\ta dog\n", ["{f}:1", "two characters \\t"]),
    ("ein Hund\ta dog\tx\n", ["{f}:1", "3 columns"]),
    ("a\tb\n\nc\td\n", ["{f}:2", "1 column"]),
    ("a\tb\nc\t\n", ["{f}:2", "an empty target", "Fill it or delete the line"]),
    ("a\tb\n \td\n", ["{f}:2", "an empty source"]),
    ("a\tb\rc\td\r", ["{f}:1", "old Macs"]),
    ('{"translation": {"de": "a", "en": "b"}}\n', ["{f}:1", "JSON"]),
    ("source\ttarget\nein Hund\ta dog\n", ["{f}:1", "a header, skipped"]),
    ("a\tb\n".encode("utf-16"), ["{f}:1", "UTF-16"]),
    (b"a\tb\nc\t\xff\n", ["{f}:2", "0xFF"]),
    ("a\t" + "x" * (2**20 + 1) + "\n", ["{f}:1", "at most 1,048,576 characters"]),
]
TABLES: list[tuple[str | bytes, list[str]]] = [
    ("", ["{f}", "an empty file"]),
    ("\n\n", ["{f}", "lines with columns"]),
    ("a,b\n", ["{f}", "numbers in", "no rows"]),
    ("a,b\n1,2\n3\n", ["{f}:3", "expected 2 fields", "got 1"]),
    ("a,b\n1,2,3\n", ["{f}:2", "expected 2 fields", "must be quoted"]),
    ("My table\na,b\n1,2\n", ["{f}:2", "Delete the first line if it is a title"]),
    ("sep=;\na;b\n1;2\n", ["{f}:1", "names of columns", "Delete it"]),
    ("| a | b |\n| 1 | 2 |\n", ["{f}:1", "separated by |", "commas or tabs"]),
    ("a|b\n1|2\n", ["{f}:1", "separated by |"]),
    ('{"a": 1}\n', ["{f}:1", "JSON"]),
    ("<table><tr><td>a</td></tr></table>\n", ["{f}:1", "Save the table as CSV"]),
    ("x,b\n1,2\n", ["a column of {f}", '"a"', "Valid: x, b"]),
    ("A,b\n1,2\n", ["a column of {f}", "Valid: A, b"]),
    ("1,2\n3,4\n", ["The first line of {f} is numbers", "1 to 2"]),
    ("a,a\n1,2\n", ['"a", 2 times', "its own name"]),
    ('a,b\n"1,2\n', ["{f}:2", "Close the quotation mark"]),
    (f'a,b\n"{"x" * 140_000}",1\n', ["{f}:2", "Shorten the field"]),
    ('a,b\n1,2"x"\n3,"4"x\n', ["{f}:3", "quotation mark"]),
    ("a,b\n,2\n", ["{f}:2", "an empty field", "--missing skip"]),
    ("a,b\nNA,2\n", ["{f}:2", '"NA"', "--missing skip"]),
    ("a,b\n-,2\n", ["{f}:2", '"-"', "--missing skip"]),
    ("a,b\nm,1\nf,2\n", ["{f}:2", '"m"', "The column holds text"]),
    ("a,b\n1,1\nm,2\n", ["{f}:3", '"m"', "It is text"]),
    ("a,b\n1,1\nTotal,2\n", ["{f}:3", '"Total"', "delete the line"]),
    ("a,b\ntrue,1\n", ["{f}:2", "The column holds text"]),
    ('a,b\n"10,000",5\n', ["{f}:2", '"10,000"', "groups thousands"]),
    ('a,b\n"1,200.50",5\n', ["{f}:2", '"1,200.50"', "groups thousands"]),
    ("a;b\n1,5;2\n", ["{f}:2", '"1,5"', "--decimal comma"]),
    ("a;b\n1.200,50;2\n", ["{f}:2", '"1.200,50"', "groups thousands"]),
    ("a,b\n5 kg,1\n", ["{f}:2", '"5 kg"', "without units"]),
    ("a,b\n$5,1\n", ["{f}:2", '"$5"', "without units"]),
    ("a,b\n5%,1\n", ["{f}:2", '"5%"']),
    ("a,b\n2020-01-02,1\n", ["{f}:2", "A date is no number"]),
    ("a,b\n1/2/2020,1\n", ["{f}:2", "A date is no number"]),
    ("a,b\n#DIV/0!,1\n", ["{f}:2", "an error of a spreadsheet"]),
    ("a,b\n=B2*2,1\n", ["{f}:2", "a formula"]),
    ("a,b\ninf,1\n", ["{f}:2", '"inf"', "--missing skip"]),
    ("a,b\n1e999,1\n", ["{f}:2", '"1e999"', "finite"]),
    ("a,b\n\u22125,1\n", ["{f}:2", "minus sign as a hyphen"]),
    ("a,b\n1'200,1\n", ["{f}:2", "1'200", "thousands"]),
    ("a,b\n1\u202f200,1\n", ["{f}:2", "thousands"]),
    ("a,b\n0x10,1\n", ["{f}:2", '"0x10"']),
    ("a,b\n1_000,1\n", ["{f}:2", '"1_000"', "thousands separators"]),
]
POINTS: list[tuple[list[tuple[str, str]], list[str]]] = [
    ([("2 3 1", "30 10 20"), ("1 2", "5 6")], ["f", "elements first", "Exchange the two columns"]),
    ([("30 10 20", "1 2 0")], ["f:1", '"0"', "counted from 0"]),
    ([("30 10 20", "4")], ["f:1", "positions from 1 to 3", '"4"']),
    ([("30 10 20", "10 20 30")], ["f:1", '"10"', "hold elements"]),
    ([("30 10 20", "2,3,1")], ["f:1", "Separate them by spaces"]),
    ([("30 10 20", "two")], ["f:1", '"two"']),
    ([("30 10", "1 2"), ("a b", "1 2")], ["f:2", '"a"', "--elements words"]),
    ([("1,2 3,4", "1 2"), ("1,2 3", "1")], ["f:2", "a vector of 2 numbers as element 2"]),
    ([("1;2 3;4", "1 2")], ["f:1", "0.3,0.7", "--elements words"]),
    ([("[30, 10]", "2 1")], ["f:1", "0.3 1.5"]),
    ([("(1,2) (3,4)", "2 1")], ["f:1", "0.3,0.7"]),
    ([("3 1e40", "1 2")], ["f:1", "a finite number as element 2"]),
    ([("3 nan", "1 2")], ["f:1", "a finite number as element 2"]),
]


def report(read: Callable[[Say], Any]) -> str:
    """What reading says: its messages, and its error if it raises one."""
    said: list[str] = []
    try:
        read(said.append)
    except QkvError as error:
        return "\n".join([*said, error.render(on_command_line)])
    assert said, "read without a word"
    return "\n".join(said)


def expect(message: str, words: list[str], path: Path) -> None:
    for word in words:
        assert word.replace("{f}", str(path)) in message, message


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "f.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(("content", "words"), LABELED, ids=range(len(LABELED)))
def test_mistakes_in_labeled_texts(content: str | bytes, words: list[str], tmp_path: Path) -> None:
    path = written(tmp_path, content)

    def read(say: Say) -> None:
        labels_of(item.label for item in read_labeled(path, say=say))

    expect(report(read), words, path)


@pytest.mark.parametrize(("content", "words"), TAGGED, ids=range(len(TAGGED)))
def test_mistakes_in_tagged_sentences(content: str | bytes, words: list[str], tmp_path: Path) -> None:
    path = written(tmp_path, content)
    expect(report(lambda say: read_tagged(path, say=say)), words, path)


@pytest.mark.parametrize(("content", "words"), PAIRS, ids=range(len(PAIRS)))
def test_mistakes_in_pairs(content: str | bytes, words: list[str], tmp_path: Path) -> None:
    path = written(tmp_path, content)
    expect(report(lambda say: read_tsv(path, say=say)), words, path)


@pytest.mark.parametrize(("content", "words"), TABLES, ids=range(len(TABLES)))
def test_mistakes_in_tables(content: str | bytes, words: list[str], tmp_path: Path) -> None:
    path = written(tmp_path, content)
    expect(report(lambda _: read_table(path).numbers(["a"])), words, path)


@pytest.mark.parametrize(("pairs", "words"), POINTS, ids=range(len(POINTS)))
def test_mistakes_in_elements_and_positions(pairs: list[tuple[str, str]], words: list[str]) -> None:
    lines = [Pair(source, target, line) for line, (source, target) in enumerate(pairs, start=1)]
    expect(report(lambda _: parse_pairs(lines, ("f", "f"))), words, Path("f"))


def test_mistakes_in_parallel_files_and_texts(tmp_path: Path) -> None:
    one, other = tmp_path / "a.de", tmp_path / "a.en"
    for left, right, words in (
        ("a\nb\nc\n", "a\nb\n", [f"{one}:3", "3 lines", "2 lines", "line missing"]),
        ("a\n\n", "a\nb\n", [f"{one}:2", "an empty line", "delete line 2"]),
        ("a\n\n", "a\n\n", [f"{one}:2", "in both files"]),
    ):
        one.write_text(left)
        other.write_text(right)
        expect(report(lambda _: read_pairs(one, other)), words, one)
    one.write_text("\n\n")
    expect(report(lambda _: read_text(one)), [str(one), "empty lines only"], one)
    expect(report(lambda _: read_lines(tmp_path / "a.dee")), ["no such file", 'Did you mean "a.de"'], one)
    expect(report(lambda _: read_lines(tmp_path)), ["a folder", "Give a file inside it"], one)


def test_there_are_a_hundred_of_them() -> None:
    assert sum(map(len, (LABELED, TAGGED, PAIRS, TABLES, POINTS))) + 6 >= 100


def test_sound_files_are_read_without_a_word(tmp_path: Path) -> None:
    texts = {"labeled": GOOD * 3, "tagged": SENTENCE * 3, "pairs": "ein Hund\ta dog\nsource\ttarget\n"}
    readers: dict[str, Callable[..., Any]] = {"labeled": read_labeled, "tagged": read_tagged, "pairs": read_tsv}
    for name, text in texts.items():
        said: list[str] = []
        assert readers[name](written(tmp_path, text), say=said.append)
        assert not said
