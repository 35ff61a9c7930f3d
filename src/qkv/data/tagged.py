r"""Sentences whose words have tags, one word per line in columns, and an empty line after each sentence.

The column format is that of the CoNLL tasks: the word first and its tag last, separated by tabs or single spaces;
columns in between are ignored. Where the first column numbers the words, as in CoNLL-U, others hold the word and the
tag. A first line that only names the columns, such as `word tag`, is skipped. Tags are brought to Unicode's form NFC.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from qkv.data.columns import TextColumns, index_of, is_name, split_rows
from qkv.data.corpus import header_message, read_lines, repeated_header, silent
from qkv.data.hints import seems, text_messages
from qkv.data.labeled import LABEL_NAMES, cells_of, counts_text, exchanged_too, more_lines, seems_header, spellings
from qkv.data.normal_forms import normalize
from qkv.data.odd_lines import without_odd_lines
from qkv.data.report import expect_some_left, refuse, refused
from qkv.data.report import say as add
from qkv.data.table import SEPARATOR_NAMES
from qkv.data.words import split_words
from qkv.errors import DataError, Place, brief, quantity, setting

WORD_NAMES = frozenset({"word", "words", "token", "tokens", "form"})
TAG_NAMES = frozenset({*LABEL_NAMES, "tag", "tags", "ner", "pos", "upos", "xpos", "ner_tag", "ner_tags", "pos_tag"})
"""Names of columns, in lower case, that make the first line a header."""
_SPAN = re.compile(r"[BIESLUM][-_]\S+")
"""Tags of spans: IOB, IOBES, BILOU."""
_NUMBER = re.compile(r"(\d+)([-.]\d+)?")
_UD_WIDTH = 10
"""Columns of CoNLL-X and CoNLL-U: ID, FORM, LEMMA, UPOS, XPOS, FEATS, HEAD, DEPREL, DEPS, MISC."""
_GERMEVAL_WIDTH = 4
"""Columns of GermEval 2014: number, word, name, name within that name."""
_PHRASE = re.compile(r"[A-Z]-\w*P")
"""Tags of phrases, such as B-NP, which stand beside those of names in other files."""
_EMPTY = "_"
_DOCUMENT = "-DOCSTART-"
_PERIOD = re.compile(r"(\w{2,})?[.!?…]+")
"""How the last word of a sentence is written, with its mark or apart from it; few tags are written so."""
_ONE_WORD = "Write one word and its tag per line, and an empty line after each sentence."
_MANY = 8
"""Different tags from which on a file with few different words has its columns exchanged."""
_SPANS = "write B-PER, I-PER and O (IOB), with E- and S- (IOBES), or with L- and U- (BILOU)."
_WELL_FORMED = re.compile(r"[BIESLU]-.+")
_ALMOST_WELL_FORMED = re.compile(r"[biesluBIESLU][-_]\S+|\S+[-_][BIESLU]")


@dataclass(frozen=True, slots=True)
class Tagged:
    """The words of a sentence, their tags, and the line number (from 1) of the first word.

    Example:
        >>> Tagged(("Ada", "wrote"), ("PERSON", "O"), 1).tags
        ('PERSON', 'O')
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    line: int


class TagLine(NamedTuple):
    """The cells of a line, and its number in the file, from 1."""

    number: int
    cells: tuple[str, ...]


class TagColumns(NamedTuple):
    """Which columns hold the words and the tags, from 0.

    Attributes:
        name: the name of the format.
        word: the column of words.
        tag: the column of tags; −1 is the last one.
        numbered: whether the first column numbers the words of a sentence.
    """

    name: str = "columns"
    word: int = 0
    tag: int = -1
    numbered: bool = False

    def words(self, rows: Sequence[TagLine]) -> Iterator[TagLine]:
        """The rows that are words: no comment, range of a contraction ("3-4") or node without text ("5.1")."""
        return (row for row in rows if not self.numbered or row.cells[0].isdecimal())


WORD_AND_TAG = TextColumns(("word", "tag"))


def read_tagged(
    path: Path, *, say: Callable[[str], None] = silent, columns: TextColumns = WORD_AND_TAG
) -> list[Tagged]:
    """Read a file of words in columns, with an empty line after each sentence.

    Args:
        path: the file; `.gz` is unpacked.
        columns: which of them hold the words and the tags, and what separates them; else as the format has it.
        say: called with a message if the first line is skipped because it names the columns, if the first column
            numbers the words, or if no empty line ends a sentence.

    Returns:
        The sentences, in order.

    Raises:
        DataError: the file cannot be read, has no words or is not UTF-8; or a line has fewer than two nonempty columns,
            or not as many columns as the first.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "names.conll")
        ...     _ = path.write_text("Ada B-PER\\nwrote O\\n\\nYes O\\n")
        ...     [sentence.words for sentence in read_tagged(path)]
        [('Ada', 'wrote'), ('Yes',)]
    """
    lines = read_lines(path, blank=True)
    if columns.are_given and (separator := columns.separator(path, lines)) != "\t":
        add(f"{path}: columns separated by {SEPARATOR_NAMES[separator]}")
        lines = _with_tabs(lines, str(path), separator)
    header = _header(lines, columns)
    names = [] if header is None else _without_header(lines, header, path, say)
    comments = comments_of(lines)
    if comments and separator_of(lines) != "\t":
        say(f"{path}:{min(comments) + 1}: a comment, skipped{more_lines(len(comments) - 1, ', as ')}")
    chosen = _chosen(columns, names, lines, str(path))
    word, tag = chosen
    sentences = sentences_of(lines, str(path), (0 if word is None else word, -1 if tag is None else tag))
    layout = layout_of(sentences, str(path), chosen)
    if header is not None and columns.columns == (None, None):
        _expect_words_named([name.lower() for name in names], layout, Place(path, header + 1))
    sentences = [sentence for sentence in sentences if not any(refused(row.number, path) for row in sentence)]
    tagged = [_tagged(rows, layout) for sentence in sentences if (rows := list(layout.words(sentence)))]
    if not tagged:
        expect_some_left()
    if layout.numbered:
        column = "the last column" if layout.tag < 0 else f"column {layout.tag + 1}"
        say(f"{path}: {layout.name}: words from column {layout.word + 1}, tags from {column}")
    if tagged:
        tags = [tag for sentence in tagged for tag in sentence.tags]
        odd = (*spellings(Counter(tags), "tags"), *seems_header(tags, f"the tag of line {tagged[0].line}"))
        rows = [row for sentence in sentences for row in layout.words(sentence)]
        words, written = ([row.cells[column] for row in rows] for column in (layout.word, layout.tag))
        for message in (*odd, *text_messages([row.number for row in rows], words, written)):
            say(f"{path}: {message}")
    report_odd_spans(tagged, str(path), say)
    tagged = report_sentences(tagged, str(path))
    if not tagged:
        hint = "Write one word per line: word, then tag."
        raise DataError(Place(path), "words with their tags", "none", hint)
    if len(tagged) == 1 and len(tagged[0].words) > 1:
        say(
            f"{path}: all {len(tagged[0].words):,} lines are one sentence, because no line between them is empty. "
            "Write one word and its tag per line, and an empty line after each sentence."
        )
    return tagged


def report_sentences(sentences: list[Tagged], name: str) -> list[Tagged]:
    """Report odd sentences and the counts of tags, and return the sentences without those to be left out."""
    numbers = [sentence.line for sentence in sentences]
    columns = ([" ".join(sentence.words) for sentence in sentences], [" ".join(item.tags) for item in sentences])
    kept = without_odd_lines(name, sentences, numbers, *columns)
    add(f"{name}: {counts_text((tag for sentence in kept for tag in sentence.tags), 'tags')}")
    return kept


def _with_tabs(lines: Sequence[str], name: str, separator: str) -> list[str]:
    """Return the lines of CSV with tabs between their fields."""
    tabbed = [""] * len(lines)
    for number, cells in split_rows(lines, name, separator):
        tabbed[number - 1] = "\t".join(cell.replace("\t", " ") for cell in cells) if any(cells) else ""
    return tabbed


def _chosen(
    columns: TextColumns, names: Sequence[str], lines: Sequence[str], name: str
) -> tuple[int | None, int | None]:
    """Return the indices of the columns that are given; None for the others."""
    comments = comments_of(lines)
    first = next((line for index, line in enumerate(lines) if line.strip() and index not in comments), "")
    width = len(names) or len(first.rstrip(" ").split(separator_of(lines)))
    word, tag = (
        None if column is None else index_of(column, names, width, setting(f"{part}_col"), name)
        for part, column in zip(columns.names, columns.columns, strict=True)
    )
    return word, tag


def _without_header(lines: list[str], header: int, path: Path, say: Callable[[str], None]) -> list[str]:
    """Make the header an empty line, so that every other line keeps its number, and return its cells.

    Raises:
        DataError: it occurs again.
    """
    say(header_message(path, header + 1, lines[header]))
    separator = separator_of([lines[header]])
    names, low = [cell.strip() for cell in lines[header].split(separator)], cells_of(lines[header], separator)
    lines[header] = ""
    for number, line in enumerate(lines[header + 1 :], start=header + 2):
        if cells_of(line, separator_of([line])) == low:
            raise repeated_header(line, Place(path, number))
    return names


def _expect_words_named(names: list[str], layout: TagColumns, where: Place) -> None:
    """Refuse a header that names another column for the words.

    Raises:
        DataError: it does.
    """
    if names[layout.word] not in WORD_NAMES:
        column = next(number for number, cell in enumerate(names, start=1) if cell in WORD_NAMES)
        hint = f"Write word, then tag: cut -f{column},{len(names)} takes these columns."
        got = f'a header that calls column {column} "{names[column - 1]}"'
        raise DataError(where, "the word in the first column", got, hint)


def report_odd_spans(sentences: Iterable[Tagged], name: str, say: Callable[[str], None]) -> None:
    """Report tags that name no span although most do, or that no tag is written as a span.

    Args:
        sentences: the sentences.
        name: where they come from.
        say: called with the message.

    Example:
        >>> report_odd_spans([Tagged(("Ada", "of", "Ulm"), ("B-PER", "I-PER", "LOC"), 1)], "a.conll", print)
        a.conll: tags that are none of IOB, IOBES or BILOU beside tags that are: LOC
    """
    tags = Counter(tag for sentence in sentences for tag in sentence.tags)
    unlike = _unlike_spans(set(tags) - {"O", "o"})
    if unlike is not None:
        say(f"{name}: tags such as {brief(unlike)} name no spans, so that their F1 is missing: {_SPANS}")
        return
    odd = _odd_spans(tags)
    if odd:
        say(f"{name}: tags that are none of IOB, IOBES or BILOU beside tags that are: {', '.join(map(brief, odd[:5]))}")


def _unlike_spans(names: set[str]) -> str | None:
    """Return a tag if all tags nearly name spans: lowercase (b-per), reversed (PER-B), or of mixed schemes."""
    letters = {name[0] for name in names if _WELL_FORMED.fullmatch(name)}
    if letters:
        mixed = not letters.isdisjoint("ES") and not letters.isdisjoint("LU")
        return min(names) if mixed and all(map(_WELL_FORMED.fullmatch, names)) else None
    return min(names) if names and all(map(_ALMOST_WELL_FORMED.fullmatch, names)) else None


def _odd_spans(tags: Mapping[str, int]) -> list[str]:
    """Return tags that name no span although most tags or most tagged words do: misspelled ones."""
    names = sorted(tags.keys() - {"O"})
    odd = [name for name in names if not _WELL_FORMED.fullmatch(name)]
    count, total = sum(tags[name] for name in odd), sum(tags[name] for name in names)
    return odd if 2 * len(odd) <= len(names) or 2 * count <= total else []


def _header(lines: Sequence[str], columns: TextColumns) -> int | None:
    """Return the index of the first line with words if it names the columns; its own may be separated differently."""
    comments = comments_of(lines)
    written = [index for index, line in enumerate(lines) if line.strip() and index not in comments]
    if any(map(is_name, columns.columns)):
        return next(iter(written), None)
    if len(written) < 2:
        return None
    index, *rest = written
    below = [lines[at] for at in rest]
    first = cells_of(lines[index], separator_of([lines[index]]))
    word, tag = (None if column is None else int(column) - 1 for column in columns.columns)
    words, at_tag = first if word is None else first[word:][:1], slice(-1 if tag is None else tag, None)
    named = len(first) > 1 and not WORD_NAMES.isdisjoint(words) and not TAG_NAMES.isdisjoint(first[at_tag][:1])
    between = separator_of(below)
    rows = (cells_of(line, between) for line in below)
    return index if named and all(row[at_tag][:1] != first[at_tag][:1] for row in rows if row != first) else None


def _tagged(rows: list[TagLine], layout: TagColumns) -> Tagged:
    words, tags = (row.cells[layout.word] for row in rows), (normalize("NFC", row.cells[layout.tag]) for row in rows)
    return Tagged(tuple(words), tuple(tags), rows[0].number)


def sentences_of(lines: Sequence[str], name: str, ends: tuple[int, int] = (0, -1)) -> list[list[TagLine]]:
    """Split lines into sentences of rows, without comments, the marks between documents and spaces around cells.

    Columns are separated as in the first row; `comments_of` tells which lines are comments.

    Args:
        lines: the lines of the file.
        name: the name of the file, for messages.
        ends: the indices of the columns of words and tags, which must have text.

    Returns:
        The sentences.

    Raises:
        DataError: a row has fewer than two nonempty columns, or not as many as the first.

    Example:
        >>> sentences_of(["-DOCSTART- O", "", "EU B-ORG", "rejects O"], "names.conll")
        [[TagLine(number=3, cells=('EU', 'B-ORG')), TagLine(number=4, cells=('rejects', 'O'))]]
    """
    separator, sentences, width = separator_of(lines), list[list[TagLine]](), 0
    comments, rows = comments_of(lines), list[TagLine]()
    is_sound = True
    for number, line in enumerate([*lines, ""], start=1):
        if refused(number, name):
            is_sound = False
        elif not line.strip():
            sentences += [rows] if rows and is_sound else []
            rows, is_sound = [], True
        elif number - 1 not in comments:
            cells = tuple(cell.strip() for cell in line.rstrip(" ").split(separator))
            if cells[0] != _DOCUMENT:
                try:
                    _check(line, cells, width or len(cells), separator, Place(name, number), ends)
                except DataError as error:
                    refuse("empty" if len(cells) == width else "columns", error)
                    is_sound = False
                    continue
                width = width or len(cells)
                rows.append(TagLine(number, cells))
    if not sentences:
        expect_some_left()
    return sentences


def separator_of(lines: Sequence[str]) -> str:
    """Return what separates columns: a tab if the first row has one, else a space.

    Example:
        >>> separator_of(["# a comment", "EU\\tB-ORG"]), separator_of(["EU B-ORG", "rejects\\tO"])
        ('\\t', ' ')
    """
    written = [line for line in lines if line.strip() and not line.startswith(_DOCUMENT)]
    first = next((line for line in written if not line.startswith("#")), written[0] if written else "")
    return "\t" if "\t" in first else " "


def comments_of(lines: Sequence[str]) -> frozenset[int]:
    """Return the indices of lines that are comments, not the word "#" or a hashtag with its tag.

    With tabs, lines that start with `# ` are, as in CoNLL-U. Others that start with `#` are if they do not end in a
    tag of other lines and have not as many columns as words; where spaces separate columns, "# TEXT" may have as many.

    Example:
        >>> sorted(comments_of(["# sent_id = 1", "Ada B-PER", "# note", "is O", "# O", "#ada O"]))
        [0, 2]
    """
    separator = separator_of(lines)
    marked = {index: line for index, line in enumerate(lines) if line.startswith("#")}
    if not marked:
        return frozenset()
    row_lines = (line for line in lines if line.strip() and not line.startswith(("#", _DOCUMENT)))
    rows = [line.rstrip(" ").split(separator) for line in row_lines]
    tags, width = {cells[-1] for cells in rows}, len(rows[0]) if rows else 0

    def is_comment(line: str) -> bool:
        if separator == "\t" and line.startswith("# "):
            return True
        cells = line.rstrip(" ").split(separator)
        return (
            bool(rows)
            and cells[-1] not in tags
            and (len(cells) != width or (separator == " " and not cells[0].strip("#")))
        )

    # The files of CoNLL-2012, which begin with "#begin document", are refused by name.
    return frozenset(index for index, line in marked.items() if is_comment(line) and not line.startswith("#begin "))


def layout_of(
    sentences: Sequence[Sequence[TagLine]], name: str, chosen: tuple[int | None, int | None] = (None, None)
) -> TagColumns:
    """Recognize where the words and the tags are.

    Args:
        sentences: the sentences of a file.
        name: the name of the file, for messages.
        chosen: the indices of the columns of words and tags, if they are given.

    Returns:
        The layout.

    Raises:
        DataError: the column of tags is empty in every row, words and tags are exchanged, or most words are numbered
            and some are not in their order.

    Example:
        >>> row = "1 They they PRON PRP _ 2 nsubj _ _".split()
        >>> layout_of([[TagLine(1, tuple(row))]], "en.conllu").name
        'CoNLL-U'
    """
    layout = TagColumns()
    if _are_numbered(sentences, name):
        layout = _numbered_layout([row.cells for sentence in sentences for row in sentence if row.cells[0].isdecimal()])
    word, tag = chosen
    layout = layout._replace(word=layout.word if word is None else word, tag=layout.tag if tag is None else tag)
    rows = [row.cells for sentence in sentences for row in layout.words(sentence)]
    words, tags = {cells[layout.word] for cells in rows}, {cells[layout.tag] for cells in rows}
    if tags == {_EMPTY}:
        column = len(rows[0]) if layout.tag < 0 else layout.tag + 1
        hint = "Write word<TAB>tag on each line: cut -f2,5 takes the columns FORM and XPOS of CoNLL-U."
        raise DataError(Place(name), f"tags in column {column}", f'"{_EMPTY}" in every line', hint)
    many_tags = len(tags) >= _MANY and len(tags) > 4 * len(words)
    if many_tags or (_are_spans(words) and not _are_spans(tags)):
        got = f"{quantity(len(words), 'different word')} and {quantity(len(tags), 'different tag')}"
        raise DataError(Place(name), "the word first and the tag last", got, "Exchange the columns.")
    if chosen == (None, None):
        _expect_words(sentences, name)
    _check_each_order([row for sentence in sentences for row in layout.words(sentence)], layout, name)
    return layout


def _numbered_layout(rows: Sequence[tuple[str, ...]]) -> TagColumns:
    """Recognize where the tags are if the first column numbers the words."""
    width = len(rows[0])
    if width == _UD_WIDTH:
        return TagColumns("CoNLL-U", 1, 3, True)
    names = {row[2] for row in rows} - {"O"}
    if width == _GERMEVAL_WIDTH and _are_spans(names) and not all(map(_PHRASE.fullmatch, names)):
        return TagColumns("GermEval 2014, the outer names", 1, 2, True)
    return TagColumns("numbered columns", 1, -1, True)


def _check_each_order(rows: Sequence[TagLine], layout: TagColumns, name: str) -> None:
    """Refuse a line whose word is the tag of other lines, while its tag is a word, or no span beside spans.

    Raises:
        DataError: a line has its columns exchanged; the message gives the first one.
    """
    words, tags = (Counter(row.cells[column] for row in rows) for column in (layout.word, layout.tag))

    def seems_exchanged(row: TagLine) -> bool:
        word, tag = row.cells[layout.word], row.cells[layout.tag]
        span = _SPAN.fullmatch(word) and tag != "O" and not _SPAN.fullmatch(tag)
        return tags[word] > max(1, tags[tag]) and bool(span or words[tag])

    exchanged = [row for row in rows if seems_exchanged(row)]
    for row in exchanged if 2 * len(exchanged) < len(rows) else ():
        word, tag = row.cells[layout.word], row.cells[layout.tag]
        got = f'the word "{brief(word)}", which is a tag of other lines, with the tag "{brief(tag)}"'
        hint = f"Exchange the columns of this line{exchanged_too(len(exchanged) - 1)}."
        refuse("swapped", DataError(Place(name, row.number), "the word first and the tag last", got, hint))


def _are_spans(tags: Iterable[str]) -> bool:
    """Whether all of them are tags of spans, and at least one begins or continues one."""
    names = set(tags) - {"O"}
    return bool(names) and all(_SPAN.fullmatch(tag) for tag in names)


def _expect_words(sentences: Sequence[Sequence[TagLine]], name: str) -> None:
    """Refuse files with a sentence on each line.

    Raises:
        DataError: words are joined to their tags, each row has several words and as many tags, or words alone.
    """
    rows = [row for sentence in sentences for row in sentence]
    if not rows:
        return
    expected = "one word and its tag per line"
    first = rows[0]
    if (mark := _joining_mark([cell for row in rows for cell in row.cells])) is not None:
        _refuse_joined(first.cells, mark, Place(name, first.number))
    several = [row for row in rows if len(split_words(row.cells[0])) > 1]
    if several and all(len(split_words(row.cells[0])) == len(split_words(row.cells[-1])) for row in rows):
        got = f'{len(split_words(several[0].cells[0]))} words and as many tags: "{brief(several[0].cells[0])}"'
        raise DataError(Place(name, several[0].number), expected, got, _ONE_WORD)
    if len(first.cells) > 2 and all(map(_ends_sentence, (row.cells for row in rows))):
        got = f'a sentence: "{brief(" ".join(first.cells))}"'
        raise DataError(Place(name, first.number), expected, got, _ONE_WORD)


def _joining_mark(cells: Sequence[str]) -> str | None:
    """Return the character that joins word and tag in every cell, as in "dog/NN"; None if there is none."""
    return next((mark for mark in "/_|" if all(mark in cell[1:-1] for cell in cells)), None)


def _refuse_joined(cells: Sequence[str], mark: str, where: str) -> NoReturn:
    got = f'words joined to their tags by "{mark}": {brief(" ".join(cells))}'
    raise DataError(where, "one word and its tag per line", got, _ONE_WORD)


def _ends_sentence(cells: Sequence[str]) -> bool:
    return cells[0] != cells[-1] and _PERIOD.fullmatch(cells[-1]) is not None


def _are_numbered(sentences: Sequence[Sequence[TagLine]], name: str) -> bool:
    """Return whether the first column numbers the words from 1 or 0, with room for a word and a tag beside it.

    Raises:
        DataError: it numbers most words, but not all of them in their order, as where an empty line is missing.
    """
    # GermEval names the source of each sentence in a row of its own.
    parts = [rows[len(rows) > 1 and rows[0].cells[0] == "#" :] for rows in sentences]
    rows = [row for part in parts for row in part]
    if not rows or len(rows[0].cells) < 3 or not all(_NUMBER.fullmatch(row.cells[0]) for row in rows):
        return False
    words, out_of_order = 0, list[TagLine]()
    for part in parts:
        expected = (0, 1)
        for row in part:
            if row.cells[0].isdecimal():
                number = int(row.cells[0])
                out_of_order += [] if number in expected else [row]
                expected = (number + 1, number + 1)
                words += 1
    if 2 * len(out_of_order) > words:
        return False
    if out_of_order:
        first = out_of_order[0]
        hint = "Is the empty line between two sentences missing before it?"
        if first.cells[0] not in ("0", "1"):
            hint = "Number the words of a sentence one by one, from 1."
        got = f"{first.cells[0]}, which does not follow"
        raise DataError(Place(name, first.number), "words that the first column numbers in their order", got, hint)
    return True


def _check(
    line: str, cells: Sequence[str], width: int, separator: str, where: str, ends: tuple[int, int] = (0, -1)
) -> None:
    if (problem := seems(line, "misplaced line", "tagged line")) is not None:
        raise DataError(where, "a word and its tag", *problem)
    if where.endswith(":1") and (known := seems(line, "format")) is not None:
        raise DataError(where, "one word and its tag per line", known[0], _ONE_WORD)
    if len(cells) < 2 or (max(ends) < len(cells) and not all(cells[end].strip() for end in ends)):
        if line.endswith("\t"):
            raise DataError(
                where, "a word and its tag", "an empty last column", "Remove the tab at the end of the line."
            )
        got = "one column" if len(cells) < 2 else "an empty column"
        known = seems(" ".join(cells), "format", "one column", columns="word<TAB>tag") if len(cells) < 2 else None
        between = "one tab, as in earlier lines" if separator == "\t" else "one space, as in earlier lines"
        between = "a tab or one space" if width == len(cells) else between
        hint = f"Write word, then tag, separated by {between}, and an empty line after each sentence."
        raise DataError(where, "a word and its tag", got, hint if known is None else known[1])
    if len(cells) != width:
        _refuse_width(cells, width, separator, where)


def _refuse_width(cells: Sequence[str], width: int, separator: str, where: str) -> NoReturn:
    if separator == " " and (mark := _joining_mark(cells)) is not None:
        _refuse_joined(cells, mark, where)
    hint = "Give every word the same number of columns, separated by tabs if a column has spaces in it."
    if separator == " " and "" in cells:
        hint = "The columns seem to be separated by several spaces: write word<TAB>tag."
    elif separator == " " and _ends_sentence(cells):
        hint = f"It seems to be a sentence. {_ONE_WORD}"
    elif separator == " " and width > 2:
        hint += f" If each line is a sentence, {_ONE_WORD[0].lower()}{_ONE_WORD[1:]}"
    raise DataError(where, f"{width} columns, as in earlier lines", f"{len(cells)}", hint)
