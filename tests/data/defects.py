"""A table of possible corpus defects, the outcome of each, and corpora generated from it."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

WORDS = ("ein", "Hund", "läuft", "über", "die", "Wiese", "🙂", "naïve", "2011", "—", "x")


@dataclass(frozen=True)
class Defect:
    """One kind of defect.

    Args:
        name: its name.
        apply: maps the bytes of a valid line to the bytes that replace it.
        message: what the error says about the line, or None if the line is read, as `treated` says.
        treated: maps the replacement bytes to the text that is read.
    """

    name: str
    apply: Callable[[bytes], bytes]
    message: str | None = None
    treated: Callable[[bytes], str] = lambda data: data.removesuffix(b"\r").decode()


def _middle(piece: bytes) -> Callable[[bytes], bytes]:
    return lambda line: line.decode()[:1].encode() + piece + line.decode()[1:].encode()


REFUSED = (
    Defect("a byte that UTF-8 does not have", _middle(b"\xff"), "valid UTF-8"),
    Defect("Latin-1", lambda line: b"na\xefve " + line, "valid UTF-8"),
    Defect("a character cut short", lambda line: line + b"\xe2\x82", "an incomplete character"),
    Defect("an overlong form", _middle(b"\xc0\xaf"), "valid UTF-8"),
    Defect("a surrogate", _middle(b"\xed\xa0\x80"), "valid UTF-8"),
    Defect("beyond Unicode", _middle(b"\xf5\x80\x80\x80"), "valid UTF-8"),
    Defect("a lone continuation", _middle(b"\x80"), "valid UTF-8"),
    Defect("UTF-16", lambda line: ("x" + line.decode()).encode("utf-16-le"), ""),
    Defect("a NUL", _middle(b"\0"), "a NUL at character 2"),
    Defect("nothing", lambda line: b"", "an empty line"),
    Defect("spaces only", lambda line: b"  \t ", "an empty line"),
    Defect("no-break spaces only", lambda line: "\u00a0\u2003".encode(), "an empty line"),
    Defect("a carriage return only", lambda line: b"\r", "an empty line"),
    Defect("a line too long", lambda line: line * 1001, "at most 1,000 characters"),
)
READ = (
    Defect("sound", lambda line: line),
    Defect("a carriage return at the end", lambda line: line + b"\r"),
    Defect("two carriage returns at the end", lambda line: line + b"\r\r"),
    Defect("a carriage return within", _middle(b"\r")),
    Defect("a line separator", _middle("\u2028".encode())),
    Defect("a paragraph separator", _middle("\u2029".encode())),
    Defect("a next-line character", _middle("\u0085".encode())),
    Defect("a vertical tab", _middle(b"\x0b")),
    Defect("a form feed", _middle(b"\x0c")),
    Defect("a file separator", _middle(b"\x1c")),
    Defect("a byte order mark within", _middle(b"\xef\xbb\xbf")),
    Defect("spaces around", lambda line: b"  " + line + "\u00a0 ".encode()),
    Defect("a replacement character", _middle("\ufffd".encode())),
    Defect("a private character", _middle("\ue000".encode())),
    Defect("no character at all", _middle("\uffff".encode())),
    Defect("combining marks", _middle("\u0301\u0301\u0301".encode())),
    Defect("from right to left", _middle("\u202e".encode())),
    Defect("an escape", _middle(b"\x1b[31m")),
)


@dataclass(frozen=True)
class Corpus:
    """A file and its expected outcome.

    Args:
        data: its bytes.
        name: its file name.
        lines: the lines read, or None if the file is refused.
        line: the number of the refused line, from 1; 0 if the file as a whole is refused.
        message: what the error says.
    """

    data: bytes
    name: str
    lines: list[str] | None
    line: int = 0
    message: str = ""


def corpora(count: int, seed: int = 0) -> list[Corpus]:
    """Build corpora, each with one refused defect or with several lines that get special treatment."""
    random = Random(seed)
    return [_corpus(random, number) for number in range(count)]


def _corpus(random: Random, number: int) -> Corpus:
    bodies, lines = [], []
    for _ in range(random.randint(2, 9)):
        defect = random.choice(READ)
        sound = " ".join(random.choices(WORDS, k=random.randint(1, 6))).encode()
        body = defect.apply(sound)
        bodies.append(body)
        lines.append(defect.treated(body))
    first = b"\xef\xbb\xbf" if random.randrange(8) == 0 else b""
    end = b"" if random.randrange(4) == 0 else b"\n"
    spoilt = random.randrange(len(bodies))
    kind = random.randrange(5)
    if kind == 0:
        return _packed(first + b"\n".join(bodies) + end, lines, random)
    if kind == 1:
        return Corpus(first + b"\n".join(bodies) + end, "text", lines)
    defect = REFUSED[number % len(REFUSED)]
    bodies[spoilt] = defect.apply(bodies[spoilt])
    # A file that ends in an empty line has one line less.
    return Corpus(first + b"\n".join(bodies) + b"\n", "text", None, spoilt + 1, defect.message or "")


def _packed(data: bytes, lines: list[str], random: Random) -> Corpus:
    whole = gzip.compress(data)
    match random.randrange(4):
        case 0:
            return Corpus(whole, "text.gz", lines)
        case 1:
            return Corpus(whole[: random.randrange(1, len(whole))], "text.gz", None, 0, "a complete gzip file")
        case 2:
            changed = bytearray(whole)
            changed[-random.randrange(5, 9)] ^= 0x10
            return Corpus(bytes(changed), "text.gz", None, 0, "a complete gzip file")
        case _:
            return Corpus(data, "text.gz", None, 0, "remove .gz from its name")
