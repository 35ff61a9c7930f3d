"""Dates as people write them, and in ISO format: generated pairs like ("Tue, 3rd of May 2011", "2011-05-03").

The formats are English. Every text means exactly one date, by these conventions:

- with slashes, the month comes first: 5/3/11 is the 3rd of May (as in the United States);
- with dots, or with a month in Roman numerals, the day comes first: 3.5.11, 3.V.2011;
- a four-digit year in front is followed by the month: 2011-05-03, 2011/5/3, 20110503;
- two-digit years 00 to 49 are 2000 to 2049, and 50 to 99 are 1950 to 1999, which is the range of all dates here.

If a format includes the day of the week, it is the correct one.
"""

from collections.abc import Sequence
from datetime import date, timedelta
from random import Random
from typing import NamedTuple

from qkv.data.corpus import Pair
from qkv.errors import ConfigError

FIRST = date(1950, 1, 1)
LAST = date(2049, 12, 31)

_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_SHORT_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sept", "Oct", "Nov", "Dec")
_ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_UNITS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
_TEENS = (
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
    "fourteenth",
    "fifteenth",
    "sixteenth",
    "seventeenth",
    "eighteenth",
    "nineteenth",
)
_TWENTIES = ("twentieth", *(f"twenty-{unit}" for unit in _UNITS))
_DAY_WORDS = (*_UNITS, *_TEENS, *_TWENTIES, "thirtieth", "thirty-first")

FORMATS = (
    # only numbers
    "{year}-{month:02}-{day:02}",
    "{year}/{month:02}/{day:02}",
    "{year}/{month}/{day}",
    "{year}.{month:02}.{day:02}",
    "{year} {month:02} {day:02}",
    "{year}{month:02}{day:02}",
    "{month}/{day}/{year}",
    "{month:02}/{day:02}/{year}",
    "{month}/{day}/{short_year}",
    "{month:02}/{day:02}/{short_year}",
    "{day}.{month}.{year}",
    "{day:02}.{month:02}.{year}",
    "{day}.{month}.{short_year}",
    "{day:02}.{month:02}.{short_year}",
    "{day}. {month}. {year}",
    "{weekday} {month}/{day}/{year}",
    "{short_weekday} {day}.{month}.{year}",
    "{short_weekday}, {year}-{month:02}-{day:02}",
    # months in Roman numerals
    "{day}.{roman}.{year}",
    "{day}-{roman}-{year}",
    "{day} {roman} {year}",
    "{day}/{roman}/{short_year}",
    # day first
    "{day} {name} {year}",
    "{day:02} {short_name} {year}",
    "{day} {short_name} {short_year}",
    "{day} {short_name} '{short_year}",
    "{day}. {name} {year}",
    "{day}-{short_name}-{year}",
    "{day:02}-{short_name}-{short_year}",
    "{day:02}{short_name}{year}",
    "{day} {short_name}. {year}",
    "{ordinal} {name} {year}",
    "{ordinal} {short_name} {year}",
    "{ordinal} {short_name} '{short_year}",
    "{ordinal} of {name} {year}",
    "{ordinal} of {name}, {year}",
    "the {ordinal} of {name} {year}",
    "the {ordinal} of {name}, {year}",
    "the {ordinal} of {short_name} {year}",
    "on the {ordinal} of {name}, {year}",
    "the {ordinal} day of {name}, {year}",
    "{weekday}, {day} {name} {year}",
    "{weekday} {day} {name} {year}",
    "{weekday} {ordinal} {name} {year}",
    "{weekday}, {ordinal} of {name} {year}",
    "{weekday}, the {ordinal} of {name}, {year}",
    "{weekday} the {ordinal} of {name} {year}",
    "{short_weekday}, {day} {short_name} {year}",
    "{short_weekday} {day} {short_name} {year}",
    "{short_weekday}, {ordinal} of {name} {year}",
    "{short_weekday}. {day} {short_name}. {year}",
    "{short_weekday} {day:02}-{short_name}-{short_year}",
    # month first
    "{name} {day}, {year}",
    "{name} {day} {year}",
    "{short_name} {day}, {year}",
    "{short_name}. {day}, {year}",
    "{short_name} {day}, '{short_year}",
    "{name} {ordinal}, {year}",
    "{name} {ordinal} {year}",
    "{short_name} {ordinal}, {year}",
    "{name} the {ordinal}, {year}",
    "{short_name}-{day:02}-{year}",
    "{weekday}, {name} {day}, {year}",
    "{weekday}, {name} {ordinal}, {year}",
    "{weekday}, {name} the {ordinal}, {year}",
    "{short_weekday}, {short_name} {day}, {year}",
    "{short_weekday} {short_name} {day} {year}",
    "{short_weekday}, {short_name} {ordinal}, '{short_year}",
    # year first
    "{year} {name} {day}",
    "{year}, {name} {ordinal}",
    "{year} {short_name} {day:02}",
    "{year}-{short_name}-{day:02}",
    # days in words
    "{name} {day_word}, {year}",
    "{name} the {day_word}, {year}",
    "the {day_word} of {name} {year}",
    "the {day_word} of {name}, {year}",
    "{weekday}, the {day_word} of {name} {year}",
    "{day_word} {short_name} {year}",
)
"""Every format, for `str.format` with the parts from `parts`."""

_CASES = (str, str, str, str.lower, str.upper)
"""Variations in spelling: three of five texts follow the format exactly."""


class Splits(NamedTuple):
    """Generated pairs for training, validation and testing, with nothing in common that a model could memorize."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


def generate(count: int, seed: int) -> list[Pair]:
    """Generate dates from the whole range.

    Args:
        count: number of pairs; all texts are different.
        seed: random seed; the same seed always gives the same pairs.

    Returns:
        Pairs of a text and its date as YYYY-MM-DD, numbered from 1.

    Raises:
        ConfigError: more pairs are requested than exist.

    Example:
        >>> for pair in generate(3, seed=1):
        ...     print(pair.source, "->", pair.target)
        1975 02 26 -> 1975-02-26
        3/ix/97 -> 1997-09-03
        monday, january 28th, 2013 -> 2013-01-28
    """
    return _draw(_all_dates(), count, Random(f"dates:{seed}"))


def splits(train: int, validation: int, test: int, seed: int) -> Splits:
    """Generate three sets of pairs such that no date of one, however written, occurs in another.

    A tenth of all dates is reserved for validation and another for testing.

    Args:
        train: number of training pairs.
        validation: number of validation pairs.
        test: number of test pairs.
        seed: random seed of the split and the formats.

    Returns:
        The three sets.

    Raises:
        ConfigError: more pairs are requested than exist.

    Example:
        >>> sets = splits(30, 5, 5, seed=0)
        >>> {pair.target for pair in sets.train} & {pair.target for pair in sets.test}
        set()
    """
    random = Random(f"date splits:{seed}")
    dates = sorted(_all_dates(), key=lambda _: random.random())
    tenth = len(dates) // 10
    return Splits(
        _draw(dates[2 * tenth :], train, random),
        _draw(dates[tenth : 2 * tenth], validation, random),
        _draw(dates[:tenth], test, random),
    )


def write(day: date, form: str) -> str:
    """Format a date.

    Args:
        day: the date.
        form: one of `FORMATS`.

    Returns:
        The text.

    Example:
        >>> write(date(2011, 5, 3), "{short_weekday}, {ordinal} of {name} {year}")
        'Tue, 3rd of May 2011'
    """
    return form.format_map(parts(day))


def parts(day: date) -> dict[str, str | int]:
    """Return all parts of a date that a format can use.

    Args:
        day: the date.

    Returns:
        The parts by name.

    Example:
        >>> parts(date(2011, 5, 3))["ordinal"], parts(date(2011, 5, 3))["day_word"]
        ('3rd', 'third')
    """
    return {
        "year": day.year,
        "short_year": f"{day.year % 100:02}",
        "month": day.month,
        "day": day.day,
        "name": _MONTHS[day.month - 1],
        "short_name": _SHORT_MONTHS[day.month - 1],
        "roman": _ROMAN[day.month - 1],
        "weekday": _DAYS[day.weekday()],
        "short_weekday": _DAYS[day.weekday()][:3],
        "ordinal": f"{day.day}{_suffix(day.day)}",
        "day_word": _DAY_WORDS[day.day - 1],
    }


def _suffix(day: int) -> str:
    return "th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")


def _all_dates() -> list[date]:
    return [FIRST + timedelta(days=offset) for offset in range((LAST - FIRST).days + 1)]


def _draw(dates: Sequence[date], count: int, random: Random) -> list[Pair]:
    limit = len(dates) * len(FORMATS) // 2
    if not 0 <= count <= limit:
        expected = f"a number of pairs from 0 to {limit:,}"
        raise ConfigError("count", expected, f"{count:,}", "Generate fewer.")
    pairs: dict[str, date] = {}
    while len(pairs) < count:
        day = dates[int(random.random() * len(dates))]
        form = FORMATS[int(random.random() * len(FORMATS))]
        spell = _CASES[int(random.random() * len(_CASES))]
        pairs.setdefault(spell(write(day, form)), day)
    return [Pair(text, day.isoformat(), line) for line, (text, day) in enumerate(pairs.items(), start=1)]
