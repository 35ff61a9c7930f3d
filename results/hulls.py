"""Convex hulls of points: the correct hull, and how much of it a polygon covers."""

from collections.abc import Sequence

Point = tuple[float, float]


def hull(points: Sequence[Point]) -> list[int]:
    """Return the corners of the convex hull, counter-clockwise, starting at the corner that comes first among the
    points.

    Args:
        points: three or more distinct points, not all on one line.

    Returns:
        Indices of the corners, from 0.

    Source: Andrew 1979, "Another efficient algorithm for convex hulls in two dimensions"; the order: Vinyals et al.
        2015, section 3.1.

    Example:
        >>> hull([(0.5, 0.5), (1.0, 1.0), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0)])
        [1, 3, 2, 4]
    """
    order = sorted(range(len(points)), key=points.__getitem__)
    corners = [*_chain(points, order)[:-1], *_chain(points, order[::-1])[:-1]]
    return from_first(corners)


def _chain(points: Sequence[Point], order: Sequence[int]) -> list[int]:
    """Return the lower half of the hull, from left to right; the upper half for reversed order."""
    chain: list[int] = []
    for place in order:
        while len(chain) > 1 and _turn(points[chain[-2]], points[chain[-1]], points[place]) <= 0:
            chain.pop()
        chain.append(place)
    return chain


def _turn(a: Point, b: Point, c: Point) -> float:
    """Return a positive number if the path from a over b to c turns left."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def from_first(corners: Sequence[int]) -> list[int]:
    """Rotate a cycle to start at its smallest index.

    Example:
        >>> from_first([4, 1, 3])
        [1, 3, 4]
    """
    start = corners.index(min(corners)) if corners else 0
    return [*corners[start:], *corners[:start]]


def area(points: Sequence[Point], corners: Sequence[int]) -> float:
    """Return the signed area of a polygon, negative if it is clockwise.

    Example:
        >>> area([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)], [0, 1, 2])
        0.5
    """
    vertices = [points[place] for place in corners]
    return sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(vertices, [*vertices[1:], *vertices[:1]], strict=True)) / 2


def simple(points: Sequence[Point], corners: Sequence[int]) -> bool:
    """Return whether a polygon has at least three corners and no two of its sides cross.

    Example:
        >>> square = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
        >>> simple(square, [0, 1, 2, 3]), simple(square, [0, 2, 1, 3])
        (True, False)
    """
    count = len(corners)
    sides = [(points[corners[i]], points[corners[(i + 1) % count]]) for i in range(count)]
    not_adjacent = [(i, j) for i in range(count) for j in range(i + 2, count) if (i, j) != (0, count - 1)]
    return count > 2 and not any(_cross(sides[i], sides[j]) for i, j in not_adjacent)


def _cross(one: tuple[Point, Point], two: tuple[Point, Point]) -> bool:
    return _turn(*one, two[0]) * _turn(*one, two[1]) < 0 and _turn(*two, one[0]) * _turn(*two, one[1]) < 0
