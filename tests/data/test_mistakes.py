r"""A hundred mistakes in data files: each is refused by fields that say where it is, what is wrong and what to do.

A row is a file, the number of the line (None: the file as a whole), and what `expected`, `got` and `hint` must contain,
in this order where "..." stands between two pieces. The others are read, and said: a file, and words of the message.
"""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkv.data.corpus import Pair, read_lines, read_pairs, read_tsv
from qkv.data.labeled import labels_of, read_labeled
from qkv.data.pointing import parse_pairs
from qkv.data.table import read_table
from qkv.data.tagged import read_tagged
from qkv.data.text import read_text
from qkv.errors import DataError, QkvError, on_command_line, spelled

Say = Callable[[str], None]
Row = tuple[str | bytes, int | None, str, str, str]
GOOD = "good\ta fine film\nbad\ta dull one\n"

LABELED: list[Row] = [
    ("", None, "", "an empty file", ""),
    ("a fine film\tgood\na dull film\tbad\n" * 9, None, "label first", "", "Exchange the columns"),
    (f"{GOOD * 9}a so so film\tgood\n", 19, "", "a so so film", "Exchange the two columns of this line"),
    (GOOD * 40 + "a fine film\tgood\na dull one\tbad\n" * 10, 81, "", "", "19 more lines"),
    (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 1, "text", "a picture", "the right file"),
    (b"\xff\xd8\xff\xe0\0\x10JFIF\0", 1, "text", "a picture", "the right file"),
    (b"\x80\x04\x95\x10\0\0\0", 1, "text", "a pickle", "Save it as plain text"),
    (b"\x07\x93abc\xff\x01", 1, "text", "no encoding of text", "the right file"),
    (b"f.tsv" + bytes(252) + b"ustar\x0000", 1, "text", "an archive of tar", "Unpack it first"),
    ("good,a fine film\n", 1, "", "1 column", 'separated by "," ... label<TAB>text'),
    ('"good";"a fine film"\n', 1, "", "1 column", 'separated by ";" ... quotation marks'),
    ("good|a fine film\n", 1, "", "1 column", 'separated by "|"'),
    ("good  a fine film\n", 1, "", "1 column", "several spaces"),
    ("good a fine film\n", 1, "", "1 column", "label<TAB>text"),
    ("__label__good a fine film\n", 1, "", "1 column", "fastText ... without __label__"),
    ('{"label": "good", "text": "a film"}\n', 1, "", "1 column", "JSON"),
    ('[{"label": "good"}]\n', 1, "", "1 column", "JSON"),
    ("good\\ta fine film\n", 1, "", "1 column", "two characters \\t"),
    ("1\tgood\ta film\n", 1, "", "3 columns", ""),
    (f"{GOOD}good\ta\tfilm\n", 3, "", "3 columns", "replace tabs inside the text"),
    (f"{GOOD}\tx\n", 3, "", "an empty label", "Fill it or delete the line"),
    (f"{GOOD}good\t \n", 3, "", "an empty text", ""),
    (f"{GOOD}\nbad\ty\n", 3, "", "an empty line", ""),
    ("good\tx\rbad\ty\r", 1, "", "a carriage return within a line", "old Macs"),
    ("label\ttext\n", None, "", 'only "label"', ""),
    ("good\tx\n".encode("utf-16"), 1, "", "byte 0xFF at byte 1 of the line", "UTF-16 ... iconv"),
    ("good\tx\n".encode("utf-32"), 1, "", "byte 0xFF at byte 1 of the line", "UTF-32"),
    (GOOD.encode() + "bad\tnaïve\n".encode("latin-1"), 3, "valid UTF-8", "0xEF", ""),
    (gzip.compress(GOOD.encode(), mtime=0), 1, "", "gzip", ".gz"),
    (GOOD.encode() + "bad\t\u201cx\u201d\n".encode("cp1252"), 3, "valid UTF-8", "0x93", "CP1252"),
    (GOOD.encode() + b"bad\ta\0b\n", 3, "", "a NUL at character 6", ""),
    ("good\tx\ngood\ty\n", None, "", 'only "good"', ""),
    (GOOD * 9 + "a fine film\tgood\na dull one\tbad\n" * 9, 19, "", "", "Exchange the two columns of this line"),
    (f"label\ttext\n{GOOD * 9}Label\tText\n{GOOD}", 20, "", "the names of the columns again", "Delete it"),
    (
        "".join(f"Ada{n}\tgood\nBob{n}\tbad\n" for n in range(9)),
        None,
        "",
        "18 different labels",
        "Exchange the columns",
    ),
]

LABELED_SAID: list[tuple[str | bytes, list[str]]] = [
    (f"__label__{GOOD}".replace("\nbad", "\n__label__bad"), ["{f}", "every label begins with __label__", "fastText"]),
    ("".join(f"ein Hund {n}\ta dog {n}\n" for n in range(30)), ["{f}", "30 different labels", "label<TAB>text"]),
    (f"Good\tx\n{GOOD}", ["{f}", "capitals", "Good, good"]),
    ("good\tgood\nbad\tbad\n" * 2, ["{f}", "every text is its label"]),
    ("".join(f"{n / 7}\ttext {n}\n" for n in range(30)), ["{f}", "30 different labels", "qkv train regress"]),
    ("good\tx y\nbad\tx y\n", ["{f}", "1 text has", "line 2", '"bad"', "line 1"]),
    (f"{GOOD * 20}goood\tz\n", ["{f}", "occur once: goood", "spelled"]),
    (f"{GOOD * 3}bad.\tz\n", ["{f}", "punctuation alone", "bad, bad."]),
    (f"very good\tx\nvery_good\ty\n{GOOD}", ["{f}", "spaces or punctuation", "very good, very_good"]),
    (f"polarity\ttweet\n{GOOD * 5}", ["{f}", "line 1", '"polarity"', "nowhere else", "delete it"]),
    ("label\ttext\n" + GOOD, ["{f}:1", "a header, skipped"]),
    (f'{GOOD}good\t"""fine"", they say"\n', ["{f}", "quotation marks of CSV, in line 3,"]),
    ('good\t"fine"\nbad\t"dull"\n', ["{f}", "quotation marks of CSV, in line 1 and in 1 more"]),
    ("text\tlabel\na film\tgood\none\tbad\n", ["{f}:1", "a header, skipped"]),
]

SENTENCE = "Ada B-PER\nwrote O\n\n"
UD = "1\tShe\tshe\tPRON\t_\t_\t2\tnsubj\t_\t_\n2\tran\trun\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No\n\n"
"""A sentence of CoNLL-U."""

TAGGED: list[Row] = [
    (
        "Ada/N wrote/V\nBonn/N is/V old/A\n",
        2,
        "one word and its tag per line",
        'joined to their tags by "/"',
        "one word",
    ),
    ("the old dog\nthe dog is old\n", 2, "3 columns", "4", "each line is a sentence ... one word and its tag"),
    ("".join(f"N\tAda{n}\n\n" for n in range(9)), None, "", "1 different word and 9", "Exchange the columns"),
    ("Ada\nwrote\n", 1, "", "one column", "word, then tag"),
    ("Ada,B-PER\nwrote,O\n", 1, "", "one column", 'separated by "," ... word<TAB>tag'),
    ("Ada;B-PER\n", 1, "", "one column", 'separated by ";"'),
    ("Ada/B-PER wrote/O\n", 1, "one word and its tag per line", 'joined to their tags by "/"', ""),
    ("Ada_NNP wrote_VBD\nthe_DT cat_NN\n", 1, "", 'joined to their tags by "_"', ""),
    ("Ada wrote\tB-PER O\nBonn\tB-LOC\n", 1, "", "2 words and as many tags", ""),
    (
        "B-PER Ada\nO wrote\n\nB-LOC Bonn\nO is\n",
        None,
        "word first",
        "3 different words and 4 different tags",
        "Exchange the columns",
    ),
    (f"{SENTENCE}Ada NNP B-PER\n", 4, "2 columns, as in earlier lines", "3", ""),
    (f"{SENTENCE}Ada\tB-PER\n", 4, "", "one column", "one space, as in earlier lines"),
    ("Ada\tB-PER\nwrote O\n", 2, "", "one column", "one tab, as in earlier lines"),
    ("1\tAda\tada\t_\n2\twrote\twrite\t_\n", None, "", '"_" in every line', "cut -f2,5"),
    ("#begin document x\nx 0 0 Ada NNP *\n", 1, "", "CoNLL-2012", ""),
    ("-DOCSTART- O\n\n", None, "words with their tags", "none", ""),
    (f"{SENTENCE}Bonn \n", 4, "a word and its tag", "one column", ""),
    ('{"words": ["Ada"]}\n', 1, "", "JSON", ""),
    (f"{SENTENCE * 3}B-PER Bonn\n\n", 10, "", '"B-PER"', "Exchange the columns of this line"),
    (f"{SENTENCE * 9}O wrote\nO Ada\n\n", 28, "", '"O"', ""),
    ("dog NN\ncat NN\nruns VB\n\n" * 3 + "NN dog\n\n", 13, "", '"NN"', "Exchange the columns of this line"),
    (f"word tag\n{SENTENCE * 3}word tag\n{SENTENCE}", 11, "", "the names of the columns again", "Delete it"),
    (f"token\tner\n{SENTENCE}".replace(" ", "\t") + "token\tner\n", 5, "", "columns again", "Delete it"),
    ("id word tag\n" + "a Ada B-PER\na is O\n\n" * 3, 1, "the first column", 'calls column 2 "word"', "cut -f2,3"),
    (UD * 9 + UD[:-1] + UD, 30, "numbers in their order", "1, which does not follow", "empty line ... missing"),
    (UD * 9 + UD.replace("\n2\t", "\n3\t") + UD, 29, "", "3, which does not follow", "one by one"),
    ((UD * 4).replace("\n\n", "\n"), 3, "", "1, which does not follow", "empty line"),
    ("Ada     B-PER\nwrote   O\n\n", 2, "6 columns", "4", "several spaces: write word<TAB>tag"),
    (
        "Ada lives in Bonn.\nBob was in Ulm.\n",
        1,
        "one word and its tag",
        '"Ada lives in Bonn."',
        "one word and its tag",
    ),
    ("Ada was here .\nWas it Bob ?\n", 1, "one word and its tag", '"Ada was here ."', "one word and its tag"),
    ("Ada lives in Bonn.\nBob wrote a letter.\nIt rains.\n", 3, "4 columns", "2", "a sentence ... one word"),
]

TAGGED_SAID: list[tuple[str | bytes, list[str]]] = [
    ("Ada B-PER\nwrote O\nBonn B-LOC\n", ["{f}", "all 3 lines are one sentence", "an empty line"]),
    (f"{SENTENCE * 3}Bonn B-LOC\nsleeps b-misc\n\n", ["{f}", "none of IOB", "b-misc"]),
    ("word tag\nAda B-PER\nwrote O\n\nYes O\n", ["{f}:1", "a header, skipped"]),
    ("1\tAda\tada\tPROPN\tN\t_\t0\troot\t_\t_\n\n" * 2, ["{f}", "CoNLL-U", "words from column 2"]),
    ("0\tAda\tB-PER\n1\twrote\tO\n\n" * 2, ["{f}", "numbered columns", "words from column 2"]),
    (f"{SENTENCE * 3}B-LOC Bonn\nO sleeps\n\n", ["{f}", "none of IOB", "Bonn, sleeps"]),
    ("Ada b-per\nwrote o\n\n" * 2, ["{f}", "b-per", "F1 is missing", "B-PER"]),
    ("Ada PER-B\nwrote O\n\n" * 2, ["{f}", "PER-B", "F1 is missing"]),
    ("Ada B_PER\nwrote O\n\n" * 2, ["{f}", "B_PER", "F1 is missing"]),
    ("Ada S-PER\nNew B-LOC\nYork L-LOC\n\n" * 2, ["{f}", "F1 is missing", "IOBES", "BILOU"]),
    (f"# Ada wrote it\n{SENTENCE * 2}", ["{f}:1: a comment, skipped"]),
    (f"{SENTENCE}#note\n# and one\n{SENTENCE}", ["{f}:4: a comment, skipped, as is 1 more line"]),
    (f"{SENTENCE * 3}Bonn b-per\n\n", ["{f}", "capitals", "B-PER, b-per"]),
    (f"{SENTENCE * 3}Bonn\tB-PER\n\n".replace(" ", "\t").replace("Bonn\tB", "Bonn\tB\u200b"), ["{f}", "invisible"]),
    (f"{SENTENCE * 20}Bonn B-PRE\n\n", ["{f}", "occur once: B-PRE"]),
    (f"Wort Klasse\n{SENTENCE * 5}", ["{f}", "line 1", '"Klasse"', "delete it"]),
    (f'{SENTENCE * 5}"""" O\n\n', ["{f}", "quotation marks of CSV, in line 16"]),
]

PAIRS: list[Row] = [
    ("", None, "", "an empty file", ""),
    ("ein Hund a dog\n", 1, "", "1 column", "Write source<TAB>target"),
    ("1.2034\tein Hund\ta dog\n", 1, "", "3 columns, the first one a number", "scores the lines, cut -f2,3"),
    ("ein Hund\ta dog\t-1.5e-3\n", 1, "", "3 columns", "cut -f1,2"),
    ("http://a.de\thttp://a.en\tein Hund\ta dog\t0.7\n", 1, "", "5 columns", "cut -f3,4"),
    ("Geh.\tGo.\tCC-BY 2.0 (France)\n", 1, "", "3 columns", "cut -f1,2"),
    ('"ein\tHund"\ta dog\n', 1, "", "3 columns", "A quotation mark holds no tab or line break"),
    ('ein Hund\t"a dog\nor two"\n', 2, "", "1 column", "A quotation mark holds no tab or line break"),
    ("0.1 0.2 0.8 0.1 0.5 0.9 output 1 2 3 1 \n", 1, "", "1 column", "x y x y … output ... vectors as 0.3,0.7"),
    ("ein Hund,a dog\n", 1, "", "1 column", 'separated by ","'),
    ("ein Hund ||| a dog\n", 1, "", "1 column", 'separated by "|||" ... source<TAB>target'),
    ("ein Hund    a dog\n", 1, "", "1 column", "several spaces"),
    ("ein Hund\\ta dog\n", 1, "", "1 column", "two characters \\t"),
    ("ein Hund\ta dog\tx\n", 1, "", "3 columns", ""),
    ("a\tb\n\nc\td\n", 2, "", "an empty line", ""),
    ("a\tb\nc\t\n", 2, "", "an empty target", "Fill it or delete the line"),
    ("a\tb\n \td\n", 2, "", "an empty source", ""),
    ("a\tb\rc\td\r", 1, "", "a carriage return within a line", "old Macs"),
    ('{"translation": {"de": "a", "en": "b"}}\n', 1, "", "1 column", "JSON"),
    ("a\tb\n".encode("utf-16"), 1, "", "byte 0xFF at byte 1 of the line", "UTF-16"),
    (b"a\tb\nc\t\xff\n", 2, "", "0xFF", ""),
    ("source\ttarget\na\tb\nsource\ttarget\nc\td\n", 3, "", "the names of the columns again", "Delete it"),
    ("target\tsource\na\tb\n", 1, "the source first", '"target source"', "Exchange the columns"),
    ("elements\tpositions\n3 1\t2 1\nElements\tPositions\n", 3, "", "columns again", "Delete it"),
    ("a\t" + "x" * (2**20 + 1) + "\n", 1, "at most 1,048,576 characters", "a longer line", ""),
]

PAIRS_SAID: list[tuple[str | bytes, list[str]]] = [
    ("source\ttarget\nein Hund\ta dog\n", ["{f}:1", "a header, skipped"]),
    ("elements\tpositions\n3 1\t2 1\n", ["{f}:1", "a header, skipped"]),
    ("German\tEnglish\nein Hund\ta dog\n", ["{f}:1", '"German English" is trained on', "delete it"]),
    ("de\ten\nein Hund\ta dog\n", ["{f}:1", '"de en"']),
]

TABLES: list[Row] = [
    ("", None, "", "an empty file", ""),
    ("\n\n", None, "lines with columns", "none", ""),
    ("a,b\n", None, "numbers in", "no rows", ""),
    ("a,b\n1,2\n3\n", 3, "", "1", ""),
    ("a,b\n1,2,3\n", 2, "", "3", "must be quoted"),
    ("My table\na,b\n1,2\n", 2, "", "2", "Delete the first line if it is a title"),
    ("sep=;\na;b\n1;2\n", 1, "names of columns", "sep=", "Delete it"),
    ("| a | b |\n| 1 | 2 |\n", 1, "", '"|a|b|"', "separated by | ... commas or tabs"),
    ("a|b\n1|2\n", 1, "", '"a|b"', "separated by |"),
    ('{"a": 1}\n', 1, "", "JSON", ""),
    ("<table><tr><td>a</td></tr></table>\n", 1, "", "HTML or XML", "Save the table as CSV"),
    ("x,b\n1,2\n", None, "a column of {f}", '"a"', "Valid: x, b"),
    ("A,b\n1,2\n", None, "a column of {f}", '"a"', "Valid: A, b"),
    ("1,2\n3,4\n", None, "", '"a"', "The first line of {f} is numbers ... 1 to 2"),
    ("a,a\n1,2\n", None, "", '"a", 2 times', "its own name"),
    ('a,b\n"1,2\n', 2, "", "unexpected end of data", "Close the quotation mark"),
    ('a,b\n"' + ("x" * 140_000 + "\n") * 8 + '",1\n', 2, "", "field larger than field limit (1048576)", "Shorten"),
    ('a,b\n1,2"x"\n3,"4"x\n', 3, "", "',' expected after '\"'", "quotation mark"),
    ("a,b\n,2\n", 2, "", "an empty field", "--missing skip"),
    ("a,b\nNA,2\n", 2, "", '"NA"', "--missing skip"),
    ("a,b\n-,2\n", 2, "", '"-"', "--missing skip"),
    ("a,b\nm,1\nf,2\n", 2, "", '"m"', "The column holds text"),
    ("a,b\n1,1\nm,2\n", 3, "", '"m"', "It is text"),
    ("a,b\n1,1\nTotal,2\n", 3, "", '"Total"', "delete the line"),
    ("a,b\ntrue,1\n", 2, "", '"true"', "The column holds text"),
    ('a,b\n"10,000",5\n', 2, "", '"10,000"', "groups thousands"),
    ('a,b\n"1,200.50",5\n', 2, "", '"1,200.50"', "groups thousands"),
    ("a;b\n1,5;2\n", 2, "", '"1,5"', "--decimal comma"),
    ("a;b\n1.200,50;2\n", 2, "", '"1.200,50"', "groups thousands"),
    ("a,b\n5 kg,1\n", 2, "", '"5 kg"', "without units"),
    ("a,b\n$5,1\n", 2, "", '"$5"', "without units"),
    ("a,b\n5%,1\n", 2, "", '"5%"', ""),
    ("a,b\n2020-01-02,1\n", 2, "", '"2020-01-02"', "A date is no number"),
    ("a,b\n1/2/2020,1\n", 2, "", '"1/2/2020"', "A date is no number"),
    ("a,b\n#DIV/0!,1\n", 2, "", '"#DIV/0!"', "an error of a spreadsheet"),
    ("a,b\n=B2*2,1\n", 2, "", '"=B2*2"', "a formula"),
    ("a,b\ninf,1\n", 2, "", '"inf"', "--missing skip"),
    ("a,b\n1e999,1\n", 2, "finite", '"1e999"', ""),
    ("a,b\n2e150,1\n", 2, "finite", '"2e150"', "too large"),
    ("a,b\n-9e307,1\n", 2, "finite", '"-9e307"', "too large"),
    ('"a" "b"\n"1" 2 3\n"2" 4 5\n', 2, "2 fields", "3", "row.names = FALSE"),
    ("a\tb\n1\t2\t3\n2\t4\t5\n", 2, "2 fields", "3", "row.names = FALSE"),
    ("a,b\n1,2,\n3,4,\n", 2, "2 fields", "3", "Remove the separator at the end"),
    ("a,b\n\u22125,1\n", 2, "", '"−5"', "minus sign as a hyphen"),
    ("a,b\n1'200,1\n", 2, "", "1'200", "thousands"),
    ("a,b\n1\u202f200,1\n", 2, "", '"1 200"', "thousands"),
    ("a,b\n12:30,1\n", 2, "", '"12:30"', "A time is no number"),
    ("a,b\n0x10,1\n", 2, "", '"0x10"', ""),
    ("a,b\n1_000,1\n", 2, "", '"1_000"', "thousands separators"),
]

POINTS: list[tuple[list[tuple[str, str]], int | None, str, str, str]] = [
    ([("2 3 1", "30 10 20"), ("1 2", "5 6")], None, "elements first", "", "Exchange the two columns"),
    ([("3 1 2", "1 2 0"), ("2 1", "1 0")], None, "elements first", "", "count from 1"),
    ([("30 10 20", "1 2 0")], 1, "", '"0"', "counted from 0"),
    ([("30 10 20", "4")], 1, "positions from 1 to 3", '"4"', ""),
    ([("30 10 20", "10 20 30")], 1, "", '"10"', "hold elements"),
    ([("30 10 20", "2,3,1")], 1, "", '"2,3,1"', "Separate them by spaces"),
    ([("30 10 20", "two")], 1, "", '"two"', ""),
    ([("30 10", "1 2"), ("a b", "1 2")], 2, "", '"a"', "--elements words"),
    ([("1,2 3,4", "1 2"), ("1,2 3", "1")], 2, "a vector of 2 numbers as element 2", "1 in '3'", ""),
    ([("1;2 3;4", "1 2")], 1, "", '"1;2 3;4"', "0.3,0.7 ... --elements words"),
    ([("[30, 10]", "2 1")], 1, "", '"[30, 10]"', "0.3 1.5"),
    ([("(1,2) (3,4)", "2 1")], 1, "", '"(1,2) (3,4)"', "0.3,0.7"),
    ([("3 1e40", "1 2")], 1, "a finite number as element 2", '"1e40"', ""),
    ([("3 nan", "1 2")], 1, "a finite number as element 2", '"nan"', ""),
]


def silent(_: str) -> None:
    """Say nothing."""


def reads_labels(path: Path, say: Say) -> None:
    labels_of((item.label for item in read_labeled(path, say=say)), path)


READERS: dict[str, Callable[[Path, Say], Any]] = {
    "labeled": reads_labels,
    "tagged": lambda path, say: read_tagged(path, say=say),
    "pairs": lambda path, say: read_tsv(path, say=say),
    "tables": lambda path, _: read_table(path).numbers(["a"]),
}
FOREIGN = {
    "JSON": '{"text": "Ada"}\n',
    "HTML or XML": '<?xml version="1.0"?>\n<tmx version="1.4"/>\n',
    "an annotation file of brat": "T1\tPER 0 3\tAda\nT2\tLOC 12 16\tBonn\nR1\tLives Arg1:T1 Arg2:T2\n",
    "an annotation file of brat ": "T3\tPER 0 3;9 12\tAda Lou\n" * 3,
    "trees in brackets": "(S (NP (NNP Ada)) (VP (VBZ is)))\n( (S (NP (NNP Bob)) (VP (VBZ is))))\n",
}
"""Files of other formats, by the name that a message gives them."""
REFUSED = {"labeled": LABELED, "tagged": TAGGED, "pairs": PAIRS, "tables": TABLES}
SAID = {"labeled": LABELED_SAID, "tagged": TAGGED_SAID, "pairs": PAIRS_SAID}


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "f.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def judge(error: QkvError, path: Path, line: int | None, *fields: str) -> None:
    """Compare the fields of an error with a row; where a setting is wrong, it is about the setting, not the file."""
    assert (error.file, error.line) in ((str(path), line), *([(None, None)] if error.argument == "columns" else []))
    texts = [spelled(text, on_command_line) for text in error.args[1:]]
    assert len(texts) == 3
    assert texts[2].endswith((".", "?")), "a sentence that says what to do"
    for text, pieces in zip(texts, fields, strict=True):
        at = 0
        for piece in pieces.split(" ... "):
            at = text.find(piece.replace("{f}", str(path)), at)
            assert at >= 0, (piece, texts)


@pytest.mark.parametrize(
    ("reader", "row"), [(name, row) for name, rows in REFUSED.items() for row in rows], ids=lambda part: str(part)[:50]
)
def test_a_mistake_is_refused_by_its_fields(reader: str, row: Row, tmp_path: Path) -> None:
    content, line, *fields = row
    path = written(tmp_path, content)
    with pytest.raises(QkvError) as caught:
        READERS[reader](path, silent)
    judge(caught.value, path, line, *fields)


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("reader", ["labeled", "tagged", "pairs"])
def test_a_file_of_another_format_is_refused_by_its_name(reader: str, kind: str, tmp_path: Path) -> None:
    path = written(tmp_path, FOREIGN[kind])
    with pytest.raises(DataError) as caught:
        READERS[reader](path, silent)
    assert (caught.value.file, caught.value.line) == (str(path), 1)
    assert kind.strip() in f"{caught.value.got} {caught.value.hint}"


@pytest.mark.parametrize(("pairs", "line", "expected", "got", "hint"), POINTS, ids=range(len(POINTS)))
def test_mistakes_in_elements_and_positions(
    pairs: list[tuple[str, str]], line: int | None, expected: str, got: str, hint: str
) -> None:
    lines = [Pair(source, target, number) for number, (source, target) in enumerate(pairs, start=1)]
    with pytest.raises(DataError) as caught:
        parse_pairs(lines, ("f", "f"))
    judge(caught.value, Path("f"), line, expected, got, hint)


@pytest.mark.parametrize(
    ("reader", "content", "words"),
    [(name, *row) for name, rows in SAID.items() for row in rows],
    ids=lambda part: str(part)[:50],
)
def test_what_is_odd_is_said(reader: str, content: str | bytes, words: list[str], tmp_path: Path) -> None:
    path, said = written(tmp_path, content), list[str]()
    READERS[reader](path, said.append)
    for word in words:
        assert word.replace("{f}", str(path)) in "\n".join(said), said


def test_mistakes_in_parallel_files_and_texts(tmp_path: Path) -> None:
    one, other = tmp_path / "a.de", tmp_path / "a.en"
    for left, right, line, fields in (
        ("a\nb\nc\n", "a\nb\n", 3, ("", "3 lines ... 2 lines", "line missing")),
        ("a\n\n", "a\nb\n", 2, ("", "an empty line", "delete line 2")),
        ("a\n\n", "a\n\n", 2, ("", "in both files", "delete line 2")),
    ):
        one.write_text(left)
        other.write_text(right)
        with pytest.raises(DataError) as caught:
            read_pairs(one, other)
        judge(caught.value, one, line, *fields)
    one.write_text("\n\n")
    whole: list[tuple[Callable[[Path], object], Path, tuple[str, str, str]]] = [
        (read_text, one, ("", "empty lines only", "")),
        (read_lines, tmp_path / "a.dee", ("", "no such file", 'Did you mean "a.de"')),
        (read_lines, tmp_path, ("", "a folder", "Give a file inside it")),
    ]
    for read, path, fields in whole:
        with pytest.raises(DataError) as caught:
            read(path)
        judge(caught.value, path, None, *fields)


def test_there_are_a_hundred_of_them() -> None:
    assert sum(map(len, (*REFUSED.values(), *SAID.values(), POINTS))) + 6 >= 100


def test_sound_files_are_read_without_a_word(tmp_path: Path) -> None:
    texts = {"labeled": GOOD * 3, "tagged": SENTENCE * 3, "pairs": "ein Hund\ta dog\nsource\ttarget\n"}
    for name, text in texts.items():
        said: list[str] = []
        READERS[name](written(tmp_path, text), said.append)
        assert not said
