"""Settings are fields of frozen dataclasses that carry their help and range; from them everything else follows.

A table of settings is a frozen dataclass whose fields are annotated with an `Option`, or a union of such classes, of
which the values in the table choose one. Flags, their help, settings files, the signature of `qkv.train` and the
reference page are read from these fields; `build` and `check` compare values with them.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, final, get_args, get_origin, get_type_hints

from qkv.errors import ConfigError, joined, nearest, setting
from qkv.files import read_file

T = TypeVar("T")
_LARGEST = 1 << 20
UNKNOWN = "an unknown one"
"""What `build` got if a table does not know a name."""
_EXCERPT = 200
"""How much of a value or a name a message quotes."""
_UNKNOWN_SIZE = 1
"""What stands for a size that data determines, until it is read."""
_MOST = 2**53
"""The largest integer: JSON and float64 hold it exactly."""


@final
@dataclass(frozen=True, eq=False)
class Option:
    """What a setting is besides its type and default; it annotates the field.

    Args:
        help: what it sets, a phrase.
        unit: in what a number counts.
        topic: the part of the help in which its flag stands; "" for that of its table.
        least, most, above, below: bounds of a number, of which the first two are allowed themselves.
        hint: how to fix a value out of range.
        or_else: the default in the help where that of the field is None or depends on other settings: a value, values
            by kind of model, or a phrase.
        derived: of a field that is no setting, because the data determines it: what to do about that.
        instead_of: the setting of the same table that this one replaces.
        flag: its flag without dashes; "" for the name of the field.
        off: the flag that turns off a setting that is true by default; "" for `no-` and the name.
        also: a second name of its flag.
        needed: whether a command that uses the table asks for it, although a settings file may give it.
        writes: the suffixes of the file to write that it names, () for any; None for other settings.

    Example:
        >>> from typing import Annotated
        >>> @dataclass(frozen=True)
        ... class Table:
        ...     steps: Annotated[int, Option("Number of updates", least=1)] = 100
        >>> Table().steps, options_of(Table)["steps"].least
        (100, 1)
    """

    help: str
    unit: str = ""
    topic: str = ""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    hint: str = ""
    or_else: object = None
    derived: str = ""
    instead_of: str = ""
    flag: str = ""
    off: str = ""
    also: str = ""
    needed: bool = False
    writes: tuple[str, ...] | None = None

    @property
    def bounded(self) -> bool:
        """Whether there are bounds."""
        return (self.least, self.most, self.above, self.below) != (None, None, None, None)


_UNEXPLAINED = Option("")


def alternatives_of(table: Any) -> tuple[type, ...]:
    """Return the classes of a table: itself, or those of a union."""
    return get_args(table) or (table,)


@cache
def options_of(table: Any) -> Mapping[str, Option]:
    """Return the options of a table by the names of its settings; of classes that share a name, those of the first."""
    options: dict[str, Option] = {}
    for cls in alternatives_of(table):
        options |= {name: option for name, option in _options_of(cls).items() if name not in options}
    return MappingProxyType({name: option for name, option in options.items() if not option.derived})


@cache
def _options_of(table: type) -> Mapping[str, Option]:
    """Return the options of all fields of a class."""
    hints = get_type_hints(table, include_extras=True)
    return MappingProxyType({table_field.name: _option(hints[table_field.name]) for table_field in fields(table)})


def _option(hint: Any) -> Option:
    more = getattr(hint, "__metadata__", ())
    return next((item for item in more if isinstance(item, Option)), _UNEXPLAINED)


@cache
def hints_of(table: Any) -> Mapping[str, Any]:
    """Return the types of a table's fields."""
    hints: dict[str, Any] = {}
    for cls in alternatives_of(table):
        own = get_type_hints(cls)
        hints |= {name: hints[name] | own[name] if name in hints else own[name] for name in _options_of(cls)}
    return MappingProxyType(hints)


def defaults_of(table: Any) -> dict[str, Any]:
    """Return the defaults of a table's fields; of classes that share a name, those of the first."""
    defaults: dict[str, Any] = {}
    for cls in reversed(alternatives_of(table)):
        defaults |= {part.name: part.default for part in fields(cls) if part.default is not MISSING}
    return defaults


def shown_default(table: Any, name: str) -> object:
    """Return the default of a setting in the help; of classes that differ, one for each kind of model.

    Example:
        >>> from typing import Annotated
        >>> @dataclass(frozen=True)
        ... class Wide:
        ...     model: Literal["wide"] = "wide"
        ...     width: Annotated[int, Option("Width")] = 512
        >>> @dataclass(frozen=True)
        ... class Narrow:
        ...     model: Literal["narrow"] = "narrow"
        ...     width: Annotated[int, Option("Width")] = 8
        >>> shown_default(Wide | Narrow, "width")
        {'wide': 512, 'others': 8}
    """
    shown = []
    for cls in alternatives_of(table):
        if name in (options := _options_of(cls)):
            option, default = options[name], defaults_of(cls).get(name)
            shown.append((cls, default if option.or_else is None else option.or_else))
    (first, default), *others = shown
    kinds = defaults_of(first).get("model")
    if name == "model" or not others or others[0][1] == default:
        return default
    return {kinds: default, "others": others[0][1]}


def help_of(table: Any, name: str, default: object = MISSING) -> str:
    """Describe a setting: what it sets, its choices, its unit, its default.

    Args:
        table: the table.
        name: of the field.
        default: the default where it is not that of the field.

    Example:
        >>> from typing import Annotated
        >>> @dataclass(frozen=True)
        ... class Table:
        ...     layers: Annotated[int | None, Option("Layers", or_else={"transformer": 3, "others": 1})] = None
        ...     cell: Annotated[Literal["gru", "lstm", "rnn"], Option("Cell of the decoder")] = "gru"
        >>> help_of(Table, "layers"), help_of(Table, "cell", "lstm")
        ('Layers (transformer 3, others 1).', 'Cell of the decoder: gru, lstm (default) or rnn.')
    """
    option = options_of(table)[name]
    if default is MISSING:
        default = shown_default(table, name)
    if default is None:
        default = option.or_else
    choices = [choice for choice in choices_of(hints_of(table)[name]) if isinstance(choice, str)]
    if len(choices) > 1:
        marked = [f"{choice} (default)" if choice == default else choice for choice in choices]
        text = f"{option.help}: {', '.join(marked[:-1])} or {marked[-1]}"
        default = None if default in choices else default
    else:
        text = option.help.removesuffix(".")
    if option.needed:
        text += " (required)"
    default_text = "" if default is None or isinstance(default, bool) else show_default(default)
    if option.unit and isinstance(default, int | float):
        default_text += f" {option.unit}"
    return f"{text}{f' ({default_text})' if default_text else ''}."


def range_of(table: Any, name: str) -> str:
    """Describe the range of a setting.

    Example:
        >>> from typing import Annotated
        >>> @dataclass(frozen=True)
        ... class Table:
        ...     dropout: Annotated[float, Option("Dropout", least=0, below=1)] = 0.1
        >>> range_of(Table, "dropout")
        'a finite number from 0 and below 1'
    """
    return _expected(hints_of(table)[name], options_of(table)[name])


def show_default(default: object) -> str:
    """Write a default for people.

    Example:
        >>> show_default({"transformer": 256, "others": 512}), show_default(1e-3), show_default("scaled_dot")
        ('transformer 256, others 512', '0.001', 'scaled-dot')
    """
    if isinstance(default, Mapping):
        return ", ".join(f"{kind} {show_default(number)}" for kind, number in default.items())
    if isinstance(default, tuple):
        return ",".join(map(show_default, default))
    if isinstance(default, str) and default.isidentifier():  # a name, as a command line writes it
        return default.replace("_", "-")
    return '""' if default == "" else f"{default:g}" if isinstance(default, float) else str(default)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a configuration file.

    Args:
        path: the file.

    Returns:
        Its tables.

    Raises:
        ConfigError: it cannot be read, or is not TOML; the message gives file and line.
    """
    import tomllib  # not where commands start

    try:
        data = read_file(path, _LARGEST)
        tables = tomllib.loads(data.decode("utf-8-sig"))
        _expect_brief(tables)
    except OSError as error:
        problem = "a readable file", f"{path}: {error.strerror}", "Check the name."
    except UnicodeDecodeError as error:
        got = f"{path}: byte 0x{data[error.start]:02X} at byte {error.start + 1:,}"
        problem = "TOML in UTF-8", got, "Save it as plain text in UTF-8."
    except ValueError as error:
        problem = "TOML in UTF-8", f"{path}: {str(error)[:_EXCERPT]}", "Correct that line."
    except RecursionError:
        problem = "flat tables of settings", f"{path}: nested too deeply", "Use flat tables."
    else:
        return tables
    raise ConfigError(setting("config"), *problem) from None


def _expect_brief(item: Any) -> None:
    """Check that integers fit 64 bits and names have a sensible length; Python's TOML parser accepts any.

    Raises:
        ValueError: an integer or a name is too long.
    """
    if isinstance(item, int) and not -(2**63) <= item < 2**63:
        raise ValueError("an integer of more than 64 bits")
    for name in item if isinstance(item, dict) else ():
        if len(name) > _EXCERPT:
            raise ValueError(f"a name of {len(name):,} characters")
    for part in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
        _expect_brief(part)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested mappings; the second wins.

    Example:
        >>> merge({"model": {"width": 256, "model": "gru"}}, {"model": {"width": 512}})
        {'model': {'width': 512, 'model': 'gru'}}
    """
    result = dict(below)
    for key, item in above.items():
        old = result.get(key)
        result[key] = merge(old, item) if isinstance(item, Mapping) and isinstance(old, Mapping) else item
    return result


def check_tables(tables: Mapping[str, Any], classes: Mapping[str, Any]) -> None:
    """Check that all names are known tables.

    Args:
        tables: the tables by name.
        classes: the dataclass of each known table, or a union of them.

    Raises:
        ConfigError: a name is unknown (the message names the table whose setting it is, or the closest table), or is
            not a table.

    Example:
        >>> check_tables({"model": {}}, {"model": Option})
    """
    for name, table in tables.items():
        if name not in classes:
            owner = next((table for table, cls in classes.items() if name in options_of(cls)), "")
            hint = f"Write it below [{owner}]." if owner else nearest(name, classes)
            raise ConfigError(name, f"one of the tables {', '.join(classes)}", "an unknown name", hint)
        if not isinstance(table, Mapping):
            got = json.dumps(table, default=str)[:_EXCERPT]
            raise ConfigError(name, "a table of settings", got, f"Write [{name}] and its settings below.")


def build(table: type[T] | UnionType, mapping: Mapping[str, Any], where: str = "") -> T:
    """Build a frozen dataclass from a mapping, checking every name, type and range.

    Args:
        table: the dataclass; or a union, of which the first class is built
            whose names (`Literal`) include all of those given. Names that are not given are those of its first class.
        mapping: names and values.
        where: the name of the table, for errors about names that are none of its settings.

    Returns:
        The settings.

    Raises:
        ConfigError: a name is unknown (the message suggests the closest one), of another class, or missing, or a value
            is of a wrong type or out of range.

    Example:
        >>> @dataclass(frozen=True)
        ... class Model:
        ...     width: int = 256
        >>> build(Model, {"width": 512})
        Model(width=512)
        >>> build(Model, {"widht": 512}, "model")
        Traceback (most recent call last):
        qkv.errors.ConfigError: model.widht: expected a known setting; got an unknown one. Did you mean "width"?
    """
    cls = _chosen(table, mapping)
    hints, options = hints_of(cls), _options_of(cls)
    for name in mapping:
        if name not in options or options[name].derived:
            raise _not_a_setting(table, cls, str(name), mapping, where)
    values = {name: _value(hints[name], options[name], mapping[name], name) for name in mapping}
    for part in fields(cls):
        if part.name not in mapping:
            values[part.name] = _default(part, options[part.name])
    made: T = cls(**values)
    return made


def _chosen(table: Any, mapping: Mapping[str, Any]) -> Any:
    """Return the first class of a table whose names include all of those given."""
    classes = alternatives_of(table)
    if len(classes) == 1:
        return table
    names = {name: hint for name, hint in hints_of(table).items() if _is_name(hint)}
    given = {name: default for name, default in defaults_of(classes[0]).items() if name in names}
    given |= {name: item for name, item in mapping.items() if name in names}
    for name, item in given.items():  # which none of the classes knows
        _value(names[name], options_of(table)[name], item, name)
    misfits = {cls: [name for name, item in given.items() if not _includes(cls, name, item)] for cls in classes}
    # Of values that no class has together, the last that would suit the class that suits most of them is wrong.
    closest = min(reversed(classes), key=lambda cls: len(misfits[cls]))
    if misfits[closest]:
        name, *_ = misfits[closest]
        rivals = {other for others in misfits.values() for other in others if other in mapping} - {name}
        beside = joined(" and ", [setting(other, given[other]) for other in names if other in rivals])
        choices = _choices(closest, name)
        expected = _listed(choices) + (" with " + beside if beside else "")
        raise ConfigError(name, expected, f"{given[name]}", "Use " + setting(name, choices[0]) + ".")
    return next(cls for cls in classes if not misfits[cls])


def _is_name(hint: Any) -> bool:
    return all(isinstance(choice, str) or choice is NoneType for choice in choices_of(hint))


def _includes(cls: type, name: str, item: Any) -> bool:
    hint = hints_of(cls).get(name)
    return hint is None or _fitted(hint, _UNEXPLAINED, item)[0]


def _choices(cls: type, name: str) -> list[str]:
    return [choice for choice in choices_of(hints_of(cls)[name]) if isinstance(choice, str)]


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return joined(", ", most) + " or " + last if most else last


def _not_a_setting(table: Any, cls: type, name: str, mapping: Mapping[str, Any], where: str) -> ConfigError:
    """Return the error about a name that is no setting of a class."""
    known = "a known setting"
    owner = next((other for other in alternatives_of(table) if name in _options_of(other)), None)
    if owner is None:
        return ConfigError(_dotted(where, name), known, UNKNOWN, nearest(name, options_of(table)))
    option = _options_of(owner)[name]
    if option.derived:
        return ConfigError(name, known, "a setting derived from others", option.derived)
    given = {**defaults_of(cls), **mapping}
    names = [part for part, hint in hints_of(owner).items() if part in given and _is_name(hint)]
    misfits = [part for part in names if given[part] is not None and not _includes(owner, part, given[part])]
    others = {part: _choices(owner, part) for part in misfits}
    ways = joined(" and ", [_listed([setting(part, first), *rest]) for part, (first, *rest) in others.items()])
    return ConfigError(name, ways, "a model that has no such setting", option.hint or "Omit it.")


def check(settings: Any, *names: str) -> None:
    """Check the type and range of every field of settings, and convert it; their `__post_init__` calls it.

    Args:
        settings: the settings.
        names: the fields; none for all.

    Raises:
        ConfigError: a value is of a wrong type or out of range.

    Example:
        >>> from typing import Annotated
        >>> @dataclass(frozen=True)
        ... class Table:
        ...     steps: Annotated[int, Option("Number of updates", least=1)] = 100
        >>> check(Table(steps=0))
        Traceback (most recent call last):
        qkv.errors.ConfigError: steps: expected an integer, at least 1; got 0. Give an integer from 1 on, at most ...
    """
    table: Any = type(settings)
    hints, options = hints_of(table), _options_of(table)
    for name in names or options:
        value = _value(hints[name], options[name], getattr(settings, name), name)
        object.__setattr__(settings, name, value)


def _dotted(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _default(setting_field: "Field[Any]", option: Option) -> Any:
    if setting_field.default is not MISSING:
        return setting_field.default
    if setting_field.default_factory is not MISSING:
        return setting_field.default_factory()
    if option.derived:
        return _UNKNOWN_SIZE
    raise ConfigError(setting_field.name, "a value", "none", "It has no default: set it.")


def _value(hint: Any, option: Option, item: Any, name: str) -> Any:
    fits, converted = _fitted(hint, option, item)
    if not fits:
        got = json.dumps(item, default=str)[:_EXCERPT]
        raise ConfigError(name, _expected(hint, option), got, _advice(hint, option, item))
    return converted


def _fitted(hint: Any, option: Option, item: Any) -> tuple[bool, Any]:
    """Return whether a value suits its setting, and what it becomes there."""
    for choice in choices_of(hint):
        fits, converted = _converted(choice, item)
        if fits and _in_range(converted, option):
            return True, converted
    return False, None


def _advice(hint: Any, option: Option, item: Any) -> str:
    """Say how to correct a value that does not suit its setting."""
    choices = choices_of(hint)
    if isinstance(item, str):
        if _fitted(hint, option, _without_quotation_marks(hint, item))[0]:
            return "Write it without quotation marks."
        names = [choice for choice in choices if isinstance(choice, str)]
        advice = nearest(item, names) if names else ""
        if advice.startswith("Did you mean") or (names and not option.hint and not {int, float} & set(choices)):
            return advice
    if isinstance(item, bytes):
        return "Decode it to a text."
    if option.hint:
        return option.hint
    if option.least is not None and int in choices:
        return f"Give an integer from {option.least:g} on, at most {option.most or _MOST:.0f}."
    out_of_bounds = any(_converted(choice, item)[0] for choice in choices)
    return "Choose one within these bounds." if out_of_bounds else "Give a value of that type."


def _without_quotation_marks(hint: Any, text: str) -> Any:
    """Return what a settings file or a program would give if a text were written as a number or a truth value."""
    choices = choices_of(hint)
    if bool in choices and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if int in choices and text.removeprefix("-").isdecimal() and len(text) < len(str(_MOST)):
        return int(text)
    return parse(hint, text)


def _in_range(item: Any, option: Option) -> bool:
    if isinstance(item, tuple):
        return all(_in_range(part, option) for part in item)
    if not option.bounded or isinstance(item, bool) or not isinstance(item, int | float):
        return True
    if isinstance(item, int) and abs(item) > _MOST:
        return False
    low = option.least is None or item >= option.least
    low = low and (option.most is None or item <= option.most)
    return low and (-math.inf if option.above is None else option.above) < item < (option.below or math.inf)


def choices_of(hint: Any) -> list[Any]:
    """Return the alternatives of a type: types, and the strings of a Literal.

    Example:
        >>> choices_of(int | Literal["auto", "all"] | None)
        [<class 'int'>, 'auto', 'all', <class 'NoneType'>]
    """
    if get_origin(hint) in (Union, UnionType, Literal):
        return list(dict.fromkeys(choice for part in get_args(hint) for choice in choices_of(part)))
    return [hint]


def _as_is(item: Any) -> Any:
    return item


_READ: Mapping[type, tuple[Any, Callable[[Any], Any]]] = MappingProxyType(
    {int: (Integral, int), float: (Real, float), Path: (str | PathLike, Path)}
)
"""The values that a type accepts, and what converts them; an annotation such as Iterable[str] accepts any iterable."""


def plain(value: Any) -> Any:
    """Return a value of NumPy, PyTorch or Arrow as one of Python.

    Example:
        >>> import numpy as np
        >>> plain(np.int64(3)), plain("a")
        (3, 'a')
    """
    for method in ("as_py", "tolist"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value


def _rows(item: Any) -> Any:
    """Return the rows of a table of pandas, Polars or Arrow by the names of its columns; anything else as it is."""
    if hasattr(item, "itertuples"):  # pandas
        names = [str(name) for name in item.columns]
        return (dict(zip(names, row, strict=True)) for row in item.itertuples(index=False, name=None))
    if hasattr(item, "iter_rows"):  # Polars
        return item.iter_rows(named=True)
    return item.to_pylist() if hasattr(item, "to_pylist") and hasattr(item, "column_names") else item  # Arrow


def _converted(choice: Any, item: Any) -> tuple[bool, Any]:
    if isinstance(choice, str):
        return isinstance(item, str) and item.lower() == choice.lower(), choice
    if parts := parts_of(choice):
        return _converted_tuple(parts, item)
    kinds, convert = _READ.get(choice, (choice, _as_is)) if isinstance(choice, type) else (Iterable, tuple)
    item = _rows(item) if convert is tuple else item
    good = isinstance(item, kinds) and not (isinstance(item, bool) and choice in (int, float))
    good = good and not (convert is tuple and isinstance(item, str | bytes))
    return good, convert(item) if good else None


def parts_of(choice: Any) -> tuple[Any, ...]:
    """Return the types of the items of a tuple or a sequence, with an ellipsis if it can have any number; () of others.

    Example:
        >>> parts_of(tuple[float, float]), parts_of(Sequence[str]), parts_of(int)
        ((<class 'float'>, <class 'float'>), (<class 'str'>, Ellipsis), ())
    """
    if get_origin(choice) is tuple:
        return get_args(choice)
    return (*get_args(choice), ...) if get_origin(choice) is Sequence else ()


def has_texts(parts: tuple[Any, ...]) -> bool:
    """Return whether these are the types of any number of texts or names, of which one alone needs no list.

    Example:
        >>> has_texts(parts_of(Sequence[Literal["a", "b"]])), has_texts(parts_of(Sequence[float])), has_texts(())
        (True, False, False)
    """
    return parts[1:] == (...,) and all(choice is str or isinstance(choice, str) for choice in choices_of(parts[0]))


def _converted_tuple(parts: tuple[Any, ...], item: Any) -> tuple[bool, Any]:
    if isinstance(item, str) and has_texts(parts):
        item = [item]
    if not isinstance(item, list | tuple):
        return False, None
    kinds = parts[:1] * len(item) if parts[1:] == (...,) else parts
    if len(kinds) != len(item):
        return False, None
    pairs = [_fitted(part, _UNEXPLAINED, one) for part, one in zip(kinds, item, strict=True)]
    return all(fits for fits, _ in pairs), tuple(converted for _, converted in pairs)


def _expected(hint: Any, option: Option) -> str:
    words = {int: "an integer", float: "a number", str: "a text", bool: "true or false", Path: "a path"}
    parts = []
    for choice in choices_of(hint):
        if choice in (int, float):
            parts.append(_number(words[choice], option))
        elif choice in words:
            parts.append(words[choice])
        elif isinstance(choice, str):
            parts.append(json.dumps(choice))
        elif parts_of(choice):
            parts.append(_tuple(parts_of(choice), option))
        elif choice is not NoneType:
            parts.append("an iterable" if get_origin(choice) is not None else str(choice))
    return " or ".join(dict.fromkeys(parts))


def _tuple(parts: tuple[Any, ...], option: Option) -> str:
    if parts[1:] == (...,):
        choices = [choice for choice in choices_of(parts[0]) if isinstance(choice, str)]
        names = f"a list of {_listed(choices)}" if choices else "a list of texts"
        return names if has_texts(parts) else "a list of numbers"
    return f"{len(parts)} of {_number('a number', option)}"


def _number(words: str, option: Option) -> str:
    if not option.bounded:
        return words
    if words == "an integer":
        most = "" if option.most is None else f" and at most {option.most:,.0f}"
        return words if option.least is None else f"{words}, at least {option.least:g}{most}"
    start = f" from {option.least:g}" if option.least is not None else f" above {option.above:g}"
    return f"a finite number{start}{'' if option.below is None else f' and below {option.below:g}'}"


def parse(hint: Any, text: str) -> Any:
    """Return what a flag's text stands for, by the type of its setting; what suits no type stays a text.

    Example:
        >>> parse(float | Literal["learned"] | None, "1.25"), parse(float | Literal["learned"] | None, "learned")
        (1.25, 'learned')
        >>> parse(float | tuple[float, ...] | str, "0.5,20"), parse(tuple[float, float], "0.9,0.98")
        ((0.5, 20.0), (0.9, 0.98))
        >>> parse(int | Literal["auto"], "30"), parse(int | Literal["auto"], "auto")
        (30, 'auto')
        >>> parse(str | int, "30")  # the first type that fits
        '30'
    """
    for choice in choices_of(hint):
        if choice is str:
            return text
        several = parts_of(choice)
        kind = several[0] if several else choice
        parts = text.split(",") if several else [text]
        try:
            parsed = tuple(kind(part) for part in parts) if kind in (int, float) else ()
        except ValueError:
            continue
        if parsed:
            return parsed if several else parsed[0]
    return text


def as_dict(settings: Any) -> dict[str, Any]:
    """Convert settings to a nested dict; None and what data determines is omitted, paths become strings.

    Example:
        >>> @dataclass(frozen=True)
        ... class Data:
        ...     source: Path | None = None
        ...     size: int = 8
        >>> as_dict(Data())
        {'size': 8}
    """
    table: Any = type(settings)
    result, options = dict[str, Any](), _options_of(table)
    for setting_field in fields(settings):
        item = getattr(settings, setting_field.name)
        if options[setting_field.name].derived:
            continue
        if is_dataclass(item) and not isinstance(item, type):
            result[setting_field.name] = as_dict(item)
        elif item is not None:
            result[setting_field.name] = (
                str(item) if isinstance(item, Path) else list(item) if isinstance(item, tuple) else item
            )
    return result


def to_toml(settings: Mapping[str, Any], where: str = "") -> str:
    """Format nested settings as TOML, so that `--print-config > run.toml` can be passed to `--config`.

    Example:
        >>> print(to_toml({"seed": 1, "model": {"model": "gru"}}))
        seed = 1
        <BLANKLINE>
        [model]
        model = "gru"
    """
    # A TOML string cannot contain DEL; a JSON string can.
    lines = [
        f"{key} = {json.dumps(item, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for key, item in settings.items()
        if not isinstance(item, Mapping)
    ]
    for key, item in settings.items():
        if isinstance(item, Mapping):
            name = _dotted(where, key)
            lines += ["", f"[{name}]", to_toml(item, name)]
    return "\n".join(lines).strip("\n")
