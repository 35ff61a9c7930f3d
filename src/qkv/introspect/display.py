"""The viewer of attention maps. It lies above this package, so it is registered from above."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class MapViewer(Protocol):
    """Shows maps, each given by its query, its key and its other arguments."""

    def show(
        self, inputs: Any, row: int, tokens: Mapping[str, Sequence[str]] | None, port: int, browser: bool, /
    ) -> Any:
        """Open a map, as `AttentionMap.show` does."""

    def notebook(self, inputs: Any, /) -> str:
        """Return a map as HTML for a notebook."""


_viewers: list[Callable[[], MapViewer]] = []


def register_viewer(load: Callable[[], MapViewer]) -> None:
    """Set what shows maps.

    Args:
        load: called when the first map is shown, so that maps alone import no viewer.
    """
    _viewers[:] = [load]


def viewer() -> MapViewer:
    """Return what shows maps."""
    return _viewers[0]()
