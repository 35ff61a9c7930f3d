"""What to say where the memory does not hold an attention."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from qkv.errors import QkvError, RoomError, complaint
from qkv.functional import explain

_FEWER = (
    "take fewer at once: a smaller batch ([training] tokens in --config), a smaller --beam, "
    "or shorter texts (--longest, --context)."
)


def no_room(said: str, tensors: tuple[Tensor, Tensor, Tensor], arguments: Mapping[str, Any]) -> RoomError:
    """Say what was asked, what `explain` would choose, and what lowers the need.

    Args:
        said: by whoever had no memory left.
        tensors: query, key and value.
        arguments: the others that `qkv.attention` was given, by name.

    Returns:
        The error, to be raised.
    """
    asked = arguments["backend"]
    try:
        found = explain(*tensors, **{**arguments, "generator": None, "backend": "auto"})
    except QkvError:
        got, mend = f"{said} (backend {asked!r})", f"No backend serves it in linear memory: {_FEWER}"
    else:
        got = f"{said} (backend {asked!r}, {found.problem})"
        mend = f"explain chooses {found.backend}, with {found.bytes:,} bytes beyond inputs and output; {_FEWER}"
        if asked not in ("auto", found.backend):
            mend = f'backend="auto" takes less: {mend}'
    return RoomError(complaint("memory", "room for one attention", got, mend))
