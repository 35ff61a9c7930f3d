"""The exception types. An error is data, which whoever shows it renders: Python, a command, the viewer.

Every error that qkv raises deliberately is a `QkvError`, raised with four texts: the argument that is wrong, what was
expected, what was given, and how to fix it. Where such a text names a setting, it adds `setting(name)`, because
Python and a command line spell settings differently: `"Use " + setting("beam", 5) + "."`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "MEMORY_ERRORS",
    "ArgumentError",
    "AttachError",
    "CheckpointError",
    "CompilationError",
    "ConfigError",
    "DataError",
    "DtypeError",
    "ForkError",
    "MaskError",
    "Message",
    "NamedSetting",
    "OutOfMemoryError",
    "Place",
    "QkvError",
    "ShapeError",
    "TrainingError",
    "UnsupportedError",
    "brief",
    "expect_enough_memory",
    "expect_name",
    "from_json_value",
    "harmless",
    "in_python",
    "joined",
    "nearest",
    "on_command_line",
    "out_of_memory_text",
    "quantity",
    "setting",
    "spelled",
    "to_json_value",
    "value_named",
]


def __dir__() -> list[str]:
    return __all__


# Everything a terminal interprets except tabs and line feeds: C0, DEL, C1, and Unicode direction controls.
_INTERPRETED = (*range(9), *range(11, 32), *range(127, 160), 0x061C, *range(0x200E, 0x2010), *range(0x2028, 0x202F))
_ESCAPES = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in (*_INTERPRETED, *range(0x2066, 0x206A))
}
_NO_MEMORY = (
    "can't allocate",  # memory, or a lock
    "can't start new thread",  # no memory for its stack
    "annot allocate memory",  # the system's words, also for a library that cannot be loaded
    "failed to map segment from shared object",
    "not enough memory",
    "torage size calculation overflowed",  # more bytes than an address can say
    "std::bad_alloc",
    # Python's words for a library that failed without saying why, as NumPy does when it is refused memory.
    "error return without exception set",
    "returned NULL without setting an exception",
    "PyObject pointer is null",  # the panic of a library in Rust
)
_Name = TypeVar("_Name", bound=str)
MEMORY_ERRORS = (MemoryError, RuntimeError, SystemError)
"""Exception types that may mean out of memory; `out_of_memory_text` tells."""


class QkvError(Exception):
    """The base class of every error that qkv raises deliberately.

    Args:
        argument: what is wrong: an argument, a setting, or a file (`Place` for a line of it).
        expected: what it should be.
        got: what was given; a period at its end, as in another message, is left out.
        hint: one sentence that says how to fix it.

    Example:
        >>> error = QkvError("key", "width 64, that of query", "width 32", "Use Bilinear to relate two widths.")
        >>> print(error)
        key: expected width 64, that of query; got width 32. Use Bilinear to relate two widths.
        >>> error.argument, error.got
        ('key', 'width 32')
        >>> error = DataError(Place("pairs.tsv", 3), "two texts", "one", "Separate them by a tab.")
        >>> error.file, error.line, str(error)
        ('pairs.tsv', 3, 'pairs.tsv:3: expected two texts; got one. Separate them by a tab.')
    """

    # Properties, and no `__init__`: torch.compile traces the raising of errors.

    @property
    def argument(self) -> str:
        """What is wrong."""
        return self._text(0)

    @property
    def expected(self) -> str:
        """What it should be."""
        return self._text(1)

    @property
    def got(self) -> str:
        """What was given."""
        return self._text(2)

    @property
    def hint(self) -> str:
        """How to fix it."""
        return self._text(3)

    @property
    def file(self) -> str | None:
        """The data file that is wrong, or None."""
        return self._place.file if self._place is not None else None

    @property
    def line(self) -> int | None:
        """The line of the file, counted from 1, or None."""
        return self._place.line if self._place is not None else None

    @property
    def args(self) -> tuple[str, ...]:  # type: ignore[override]
        """The argument, what was expected, what was given and the hint."""
        stored: tuple[object, ...] = super().args
        return tuple(text if isinstance(text, str) else str(text) for text in stored)

    @property
    def _place(self) -> "Place | None":
        argument = self.args[0] if self.args else None
        return argument if isinstance(argument, Place) else None

    def in_file(self, file: object) -> "QkvError":
        """Return the same error about a file, if it does not name one yet.

        Example:
            >>> error = DataError(Place(None, 3, "text"), "at most 4 tokens", "5", "Split it.").in_file("a.txt")
            >>> error.file, error.line, error.argument
            ('a.txt', 3, 'a.txt:3')
        """
        if self.file is not None or self.argument.startswith(str(file)):
            return self
        return self.about(f"{file}: {self.argument}" if self.line is None else Place(file, self.line))

    def _text(self, index: int) -> str:
        return self.args[index] if len(self.args) > index else ""

    def render(self, spell: "Spelling") -> str:
        """Return the message, with control characters escaped and settings spelled by a function.

        Line feeds in the argument, which can be the name of a file, are escaped; of each part at most 2,000 characters
        are shown.

        Example:
            >>> hint = "Give " + setting("valid_data") + ", or " + setting("score", "dot") + "."
            >>> DataError(Place("pairs.tsv", 3), "two texts", "one", hint).render(on_command_line)
            'pairs.tsv:3: expected two texts; got one. Give --valid-data, or --score dot.'
        """
        argument, expected, got, hint = (_clipped(spelled(text, spell)) for text in (*self.args, "", "", "", "")[:4])
        argument = _on_one_line(argument)
        if not expected:
            return harmless(argument)
        got = got if got.endswith("..") else got.removesuffix(".")
        return harmless(f"{argument}: expected {expected}; got {got}. {hint}")

    def about(self, argument: str) -> "QkvError":
        """Return the same error about another argument."""
        return type(self)(argument, *self.args[1:])

    def as_kind(self, kind: "type[_Kind]") -> "_Kind":
        """Return the same error as one of another type.

        Example:
            >>> CheckpointError("a.svg", "a writable file", "none", "Give another.").as_kind(ConfigError)
            ConfigError('a.svg', 'a writable file', 'none', 'Give another.')
        """
        return kind(*self.args)

    def __str__(self) -> str:
        return self.render(in_python)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.args))})"


_Kind = TypeVar("_Kind", bound=QkvError)


class ShapeError(QkvError, ValueError):
    """Sizes that do not match."""


class DtypeError(QkvError, TypeError):
    """Dtypes or devices that do not match."""


class MaskError(QkvError, ValueError, TypeError):
    """A mask argument that is not a mask, or does not fit."""


class ArgumentError(QkvError, TypeError):
    """An argument that a function does not have, or that is of another kind than it takes."""


class AttachError(QkvError, TypeError):
    """A model whose attention cannot be replaced; the message names its modules."""


class UnsupportedError(QkvError, ValueError, NotImplementedError):
    """A combination that the chosen backend does not support, or that is mathematically undefined."""


class ConfigError(QkvError, ValueError):
    """A setting with an unknown name or a value outside its range."""


class DataError(QkvError, ValueError):
    """An invalid data file; the message names file and line."""


class CheckpointError(QkvError, ValueError):
    """A checkpoint that is missing, incomplete, corrupted or of another kind."""


class TrainingError(QkvError, ArithmeticError):
    """A training that cannot continue: its loss is not finite, or a step does not fit in memory."""


class CompilationError(QkvError, RuntimeError):
    """Kernels whose machine code is older than their source, or that could not be compiled."""


class ForkError(QkvError, RuntimeError):
    """A forked child that would wait forever for the threads of its parent."""


class OutOfMemoryError(QkvError, MemoryError):
    """Memory ran out; the message says how to reduce the need."""


def out_of_memory_text(error: BaseException) -> str | None:
    """Recognize out-of-memory errors from Python, PyTorch or a GPU.

    Args:
        error: the exception.

    Returns:
        Its message on one line; None for any other error.

    Example:
        >>> out_of_memory_text(MemoryError()), out_of_memory_text(ValueError("size")) is None
        ('none left', True)
    """
    text, *more = str(error).split("\n")
    if isinstance(error, ImportError):  # NumPy puts a page of advice before the reason, other libraries their own error
        reasons = [line for line in (text, *more) if any(words in line for words in _NO_MEMORY)]
        before = error.__cause__ or error.__context__
        return reasons[0] if reasons else None if before is None else out_of_memory_text(before)
    is_memory_error = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if not is_memory_error and not any(words in text for words in _NO_MEMORY):
        return None
    # PyTorch puts a line of its own source code first.
    return text[text.find("DefaultCPUAllocator") :] if "DefaultCPUAllocator" in text else text or "none left"


def expect_enough_memory(error: ImportError) -> None:
    """Raise if a library cannot be imported because memory ran out, rather than because it is not installed.

    Args:
        error: what importing it raised.

    Raises:
        OutOfMemoryError: memory ran out.

    Example:
        >>> expect_enough_memory(ImportError("libx.so: failed to map segment from shared object"))
        Traceback (most recent call last):
        qkv.errors.OutOfMemoryError: memory: expected enough memory to load a library; got libx.so: failed to map
        segment from shared object. Raise the limit of this process (`ulimit -v`), or free some memory.
    """
    if (got := out_of_memory_text(error)) is not None:
        hint = "Raise the limit of this process (`ulimit -v`), or free some memory."
        raise OutOfMemoryError("memory", "enough memory to load a library", got, hint) from error


def harmless(text: str) -> str:
    """Escape control characters, so that names and texts from files cannot control the terminal.

    Args:
        text: any text; tabs and line feeds are kept.

    Returns:
        The text with every control character escaped.

    Example:
        >>> print(harmless("\\x1b[31mred\\ttoo"))
        \\x1b[31mred	too
    """
    return text.translate(_ESCAPES)


class Place(str):
    """The file that an error is about, or a line of it; as text, FILE or FILE:LINE.

    Example:
        >>> place = Place("pairs.tsv", 3)
        >>> place, place.file, place.line
        ('pairs.tsv:3', 'pairs.tsv', 3)
        >>> Place("pairs.tsv"), Place("pairs.tsv").line
        ('pairs.tsv', None)
        >>> Place(None, 3)
        'line 3'
    """

    file: str | None
    line: int | None
    unit: str

    def __new__(cls, file: object | None, line: int | None = None, unit: str = "line") -> "Place":
        """Name a file, or a line of it, counted from 1.

        Args:
            file: the file; None for lines that come from elsewhere.
            line: the number of the line; None for the file as a whole.
            unit: what a line is called if there is no file.
        """
        in_file = f"{file}" if line is None else f"{file}:{line}"
        location = super().__new__(cls, f"{unit} {line}" if file is None else in_file)
        location.file, location.line, location.unit = None if file is None else str(file), line, unit
        return location

    def __getnewargs__(self) -> tuple[str | None, int | None, str]:  # type: ignore[override]
        return self.file, self.line, self.unit


def to_json_value(error: QkvError) -> dict[str, object]:
    """Convert an error to names and texts, for another process.

    Example:
        >>> from_json_value(to_json_value(DataError(Place("a.txt", 3), "text", "none", "Write some."))).line
        3
    """
    texts = [list(text.parts) if isinstance(text, Message) else text for text in error.args]
    argument = error.args[0] if error.args else None
    place = {"place": argument.__getnewargs__()} if isinstance(argument, Place) else {}
    return {"kind": type(error).__name__, "texts": texts, **place}


def from_json_value(entries: Mapping[str, Any]) -> QkvError:
    """Return the error that `to_json_value` converted; one of an unknown kind as its base class."""
    kind = globals().get(entries["kind"], QkvError)
    kind = kind if isinstance(kind, type) and issubclass(kind, QkvError) else QkvError
    texts = [text if isinstance(text, str) else _from_parts(text) for text in entries["texts"]]
    if "place" in entries:
        texts[0] = Place(*entries["place"])
    error: QkvError = kind(*texts)
    return error


Spelling = Callable[[str, str | None], str]
"""How a setting is written: its name, and a value or None."""


class NamedSetting(NamedTuple):
    """A setting that a message names, and perhaps a value to give it."""

    name: str
    value: str | None


class Message(str):
    """A text that names settings: as a text it spells them as in Python, `spelled` as others do.

    It stays one when texts are added; what formats it, such as an f-string, makes a plain text of it.

    Example:
        >>> message = "Use " + setting("beam", 5) + " or wider."
        >>> message, spelled(message, on_command_line)
        ('Use beam=5 or wider.', 'Use --beam 5 or wider.')
    """

    parts: tuple[str | NamedSetting, ...]

    def __new__(cls, *parts: str | NamedSetting) -> "Message":
        """Join texts and settings."""
        message = super().__new__(cls, _spelled(parts, in_python))
        message.parts = parts
        return message

    def __add__(self, text: str) -> "Message":
        return Message(*self.parts, *_parts(text))

    def __radd__(self, text: str) -> "Message":
        return Message(*_parts(text), *self.parts)

    def __getnewargs__(self) -> tuple[str | NamedSetting, ...]:  # type: ignore[override]
        return self.parts


def _parts(text: str) -> tuple[str | NamedSetting, ...]:
    return text.parts if isinstance(text, Message) else (text,)


def _spelled(parts: Iterable[str | NamedSetting], spell: Spelling) -> str:
    return "".join(spell(*part) if isinstance(part, NamedSetting) else part for part in parts)


def _from_parts(parts: Sequence[Any]) -> Message:
    return Message(*(part if isinstance(part, str) else NamedSetting(*part) for part in parts))


def setting(name: str, value: object = None) -> str:
    """Name a setting in a text of an error, a `Message`; it is spelled when the error is shown.

    Args:
        name: as in Python, `valid_data`.
        value: a value to give it.
    """
    return Message(NamedSetting(name, None if value is None else str(value)))


def joined(separator: str, texts: Sequence[str]) -> str:
    """Join texts; the settings that they name can be spelled.

    Example:
        >>> spelled(joined(" and ", [setting("source"), setting("target")]), on_command_line)
        '--source and --target'
    """
    return reduce(lambda before, text: before + separator + text, texts) if texts else ""


def spelled(text: str, spell: Spelling) -> str:
    """Return a text with the settings that it names spelled by a function.

    Example:
        >>> spelled("or " + setting("score", "dot"), lambda name, value: f"--{name} {value}")
        'or --score dot'
    """
    return _spelled(_parts(text), spell)


def in_python(name: str, value: str | None) -> str:
    """Spell a setting as Python writes it.

    Example:
        >>> in_python("valid_data", None), in_python("score", "dot"), in_python("beam", "5")
        ('valid_data', 'score="dot"', 'beam=5')
    """
    if value is None:
        return name
    plain = value.replace(".", "", 1).isdigit() or value in ("True", "False", "None")
    return f"{name}={value}" if plain else f'{name}="{value}"'


def on_command_line(name: str, value: str | None = None) -> str:
    """Spell a setting as a flag.

    Example:
        >>> on_command_line("valid_data"), on_command_line("score", "dot")
        ('--valid-data', '--score dot')
    """
    return " ".join(("--" + name.replace("_", "-"), *([] if value is None else [value])))


_MOST, _LONGEST = 30, 60
"""Names, and characters of a name, that a message lists."""
_READABLE = 2000
"""Characters of each part of a message."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Suggest the valid name closest to an unknown one.

    Args:
        name: the unknown name.
        valid: the valid names.

    Returns:
        A sentence with the closest valid name, or with all of them if none is close: at most 30, and of each at most 60
        characters.

    Example:
        >>> nearest("adam", ["adamw", "sgd"])
        'Did you mean "adamw"?'
        >>> nearest("x", ["adamw", "sgd"])
        'Valid: adamw, sgd.'
    """
    names = list(valid)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f'Did you mean "{brief(close[0])}"?'
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"Valid: {', '.join(map(brief, names[:_MOST]))}{more}."


def expect_name(argument: str, name: object, valid: Collection[_Name], expected: str | None = None) -> _Name:
    """Return a name if it is among the valid ones.

    Args:
        argument: what it is the value of, for the message.
        name: the name, as given.
        valid: the valid names.
        expected: a description of them; None to list them.

    Raises:
        ConfigError: it is not; the message suggests the valid name closest to it.

    Example:
        >>> expect_name("mean", "arithmetic", ("arithmetic", "geometric"))
        'arithmetic'
        >>> expect_name("mean", "geometrical", ("arithmetic", "geometric"))
        Traceback (most recent call last):
        qkv.errors.ConfigError: mean: expected "arithmetic" or "geometric"; got "geometrical". Did you mean "geometric"?
    """
    for candidate in valid:
        if candidate == name:
            return candidate
    got = f'"{brief(name)}"' if isinstance(name, str) else brief(repr(name))
    raise ConfigError(argument, expected or _choice(valid), got, nearest(str(name), valid))


def _choice(names: Collection[str]) -> str:
    if len(names) > 3:
        return f"one of {', '.join(names)}"
    *others, last = (f'"{name}"' for name in names)
    return f"{', '.join(others)} or {last}"


def value_named(value: object, package: str, names: Iterable[str]) -> str | None:
    """Return what to write in place of a string that names a value.

    Args:
        value: what was given in place of a value.
        package: where the values are.
        names: of its classes.

    Returns:
        A sentence, or None if the string names none of them.

    Example:
        >>> value_named("scaled-dot", "qkv.scores", ["Dot", "ScaledDot"])
        'Pass a value of the class qkv.scores.ScaledDot.'
    """
    plain = str(value).replace("_", "").replace("-", "").lower()
    exact = next((name for name in names if isinstance(value, str) and name.lower() == plain), None)
    return None if exact is None else f"Pass a value of the class {package}.{exact}."


def quantity(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1.

    Example:
        >>> quantity(1, "training pair"), quantity(1200, "token")
        ('1 training pair', '1,200 tokens')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def brief(name: str) -> str:
    """Shorten a name from a file for a message.

    Example:
        >>> brief("rent"), len(brief("x" * 1000))
        ('rent', 60)
    """
    name = _on_one_line(name)
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _clipped(text: str) -> str:
    """Leave out the middle of a text that is too long to be read, such as a value of a settings file."""
    return text if len(text) <= _READABLE else f"{text[: _READABLE // 2]} … {text[-_READABLE // 2 :]}"


def _on_one_line(name: str) -> str:
    # A name with a line feed could pass for a second message.
    return name.replace("\n", "\\n")
