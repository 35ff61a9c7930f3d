"""German sentences with their English translations, from a small grammar: "Der alte Mann hat einen Hund gesehen ." and
"The old man has seen a dog ."

About 500 words, and what makes the pair of languages interesting for attention: articles and adjectives that agree with
gender, number and case, so that one English word belongs to many German ones; the verb in second position, so that the
subject follows it after an adverb; and verbs at the end (of the perfect, after a modal, in a subordinate clause), which
English writes early.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeVar, cast

from qkv.data.corpus import Pair
from qkv.errors import ConfigError

T = TypeVar("T")
Gender = Literal["m", "f", "n"]
Case = Literal["nominative", "accusative", "dative"]

_PEOPLE = """
Mann m Männer man men; Frau f Frauen woman women; Kind n Kinder child children; Mädchen n Mädchen girl girls
Vater m Väter father fathers; Mutter f Mütter mother mothers; Bruder m Brüder brother brothers
Schwester f Schwestern sister sisters; Lehrer m Lehrer teacher teachers; Ärztin f Ärztinnen doctor doctors
Freundin f Freundinnen friend friends; König m Könige king kings; Bäcker m Bäcker baker bakers
Tochter f Töchter daughter daughters; Sohn m Söhne son sons; Dichterin f Dichterinnen poet poets
"""
_ANIMALS = """
Hund m Hunde dog dogs; Katze f Katzen cat cats; Pferd n Pferde horse horses; Vogel m Vögel bird birds
Kuh f Kühe cow cows; Schaf n Schafe sheep sheep; Fisch m Fische fish fish; Ziege f Ziegen goat goats
"""
_THINGS = """
Apfel m Äpfel apple apples; Buch n Bücher book books; Brief m Briefe letter letters; Lampe f Lampen lamp lamps
Ball m Bälle ball balls; Brot n Brote loaf loaves; Blume f Blumen flower flowers; Stuhl m Stühle chair chairs
Bild n Bilder picture pictures; Tasche f Taschen bag bags; Schlüssel m Schlüssel key keys; Uhr f Uhren clock clocks
Glas n Gläser glass glasses; Hut m Hüte hat hats; Kleid n Kleider dress dresses; Birne f Birnen pear pears
"""
_LOCATIONS = """
in Garten m garden; in Haus n house; in Küche f kitchen; in Schule f school; in Wald m forest; auf Brücke f bridge
auf Feld n field; auf Markt m market; vor Kirche f church; vor Tür f door; an Fluss m river; an Fenster n window
"""
_PREPOSITIONS = {"in": "in", "auf": "on", "vor": "in front of", "an": "at"}
_TRANSITIVE = """
sieht sehen gesehen sees see seen *; sucht suchen gesucht seeks seek sought *; findet finden gefunden finds find found *
kauft kaufen gekauft buys buy bought thing; trägt tragen getragen carries carry carried thing
liebt lieben geliebt loves love loved alive; hört hören gehört hears hear heard alive
fragt fragen gefragt asks ask asked alive; malt malen gemalt paints paint painted *
vergisst vergessen vergessen forgets forget forgotten *; holt holen geholt brings bring brought *
verkauft verkaufen verkauft sells sell sold thing
"""
_INTRANSITIVE = """
schläft schlafen geschlafen sleeps sleep slept; lacht lachen gelacht laughs laugh laughed
singt singen gesungen sings sing sung; wartet warten gewartet waits wait waited
arbeitet arbeiten gearbeitet works work worked; spielt spielen gespielt plays play played
weint weinen geweint cries cry cried; träumt träumen geträumt dreams dream dreamed
"""
_ADJECTIVES = """
alt old; jung young; klein small; groß big; rot red; blau blue; grün green; weiß white; schön beautiful; neu new
schwarz black; arm poor; reich rich; müde tired; klug clever; laut loud; still quiet; freundlich kind
"""
_ADVERBS = """
heute today; jetzt now; oft often; hier here; manchmal sometimes; abends in the evening; morgens in the morning
dort there; plötzlich suddenly; leise quietly
"""
_MODALS = "will wollen wants want; kann können can can; soll sollen should should; muss müssen must must"
_CLAUSES = "ich glaube I think; wir wissen we know; sie sagt she says; er hofft he hopes; du siehst you see"
_NUMBERS = "zwei two; drei three; vier four; fünf five; viele many"

_DEFINITE: dict[Case, dict[Gender, str]] = {
    "nominative": {"m": "der", "f": "die", "n": "das"},
    "accusative": {"m": "den", "f": "die", "n": "das"},
    "dative": {"m": "dem", "f": "der", "n": "dem"},
}
_ENDINGS: dict[Case, dict[Gender, str]] = {
    "nominative": {"m": "", "f": "e", "n": ""},
    "accusative": {"m": "en", "f": "e", "n": ""},
    "dative": {"m": "em", "f": "er", "n": "em"},
}
"""Of ein and mein."""


def _table(text: str) -> list[list[str]]:
    return [entry.split() for line in text.strip().splitlines() for entry in line.split(";") if entry.strip()]


@dataclass(frozen=True, slots=True)
class _Phrase:
    """A noun phrase in both languages."""

    german: str
    english: str
    plural: bool = False


def generate(count: int, seed: int) -> list[Pair]:
    """Generate sentences.

    Args:
        count: number of pairs; all German sentences are different.
        seed: random seed; the same seed always gives the same pairs.

    Returns:
        Pairs of a German sentence and its English translation, words and marks apart by spaces, numbered from 1.

    Raises:
        ConfigError: more than a million pairs are requested.

    Example:
        >>> for pair in generate(3, seed=4):
        ...     print(pair.source, "->", pair.target)
        Die Pferde vergessen die Mutter . -> The horses forget the mother .
        Ein Pferd will in dem Wald träumen . -> A horse wants to dream in the forest .
        Meine Ziege liebt eine schwarze Schwester in der Schule . -> My goat loves a black sister in the school .
    """
    if not 0 <= count <= 10**6:
        raise ConfigError("count", "from 0 to 1,000,000", f"{count:,}", "Generate fewer.")
    grammar, pairs = _Grammar(Random(f"phrases:{seed}")), dict[str, str]()
    while len(pairs) < count:
        german, english = grammar.sentence()
        pairs.setdefault(german, english)
    return [Pair(german, english, line) for line, (german, english) in enumerate(pairs.items(), start=1)]


def verbs() -> frozenset[str]:
    """Return every German form of a verb that can stand in a sentence of the grammar, without participles.

    Example:
        >>> {"schläft", "schlafen"} <= verbs(), "geschlafen" in verbs()
        (True, False)
    """
    return frozenset(form for verb in (*_table(_TRANSITIVE), *_table(_INTRANSITIVE)) for form in verb[:2]) | {
        "hat",
        "haben",
    }


class _Grammar:
    """Draws sentences; every choice is `_one`, which depends on nothing but the seed."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.people, self.animals, self.things = _table(_PEOPLE), _table(_ANIMALS), _table(_THINGS)
        self.locations, self.adverbs = _table(_LOCATIONS), _table(_ADVERBS)
        self.transitive, self.intransitive = _table(_TRANSITIVE), _table(_INTRANSITIVE)
        self.adjectives, self.numbers = _table(_ADJECTIVES), _table(_NUMBERS)
        self.modals, self.clauses = _table(_MODALS), _table(_CLAUSES)

    def sentence(self) -> tuple[str, str]:
        """Draw one sentence and its translation."""
        shape = self._one(["main", "main", "front", "perfect", "perfect", "modal", "modal", "clause"])
        subject = self._noun(self._one([self.people, self.people, self.animals]), "nominative")
        verb, german_rest, english_rest = self._predicate()
        third, infinitive, participle, english_third, english_base, english_participle = verb[:6]
        finite = infinitive if subject.plural else third
        english_finite = english_base if subject.plural else english_third
        match shape:
            case "front":
                adverb, *english_adverb = self._one(self.adverbs)
                german = [adverb, finite, subject.german, german_rest]
                english = [" ".join(english_adverb), subject.english, english_finite, english_rest]
            case "perfect":
                german = [subject.german, "haben" if subject.plural else "hat", german_rest, participle]
                english = [subject.english, "have" if subject.plural else "has", english_participle, english_rest]
            case "modal":
                one, many, english_one, english_many = self._one(self.modals)
                helper = english_many if subject.plural else english_one
                to = "to" if one == "will" else ""
                german = [subject.german, many if subject.plural else one, german_rest, infinitive]
                english = [subject.english, helper, to, english_base, english_rest]
            case "clause":
                who, german_verb, english_who, english_verb = self._one(self.clauses)
                german = [who, german_verb, ", dass", subject.german, german_rest, finite]
                english = [english_who, english_verb, "that", subject.english, english_finite, english_rest]
            case _:
                german = [subject.german, finite, german_rest]
                english = [subject.english, english_finite, english_rest]
        return _written(german), _written(english)

    def _predicate(self) -> tuple[list[str], str, str]:
        """Draw a verb, and its object or place in both languages."""
        if self.random.random() < 0.35:
            location = self._location()
            return self._one(self.intransitive), *location
        verb = self._one(self.transitive)
        alive = [*self.people, *self.animals]
        nouns = {"*": [*alive, *self.things], "thing": self.things, "alive": alive}[verb[6]]
        target = self._noun(nouns, "accusative")
        if self.random.random() < 0.2:
            german, english = self._location()
            return verb, f"{target.german} {german}", f"{target.english} {english}"
        return verb, target.german, target.english

    def _location(self) -> tuple[str, str]:
        preposition, noun, gender, english = self._one(self.locations)
        article = _DEFINITE["dative"][cast("Gender", gender)]
        adjective, english_adjective = self._adjective("en", 0.2)
        german = f"{preposition} {article} {adjective} {noun}"
        return german, f"{_PREPOSITIONS[preposition]} the {english_adjective} {english}"

    def _noun(self, nouns: list[list[str]], case: Case) -> _Phrase:
        """Draw a phrase with one of the nouns: articles, possessives and numbers, with or without an adjective."""
        noun, drawn, many, english_one, english_many = self._one(nouns)
        gender = cast("Gender", drawn)
        kind = self._one(["definite", "definite", "definite", "indefinite", "indefinite", "mine", "many", "number"])
        if kind == "many":
            adjective, english = self._adjective("en")
            return _Phrase(f"die {adjective} {many}", f"the {english} {english_many}", plural=True)
        if kind == "number":
            number, english_number = self._one(self.numbers)
            adjective, english = self._adjective("e")
            return _Phrase(f"{number} {adjective} {many}", f"{english_number} {english} {english_many}", plural=True)
        masculine_accusative = case == "accusative" and gender == "m"
        if kind == "definite":
            adjective, english = self._adjective("en" if masculine_accusative else "e")
            return _Phrase(f"{_DEFINITE[case][gender]} {adjective} {noun}", f"the {english} {english_one}")
        strong = "en" if masculine_accusative else {"m": "er", "f": "e", "n": "es"}[gender]
        adjective, english = self._adjective(strong)
        stem = "ein" if kind == "indefinite" else "mein"
        article = "my" if kind == "mine" else "an" if (english or english_one)[0] in "aeiou" else "a"
        return _Phrase(f"{stem}{_ENDINGS[case][gender]} {adjective} {noun}", f"{article} {english} {english_one}")

    def _adjective(self, ending: str, often: float = 0.4) -> tuple[str, str]:
        if self.random.random() >= often:
            return "", ""
        german, english = self._one(self.adjectives)
        return (german.removesuffix("e") if german.endswith("e") else german) + ending, english

    def _one(self, items: Sequence[T]) -> T:
        return items[int(self.random.random() * len(items))]


def _written(parts: list[str]) -> str:
    words = " ".join(" ".join(parts).split())
    return f"{words[0].upper()}{words[1:]} ."
