"""The files that the pages name, with enough lines to learn from in seconds, and what a right answer is."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, product
from pathlib import Path
from random import Random

_SUBJECTS = {"Ein Hund": "A dog", "Eine Katze": "A cat", "Ein Kind": "A child", "Eine Frau": "A woman"}
_VERBS = {"läuft": "runs", "springt": "jumps", "geht": "walks", "tanzt": "dances"}
_PLACES = {
    "": "",
    " über eine Wiese": " across a meadow",
    " über die Wiese": " across the meadow",
    " durch einen Wald": " through a forest",
}
SENTENCES = {
    f"{subject} {verb}{place}.": f"{_SUBJECTS[subject]} {_VERBS[verb]}{_PLACES[place]}."
    for subject, verb, place in product(_SUBJECTS, _VERBS, _PLACES)
}
_SOUNDS = {"m": "m", "ai": "ɛ", "s": "z", "on": "ɔ̃", "ch": "ʃ", "at": "a"}
_SPELLINGS = [
    ("m", "ai", "s", "on"),
    ("ch", "at"),
    *(tuple(Random(seed).choices(list(_SOUNDS), k=2 + seed % 3)) for seed in range(150)),
]
_SYLLABLES = {"".join(spelling): spelling for spelling in _SPELLINGS}
PHONES = {word: " ".join(_SOUNDS[part] for part in parts) for word, parts in _SYLLABLES.items()}
_STEMS = sorted({"walk", "look", *("".join(Random(seed).choices("walkop", k=3 + seed % 2)) for seed in range(60))})
_ENDINGS = {"V;PST": "ed", "V;PTCP;PRS": "ing"}
FORMS = {f"{stem}\t{features}": stem + ending for stem in _STEMS for features, ending in _ENDINGS.items()}
TRANSLATIONS: Mapping[str, str] = {**SENTENCES, **PHONES, **FORMS}
"""Of every source that a page translates."""

_PLAYS = ("KING: who goes there?\n", "GHOST: it is I, the night.\n")
PLAY = "".join(_PLAYS) * 150
LABELS = {"stirring": "good", "funny": "good", "warm": "good", "dull": "bad", "slow": "bad", "stale": "bad"}
_FIRST, _CITIES = ("Ada", "Anna", "Max", "Lea"), ("Berlin", "Paris", "Rome")
TAGS = {**dict.fromkeys(_FIRST, "B-PER"), **dict.fromkeys(_CITIES, "B-LOC")}
_TAGGED = (
    *(f"{name} wrote the first {thing}" for name in _FIRST for thing in ("program", "letter")),
    *(f"{name} lives in {city}" for name in _FIRST for city in _CITIES),
)


def _films() -> str:
    random, lines = Random(0), []
    for label in ("good", "bad") * 60:
        one, two = random.sample([word for word in LABELS if LABELS[word] == label], 2)
        lines.append(f"{label}\ta {one} , {two} film\n")
    return "".join(lines)


def order(elements: Sequence[str]) -> list[int]:
    """Return the positions of numbers in increasing order, from 1."""
    return [1 + index for index in sorted(range(len(elements)), key=lambda index: float(elements[index]))]


def _sort() -> str:
    random, lines = Random(0), []
    for _ in range(400):
        numbers = [str(number) for number in random.sample(range(1, 100), 3)]
        lines.append(f"{' '.join(numbers)}\t{' '.join(map(str, order(numbers)))}\n")
    return "".join(lines)


def rent(area: float, age: float | None = None) -> float:
    """Return what `examples/rents.py` adds its noise to; without an age, the mean over all of 0 to 80 years."""
    of_age = -3 * 40 + 0.05 * (40**2 + 80**2 / 12) if age is None else -3 * age + 0.05 * age**2
    return 250 + 9 * area - 0.02 * area**2 + of_age


def _rents() -> str:
    random, lines = Random(0), ["area,rent\n"]
    for _ in range(200):
        area = random.uniform(20, 140)
        lines.append(f"{area:.1f},{rent(area) + random.gauss(0, 20):.0f}\n")
    return "".join(lines)


def _columns(pairs: Mapping[str, str]) -> str:
    return "".join(f"{source}\t{target}\n" for source, target in pairs.items())


def sources_of(file: str) -> list[list[range]]:
    """Return which source words each target word of each line of a file comes from, those of endings left out."""
    match file:
        case "words.tsv":
            return [_of_syllables(syllables) for syllables in _SYLLABLES.values()]
        case "verbs.tsv":
            stems = [source.partition("\t") for source in FORMS]
            return [
                [range(at, at + 1) for at in range(n, n + len(stem))]
                for stem, _, features in stems
                for n in [features.count(";") + 1]
            ]
    return [[range(at, at + 1) for at, _ in enumerate(line.split())] for line in SENTENCES]


def _of_syllables(syllables: Sequence[str]) -> list[range]:
    ends = list(accumulate(map(len, syllables)))
    return [range(end - len(part), end) for part, end in zip(syllables, ends, strict=True)]


def write_files(folder: Path) -> None:
    """Write the files that the pages name, except those that their own commands make."""
    texts = {
        **{f"{name}.de": "".join(f"{line}\n" for line in SENTENCES) for name in ("train", "test")},
        **{f"{name}.en": "".join(f"{line}\n" for line in SENTENCES.values()) for name in ("train", "test")},
        "pairs.tsv": _columns(SENTENCES),
        "test.tsv": _columns(SENTENCES),
        "words.tsv": _columns(PHONES),
        "others.tsv": _columns(PHONES),
        "verbs.tsv": "".join(
            "\t".join((source.split("\t")[0], form, source.split("\t")[1])) + "\n" for source, form in FORMS.items()
        ),
        **dict.fromkeys(("plays.txt", "play.txt"), PLAY),
        "war_and_peace.txt": PLAY,
        "films.tsv": _films(),
        "names.conll": "".join(
            "".join(f"{word} {TAGS.get(word, 'O')}\n" for word in sentence.split()) + "\n" for sentence in _TAGGED * 4
        ),
        "sort.tsv": _sort(),
        "rents.csv": _rents(),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
