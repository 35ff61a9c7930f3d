"""Every reader of training data reports damaged lines and text that seems to be pairs, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tasks.reading import read

from qkv.data.hints import damage_messages, repaired
from qkv.tasks.classify.data import read_texts as read_labeled
from qkv.tasks.pairs import PairSources
from qkv.tasks.prepare.preparing import prepare
from qkv.tasks.tag.data import read_texts as read_tagged
from qkv.tasks.translate.settings import TranslateFiles

WORDS = ["größer", "Ångström", "façade", "señor", "“quoted”", "naïve – dash", "Москва", "東京", "Ελλάδα", "5 €", "🙂"]
HONEST = [*WORDS, "NÃO", "Â", "à", "18 °C", "Ã la carte", "© 2011", "ÄÖÜ äöü ß", "Œuvre", "ÿ", "½ ¾", "plain", ""]


def as_cp1252(text: str) -> str:
    """Read UTF-8 as browsers read Windows-1252: bytes that it does not define are control characters."""
    return "".join(bytes([b]).decode("cp1252") if bytes([b]) not in UNDEFINED else chr(b) for b in text.encode())


UNDEFINED = {bytes([byte]) for byte in b"\x81\x8d\x8f\x90\x9d"}
MISREAD: dict[str, Callable[[str], str]] = {
    "Windows-1252": as_cp1252,
    "ISO-8859-1": lambda text: text.encode().decode("latin-1"),
}


@pytest.mark.parametrize("encoding", MISREAD)
@pytest.mark.parametrize("word", WORDS)
def test_what_was_misread_is_known(word: str, encoding: str) -> None:
    assert repaired(MISREAD[encoding](word)) == word
    assert repaired(f"before {MISREAD[encoding](word)} after") == f"before {word} after"


@pytest.mark.parametrize("text", HONEST)
def test_honest_text_is_not_reported(text: str) -> None:
    assert list(damage_messages([(1, text)])) == []


def _pairs(path: Path, texts: list[str]) -> None:
    path.write_text("".join(f"{text}\ta{n}\n" for n, text in enumerate(texts)), encoding="utf-8")
    PairSources.of(TranslateFiles(data=path)).read()  # type: ignore[union-attr]


def _parallel(path: Path, texts: list[str]) -> None:
    other = path.with_suffix(".other")
    other.write_text("".join(f"a{n}\n" for n in range(len(texts))), encoding="utf-8")
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    PairSources.of(TranslateFiles(source=other, target=path)).read()  # type: ignore[union-attr]


def _labeled(path: Path, texts: list[str]) -> None:
    path.write_text(
        "".join(f"{'good' if n % 2 else 'bad'}\t{text}\n" for n, text in enumerate(texts)), encoding="utf-8"
    )
    read_labeled(path)


def _labeled_values(path: Path, texts: list[str]) -> None:
    read_labeled([("good" if n % 2 else "bad", text) for n, text in enumerate(texts)])


def _tagged(path: Path, texts: list[str]) -> None:
    path.write_text("".join(f"{text.replace(' ', '_')} O\n" for text in texts), encoding="utf-8")
    read_tagged(path)


def _tagged_values(path: Path, texts: list[str]) -> None:
    read_tagged([[(text, "O")] for text in texts])


def _text(path: Path, texts: list[str]) -> None:
    path.write_text("".join(f"{text}\n" for text in texts * 5), encoding="utf-8")
    read("generate", data={"text": path}, model={"context": 4})


def _prepared(path: Path, texts: list[str]) -> None:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    prepare(path, out=path.with_suffix(".prepared"), tokenizer="char", processes=1)


def _prepared_pairs(path: Path, texts: list[str]) -> None:
    path.write_text("".join(f"{text}\ta{n}\n" for n, text in enumerate(texts)), encoding="utf-8")
    prepare(path, out=path.with_suffix(".prepared"), pairs=True, tokenizer="char", processes=1)


READERS = [_pairs, _parallel, _labeled, _labeled_values, _tagged, _tagged_values, _text, _prepared, _prepared_pairs]


@pytest.mark.parametrize("read", READERS)
def test_every_reader_reports_damage(
    read: Callable[[Path, list[str]], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"line {n}" for n in range(24)]
    read(tmp_path / "honest", texts)
    assert "U+FFFD" not in (honest := capsys.readouterr().err)
    assert "another encoding" not in honest
    texts[2], texts[5] = "grö\ufffder", as_cp1252("größer")
    read(tmp_path / "damaged", texts)
    messages = [line for line in capsys.readouterr().err.splitlines() if "U+FFFD" in line or "encoding" in line]
    lost, misread = messages
    assert "line 3" in lost
    assert "line 6" in misread
    assert "größer" in misread


@pytest.mark.parametrize("read", [_text, _prepared])
def test_text_that_seems_to_be_pairs_is_reported(
    read: Callable[[Path, list[str]], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read(tmp_path / "pairs", [f"ein Hund {n}\ta dog {n}" for n in range(24)])
    assert "as in a file of pairs" in capsys.readouterr().err
    read(tmp_path / "text", ["no tab", *[f"ein Hund {n}\ta dog {n}" for n in range(24)]])
    assert "pairs" not in capsys.readouterr().err
