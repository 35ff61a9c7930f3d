"""Combining alignment links of two directions: intersection, union, and growing from one to the other."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from qkv.errors import expect_name, setting
from qkv.metrics.alignment import Link

_NEIGHBORS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def intersection(forward: set[Link], backward: set[Link]) -> set[Link]:
    """Return the links found in both directions.

    Example:
        >>> sorted(intersection({(0, 0), (1, 1)}, {(0, 0)}))
        [(0, 0)]
    """
    return forward & backward


def union(forward: set[Link], backward: set[Link]) -> set[Link]:
    """Return the links found in either direction.

    Example:
        >>> sorted(union({(0, 0), (1, 1)}, {(0, 0)}))
        [(0, 0), (1, 1)]
    """
    return forward | backward


def grow_diagonal(forward: set[Link], backward: set[Link]) -> set[Link]:
    """Start from the intersection, and repeatedly add neighboring links of the union.

    A link is added if its source or its target word has none yet.

    Source: Koehn et al. 2003, "Statistical Phrase-Based Translation", section 4 (in the order of its later
        publication as `grow-diag`).

    Example:
        >>> sorted(grow_diagonal({(0, 0), (1, 1)}, {(0, 0), (0, 1), (5, 5)}))
        [(0, 0), (0, 1), (1, 1)]
    """
    both, either = set(forward & backward), forward | backward
    sources, targets = {i for i, _ in both}, {j for _, j in both}
    grown = True
    while grown:
        grown = False
        for i, j in sorted(either):
            for di, dj in _NEIGHBORS if (i, j) in both else ():  # links that were just added grow in the same pass
                link = (i + di, j + dj)
                if link in either and link not in both and (link[0] not in sources or link[1] not in targets):
                    both.add(link)
                    sources.add(link[0])
                    targets.add(link[1])
                    grown = True
    return both


def grow_diagonal_final(forward: set[Link], backward: set[Link]) -> set[Link]:
    """Grow diagonally, then add every link of either direction whose source and target word both have none.

    Source: Koehn et al. 2003; `grow-diag-final-and`.

    Example:
        >>> sorted(grow_diagonal_final({(0, 0)}, {(0, 0), (5, 5), (5, 6)}))
        [(0, 0), (5, 5)]
    """
    links = grow_diagonal(forward, backward)
    sources, targets = {i for i, _ in links}, {j for _, j in links}
    for direction in (forward, backward):
        for i, j in sorted(direction):
            if i not in sources and j not in targets:
                links.add((i, j))
                sources.add(i)
                targets.add(j)
    return links


SYMMETRIZATIONS: Mapping[str, Callable[[set[Link], set[Link]], set[Link]]] = MappingProxyType(
    {
        "intersection": intersection,
        "union": union,
        "grow-diagonal": grow_diagonal,
        "grow-diagonal-final": grow_diagonal_final,
    }
)


def symmetrize(how: str, forward: Iterable[Link], backward: Iterable[Link]) -> set[Link]:
    """Combine two sets of links.

    Args:
        how: "intersection", "union", "grow-diagonal" or "grow-diagonal-final".
        forward: pairs of source and target word.
        backward: likewise, from a model of the other direction; also source word first.

    Returns:
        The links.

    Raises:
        ConfigError: the name is unknown.

    Example:
        >>> sorted(symmetrize("union", [(0, 0)], [(1, 0)]))
        [(0, 0), (1, 0)]
    """
    expect_name(setting("symmetrize"), how, SYMMETRIZATIONS, "the name of a combination")
    return SYMMETRIZATIONS[how](set(forward), set(backward))
