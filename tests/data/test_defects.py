"""Bad corpora, generated from a table of defects: refused with file and line, or read as documented."""

import gzip
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from tests.data.defects import READ, REFUSED, corpora

from qkv.data.corpus import read_lines, read_pairs, read_tsv
from qkv.data.tokenizer import Tokenizer
from qkv.errors import DataError

LONGEST = 1000


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_each_is_refused_with_its_line_or_read_as_documented(tmp_path: Path, count: int) -> None:
    refused = 0
    for corpus in corpora(count, seed=count):
        path = tmp_path / corpus.name
        path.write_bytes(corpus.data)
        if corpus.lines is not None:
            assert read_lines(path, longest=LONGEST) == corpus.lines
            continue
        refused += 1
        with pytest.raises(DataError) as caught:
            read_lines(path, longest=LONGEST)
        where = f"{path}:{corpus.line}:" if corpus.line else f"{path}:"
        assert str(caught.value).startswith(where), (corpus, str(caught.value))
        assert corpus.message in str(caught.value), (corpus, str(caught.value))
    assert count // 2 < refused < count


@pytest.mark.parametrize("defect", REFUSED, ids=lambda defect: defect.name)
def test_each_defect_is_refused_in_either_file_of_a_pair_and_in_a_table(tmp_path: Path, defect) -> None:
    sound, spoilt = tmp_path / "sound", tmp_path / "spoilt"
    sound.write_bytes(b"ein Hund\n" * 3)
    spoilt.write_bytes(b"ein Hund\n" + defect.apply(b"ein Hund") + b"\nein Hund\n")
    for source, target in ((sound, spoilt), (spoilt, sound)):
        with pytest.raises(DataError) as caught:
            read_pairs(source, target, longest=LONGEST)
        assert str(caught.value).startswith(f"{spoilt}:2:")
    spoilt.write_bytes(b"ein Hund\ta dog\n" + b"ein Hund\t" + defect.apply(b"a dog of ours") + b"\n")
    with pytest.raises(DataError) as caught:
        read_tsv(spoilt, longest=LONGEST)
    assert str(caught.value).startswith(f"{spoilt}:2:")


@pytest.mark.parametrize("defect", READ, ids=lambda defect: defect.name)
def test_what_is_read_shifts_no_line_of_a_pair(tmp_path: Path, defect) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"".join(defect.apply(b"Satz %d" % n) + b"\n" for n in range(5)))
    target.write_bytes(b"".join(b"line %d\n" % n for n in range(5)))
    pairs = read_pairs(source, target)
    assert [pair.line for pair in pairs] == [1, 2, 3, 4, 5]
    assert [pair.target for pair in pairs] == [f"line {n}" for n in range(5)]
    assert all(str(n) in pair.source for n, pair in enumerate(pairs))


@pytest.mark.parametrize("missing", range(5))
def test_unequal_lengths_name_the_first_line_without_a_partner(tmp_path: Path, missing: int) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"ein Satz\n" * 5)
    target.write_bytes(b"one line\n" * missing)
    with pytest.raises(DataError, match=rf"source:{missing + 1}|target: expected at least one line"):
        read_pairs(source, target)


GIANT = """
import resource, sys
from pathlib import Path
import torch
from qkv.data.corpus import read_lines
from qkv.errors import DataError
resource.setrlimit(resource.RLIMIT_DATA, (512 << 20, 512 << 20))
try:
    read_lines(Path(sys.argv[1]))
except DataError as error:
    print(error)
# Of this program alone: `ru_maxrss` begins with that of the one that started it.
peak = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(int(peak[0]) >> 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_a_line_of_a_gigabyte_is_refused_within_512_mib(tmp_path: Path, packed: bool) -> None:
    """A sparse file of a gigabyte; for a pipe, a gzip of a gigabyte."""
    path = tmp_path / ("giant.gz" if packed else "giant")
    if packed:
        member = gzip.compress(b"a" * (1 << 24))
        path.write_bytes(gzip.compress(b"one line\n") + member * 64)
    else:
        path.write_bytes(b"one line\n")
        os.truncate(path, 1 << 30)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", GIANT, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    said, megabytes = done.stdout.splitlines()
    assert said.startswith(f"{path}:2: expected at most 1,048,576 characters in a line; got a longer line.")
    assert int(megabytes) < 512


def adversarial(size: int, seed: int = 0) -> dict[str, str]:
    """Texts of about `size` characters that are hard for one tokenizer or another."""
    random = Random(seed)
    return {
        "one letter": "a" * size,
        "one space": " " * size,
        "one mark": "." * size,
        "letters and marks in turn": "a." * (size // 2),
        "joiners": "￭" * size,
        "combining marks": "e" + "\u0301" * (size - 1),
        "random letters": "".join(random.choices("abcdefghij", k=size)),
        "random characters": "".join(chr(random.randrange(32, 0xD7FF)) for _ in range(size)),
    }


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
def test_long_runs_are_tokenized_piece_by_piece(kind) -> None:
    """Text split into chunks of bounded size takes linear time: a run twice as long has the same tokens, and
    proportionally more of them.
    """
    tokenizer = Tokenizer.learn(["aaaa abab a.a. b" * 8, "abcdefghij" * 9], kind=kind, size=300, minimum=1)
    for name, text in adversarial(64 * 32).items():
        once, twice = tokenizer.encode(text), tokenizer.encode(text * 2)
        assert len(twice) <= 2 * len(once) + 2, name
        if kind != "word":
            assert len(twice) >= 2 * len(once) - 2, name
