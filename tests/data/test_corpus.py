"""Files are read unchanged or refused, with file, line and hint."""

import gzip
import io
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.corpus import Pair, iterate_lines, read_lines, read_pairs, read_tsv
from qkv.errors import ConfigError, DataError

LINE = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), min_size=1, max_size=30)
FILLED = LINE.filter(lambda line: line.strip() and not line.startswith("\ufeff"))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes], Path]:
    def write_(name: str, body: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(body)
        return path

    return write_


def message(call: Callable[[], object]) -> str:
    with pytest.raises(DataError) as caught:
        call()
    text = str(caught.value)
    assert ": expected " in text
    assert "; got " in text
    assert text.endswith((".", "?"))
    return text


@given(st.lists(FILLED, min_size=1, max_size=8), st.booleans(), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_lines_come_back_as_written(lines: list[str], last_ended: bool, end: str, mark: bool) -> None:
    body = end.join(lines) + (end if last_ended else "")
    stream = io.BytesIO((b"\xef\xbb\xbf" if mark else b"") + body.encode())
    assert list(iterate_lines(stream, "text")) == lines


@given(st.lists(st.tuples(FILLED, FILLED), min_size=1, max_size=8), st.data())
def test_line_numbers_are_those_of_the_files(texts: list[tuple[str, str]], data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        paths = Path(folder, "a.de"), Path(folder, "a.en")
        for path, side in zip(paths, zip(*texts, strict=True), strict=True):
            path.write_bytes("\n".join(side).encode())
        assert read_pairs(*paths) == [Pair(left, right, n) for n, (left, right) in enumerate(texts, start=1)]

        side, place = data.draw(st.integers(0, 1)), data.draw(st.integers(0, len(texts) - 1))
        lines = [text[side] for text in texts]
        lines[place] = data.draw(st.sampled_from(["", " ", "\u00a0\t"]))
        paths[side].write_bytes(("\n".join(lines) + "\n").encode())
        with pytest.raises(DataError) as caught:
            read_pairs(*paths)
        assert str(caught.value).startswith(f"{paths[side]}:{place + 1}: ")


@pytest.mark.parametrize("other_end", ["\u2028", "\u2029", "\u0085", "\v", "\f", "\x1c", "\r"])
def test_only_a_newline_ends_a_line(write: Callable[[str, bytes], Path], other_end: str) -> None:
    path = write("text", f"one{other_end}still one\ntwo\n".encode())
    assert read_lines(path) == [f"one{other_end}still one", "two"]


def test_spaces_around_text_are_kept(write: Callable[[str, bytes], Path]) -> None:
    path = write("text", " \u00a0one  two \n".encode())
    assert read_lines(path) == [" \u00a0one  two "]


def test_one_carriage_return_before_the_newline_is_dropped(write: Callable[[str, bytes], Path]) -> None:
    assert read_lines(write("text", b"one\r\ntwo\r\r\nthree\r")) == ["one", "two\r", "three"]


def test_byte_order_marks_of_joined_files_are_dropped(write: Callable[[str, bytes], Path]) -> None:
    path = write("text", "\ufeffone\n\ufefftwo\n".encode())
    assert read_lines(path) == ["one", "two"]


def test_packed_file_reads_like_plain(write: Callable[[str, bytes], Path]) -> None:
    assert read_lines(write("text.gz", gzip.compress("één\ntwo\n".encode()))) == ["één", "two"]


def test_pairs_of_two_files(write: Callable[[str, bytes], Path]) -> None:
    pairs = read_pairs(write("a.de", b"eins\nzwei\n"), write("a.en", b"one\ntwo"))
    assert pairs == [Pair("eins", "one", 1), Pair("zwei", "two", 2)]


def test_pairs_of_a_tsv(write: Callable[[str, bytes], Path]) -> None:
    assert read_tsv(write("a.tsv", b"eins\tone\nzwei\ttwo\n")) == [Pair("eins", "one", 1), Pair("zwei", "two", 2)]


@pytest.mark.parametrize("longer", ["de", "en"])
def test_unequal_counts_name_both_files_and_counts(write: Callable[[str, bytes], Path], longer: str) -> None:
    german = write("a.de", b"x\n" * (1003 if longer == "de" else 1002))
    english = write("a.en", b"x\n" * (1003 if longer == "en" else 1002))
    text = message(lambda: read_pairs(german, english))
    assert text.startswith(f"{german if longer == 'de' else english}:1003: ")
    counts = {"de": ("1,003", "1,002"), "en": ("1,002", "1,003")}[longer]
    assert f"{counts[0]} lines in {german} and {counts[1]} lines in {english}" in text


def test_empty_last_line_of_one_file_counts_as_a_line(write: Callable[[str, bytes], Path]) -> None:
    german, english = write("a.de", b"x\ny\n\n"), write("a.en", b"x\ny\n")
    assert message(lambda: read_pairs(german, english)).startswith(f"{german}:3: ")


def test_empty_side_names_file_and_line(write: Callable[[str, bytes], Path]) -> None:
    german, english = write("a.de", b"x\ny\nz\n"), write("a.en", b"x\n \t\nz\n")
    text = message(lambda: read_pairs(german, english))
    assert text.startswith(f"{english}:2: ")
    assert f"delete line 2 of {english} and of {german}" in text


def test_line_empty_in_both_files_is_said_so(write: Callable[[str, bytes], Path]) -> None:
    german, english = write("a.de", b"x\n\n"), write("a.en", b"x\n\n")
    assert "in both files" in message(lambda: read_pairs(german, english))


@pytest.mark.parametrize("body", [b"", b"\xef\xbb\xbf"])
def test_empty_file(write: Callable[[str, bytes], Path], body: bytes) -> None:
    path = write("a.de", body)
    text = message(lambda: read_lines(path))
    assert str(path) in text
    assert "empty" in text


def test_blank_line_is_refused_unless_allowed(write: Callable[[str, bytes], Path]) -> None:
    path = write("text", b"x\n\ny\n")
    assert message(lambda: read_lines(path)).startswith(f"{path}:2: ")
    assert read_lines(path, blank=True) == ["x", "", "y"]


def test_invalid_bytes_name_line_and_byte(write: Callable[[str, bytes], Path]) -> None:
    path = write("a.de", "ok\nMädchen\n".encode("latin-1"))
    text = message(lambda: read_lines(path))
    assert text.startswith(f"{path}:2: expected valid UTF-8; got byte 0xE4 at byte 2 of the line")
    assert "iconv" in text


def test_cut_off_character_is_said_so(write: Callable[[str, bytes], Path]) -> None:
    path = write("a.de", b"ok\nM" + "ä".encode()[:1])
    assert "an incomplete character" in message(lambda: read_lines(path))


@pytest.mark.parametrize("sequence", [b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80"])
def test_decoding_is_strict(write: Callable[[str, bytes], Path], sequence: bytes) -> None:
    path = write("a.de", b"ok " + sequence + b"\n")
    assert "at byte 4 of the line" in message(lambda: read_lines(path))


@pytest.mark.parametrize(
    ("body", "hint"), [(gzip.compress(b"one\n", mtime=0), ".gz"), ("one\ntwo\n".encode("utf-16"), "UTF-16")]
)
def test_other_encodings_are_recognized(write: Callable[[str, bytes], Path], body: bytes, hint: str) -> None:
    path = write("a.de", body)
    assert hint in message(lambda: read_lines(path))


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b", b"\xff\xfe\0\0"])
def test_only_the_start_of_a_file_tells_another_encoding(write: Callable[[str, bytes], Path], mark: bytes) -> None:
    binary = 0 in mark  # in the first line, it tells that a file is no text
    for body, where, is_text in (
        (b"one\n" + mark + b"two\n", ":2", True),
        (b"one" + mark + b"\n", ":1", not binary),
        (b"\xff one\n", ":1", True),
    ):
        path = write("a.de", body)
        told = message(lambda path=path: read_lines(path))
        expected = "valid UTF-8; got byte 0x" if is_text else "text; got bytes that no encoding of text has"
        assert told.startswith(f"{path}{where}: expected {expected}")
        assert not is_text or ("CP1252" if b"\x8b" in body else "ISO-8859-1") in told


def test_utf_32_is_not_taken_for_utf_16(write: Callable[[str, bytes], Path]) -> None:
    for encoding in ("utf-32", "utf-32-be"):
        path = write("a.de", "\ufeffone\n".encode(encoding) if encoding == "utf-32-be" else "one\n".encode(encoding))
        assert "UTF-32" in message(lambda path=path: read_lines(path))


def test_nul_names_line_and_character(write: Callable[[str, bytes], Path]) -> None:
    path = write("a.de", b"ok\nab\0c\n")
    assert message(lambda: read_lines(path)).startswith(f"{path}:2: expected text; got a NUL at character 3")


@pytest.mark.parametrize(("line", "columns"), [(b"one", "1 column"), (b"a\tb\tc", "3 columns"), (b"", "an empty line")])
def test_tsv_with_another_number_of_columns(write: Callable[[str, bytes], Path], line: bytes, columns: str) -> None:
    path = write("a.tsv", b"x\ty\n" + line + b"\nx\ty\n")
    text = message(lambda: read_tsv(path))
    assert text.startswith(f"{path}:2: expected 2 columns")
    assert f"got {columns}." in text


@pytest.mark.parametrize(("line", "side"), [(b"\ty", "source"), (b"x\t ", "target")])
def test_tsv_with_an_empty_column(write: Callable[[str, bytes], Path], line: bytes, side: str) -> None:
    path = write("a.tsv", line)
    assert f"got an empty {side}" in message(lambda: read_tsv(path))


@pytest.mark.parametrize("character", ["a", "ä", "字", "😀"])
def test_limit_counts_characters(write: Callable[[str, bytes], Path], character: str) -> None:
    good = write("good", (character * 10 + "\r\n").encode())
    assert read_lines(good, longest=10) == [character * 10]
    for end in ("\n", ""):
        bad = write("bad", ("ok\n" + character * 11 + end).encode())
        assert message(lambda bad=bad: read_lines(bad, longest=10)).startswith(f"{bad}:2: expected at most 10 char")


def test_limit_must_leave_something(write: Callable[[str, bytes], Path]) -> None:
    with pytest.raises(ConfigError, match="longest"):
        read_lines(write("a", b"x\n"), longest=0)


def test_missing_file_names_a_near_one(write: Callable[[str, bytes], Path]) -> None:
    path = write("train.de", b"x\n")
    assert 'Did you mean "train.de"?' in message(lambda: read_lines(path.with_name("trian.de")))


def test_missing_folder(tmp_path: Path) -> None:
    assert "does not exist either" in message(lambda: read_lines(tmp_path / "nowhere" / "train.de"))


def test_folder_in_place_of_a_file(tmp_path: Path) -> None:
    assert "got a folder" in message(lambda: read_lines(tmp_path))


def test_name_with_a_nul(tmp_path: Path) -> None:
    assert "NUL" in message(lambda: read_lines(tmp_path / "a\0b"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_forbidden_file(write: Callable[[str, bytes], Path]) -> None:
    path = write("a.de", b"x\n")
    path.chmod(0)
    assert "permissions" in message(lambda: read_lines(path))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that opens and does not read")
def test_unreadable_file() -> None:
    assert "expected a readable file" in message(lambda: read_lines(Path("/proc/self/mem")))


@pytest.mark.parametrize("damage", ["cut", "plain", "flipped"])
def test_damaged_packed_file(write: Callable[[str, bytes], Path], damage: str) -> None:
    whole = gzip.compress(os.urandom(3000).hex().encode())
    body = {"cut": whole[:-200], "plain": b"only text\n", "flipped": whole[:500] + b"\xff" * 300 + whole[800:]}[damage]
    path = write("a.gz", body)
    assert "gzip" in message(lambda: read_lines(path))


def test_endless_line_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "long"
    with path.open("wb") as stream:
        stream.truncate(2**30)
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from qkv.data.corpus import read_lines\n"
        "from qkv.errors import DataError\n"
        "try:\n"
        "    read_lines(Path(sys.argv[1]))\n"
        "except DataError as error:\n"
        "    print(error)\n"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (512 * 2**20, 512 * 2**20))

    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, preexec_fn=limit, check=True
    )
    assert "1: expected at most 1,048,576 characters" in done.stdout
