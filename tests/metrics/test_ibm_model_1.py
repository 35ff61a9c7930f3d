"""IBM Model 1 against its equations written with dictionaries, and on languages whose links are known."""

from collections import defaultdict
from random import Random

import numpy as np
import pytest

from qkv.metrics.ibm_model_1 import ROUNDS, ExpectedLinks, SentencePair, link_probabilities


def sentences(random: Random, count: int) -> list[SentencePair]:
    return [
        (random.choices("abcd", k=random.randint(1, 5)), random.choices("wxyz", k=random.randint(1, 5)))
        for _ in range(count)
    ]


def by_dictionaries(pairs: list[SentencePair]) -> list[np.ndarray]:
    """Brown et al. 1993, equations 16 to 18, word by word."""
    t: dict[tuple[str, str], float] = defaultdict(lambda: 1.0)
    for _ in range(ROUNDS):
        links, counts, totals = [], defaultdict[tuple[str, str], float](float), defaultdict[str, float](float)
        for source, target in pairs:
            table = np.array([[t[e, f] for f in source] for e in target])
            table /= table.sum(1, keepdims=True)
            links.append(table)
            for e, row in zip(target, table, strict=True):
                for f, share in zip(source, row, strict=True):
                    counts[e, f] += share
                    totals[f] += share
        t = defaultdict(float, {(e, f): count / totals[f] for (e, f), count in counts.items()})
    return links


@pytest.mark.parametrize("seed", range(5))
def test_arrays_give_what_the_equations_give(seed: int) -> None:
    pairs = sentences(Random(seed), 12)
    for ours, theirs in zip(link_probabilities(pairs), by_dictionaries(pairs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_right_links_agree_more_than_any_that_are_one_word_late(seed: int) -> None:
    """Whatever the order of the target: words of a dictionary, and sentences in which some of them repeat."""
    random, pairs, links = Random(seed), list[SentencePair](), list[set[tuple[int, int]]]()
    for _ in range(40):
        source = random.choices("abcdefghij", k=random.randint(2, 7))
        order = random.sample(range(len(source)), len(source))
        pairs.append((source, [source[place].upper() for place in order]))
        links.append({(s, t) for t, s in enumerate(order)})
    late = [{(s, (t + 1) % len(linked)) for s, t in linked} for linked in links]
    expected = ExpectedLinks(pairs)
    assert expected.agreement(links) > 0.6
    assert expected.agreement(late) < 0.4


def test_no_links_agree_with_nothing() -> None:
    assert ExpectedLinks([]).agreement([]) == 0
    assert ExpectedLinks([(["a"], ["b"])]).agreement([set()]) == 0
