"""The parameters of a request: parsing and checking text from outside."""

from collections.abc import Mapping, Sequence
from typing import Any, final

from qkv.errors import ConfigError, nearest


@final
class RequestParameters:
    """The parameters of one request.

    Args:
        given: parameters by name, as text.
        known: the names that the request accepts.
        body: the parsed JSON body; None if there is none.

    Raises:
        ConfigError: a name is unknown.
    """

    def __init__(self, parameters: Mapping[str, str], known: Sequence[str], body: Any = None) -> None:
        for name in parameters:
            if name not in known:
                raise ConfigError(_shown(name), "a known parameter", "an unknown one", nearest(name, known))
        self._parameters = parameters
        self.body = body

    def text(self, name: str) -> str:
        """Return a required parameter."""
        if name not in self._parameters:
            raise ConfigError(name, "a parameter", "none", f"Add {name}=… to the request.")
        return self._parameters[name]

    def number(self, name: str, stop: int, start: int = 0) -> int:
        """Parse an integer from `start` up to, but not including, `stop`."""
        text = self.text(name)
        # Eight digits are more than any position needs, and int() of a million digits is slow.
        fits = text.isascii() and text.isdigit() and len(text) <= 8
        if not fits or not start <= int(text) < stop:
            raise ConfigError(name, f"an integer from {start} to {stop - 1}", _shown(text), "Count from 0.")
        return int(text)

    def numbers(self, name: str, stop: int, most: int) -> list[int]:
        """Parse one or several comma-separated integers below `stop`."""
        parts = self.text(name).split(",")
        if len(parts) > most:
            raise ConfigError(name, f"at most {most} of them", str(len(parts)), "Request fewer.")
        return [RequestParameters({name: part}, (name,)).number(name, stop) for part in parts]

    def choice(self, name: str, valid: Sequence[str]) -> str:
        """Parse one of several words."""
        text = self.text(name)
        if text not in valid:
            raise ConfigError(name, " or ".join(valid), _shown(text), nearest(text[:40], valid))
        return text


def _shown(text: str) -> str:
    """Quote the input in a message, shortened and with control characters escaped."""
    return ascii(text[:40]) + ("…" if len(text) > 40 else "")
