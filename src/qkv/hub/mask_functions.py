"""Translate the mask functions of `transformers` to values of `qkv.masks`: known ones exactly, others by pairs.

A mask function takes the indices of a batch item, a head, a query and a key. `transformers` builds them from a few
primitives, some of which are closures: a closure is recognized by the code it runs and the variables it holds.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from operator import and_, or_
from types import CodeType
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from qkv.hub.lazy_mask import LazyMask
from qkv.masks.base import Dense, Grid, Mask
from qkv.masks.patterns import causal, documents, lengths, span, window

MaskFunction = Callable[..., Any]


class _Unknown(Enum):
    """No translation: the function is evaluated by pairs."""

    FUNCTION = "unknown"


_UNKNOWN = _Unknown.FUNCTION
TranslatedMask = Mask | _Unknown | None
"""A translation; None for a mask that hides nothing."""


class Frame(NamedTuple):
    """The sizes of a mask, and the positions of its first query and first key in the whole sequence."""

    batch: int
    queries: int
    keys: int
    query_offset: int
    key_offset: int
    device: torch.device

    @property
    def shift(self) -> int:
        """The position of the first query minus that of the first key."""
        return self.query_offset - self.key_offset


@final
@dataclass(frozen=True, eq=False)
class Predicate(Mask):
    """A mask function that is not one of the known ones, evaluated on the requested pairs.

    Args:
        function: (item, head, query, key) -> whether the query sees the key.
        frame: the sizes, and the positions it counts from.
        mapped: whether it takes single indices, as a user-defined function may, and not tensors of them.
    """

    function: MaskFunction
    frame: Frame
    mapped: bool = False

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Evaluate the function."""
        items = torch.arange(self.frame.batch, device=rows_Q1.device)
        heads = torch.zeros(1, dtype=torch.long, device=rows_Q1.device)
        rows, columns = rows_Q1[:, 0] + self.frame.query_offset, columns_K + self.frame.key_offset
        if self.mapped:
            visible = _mapped(self.function)(items, heads, rows, columns)
        else:
            visible = self.function(items[:, None, None, None], heads[:, None, None], rows[:, None], columns)
        table: Tensor = visible.to(torch.bool).expand(self.frame.batch, 1, rows.shape[0], columns.shape[0])
        return table


def translate(function: MaskFunction, padding: Tensor | None, frame: Frame, mapped: bool = False) -> Mask | None:
    """Translate a mask function and the padding of a batch.

    Args:
        function: the mask function.
        padding: bool, (B, N), True for real tokens, counted from the start of the sequence; positions beyond it are
            padding; None for no padding.
        frame: the sizes and positions.
        mapped: whether an unknown function takes single indices.

    Returns:
        The mask; None if every query sees every key.

    Example:
        >>> from transformers.masking_utils import sliding_window_causal_mask_function
        >>> frame = Frame(1, 5, 5, 0, 0, torch.device("cpu"))
        >>> translate(sliding_window_causal_mask_function(3), None, frame)
        Both(left=Window(left=2, right=None, offset=0), right=Causal(offset=0, align='start'))
    """
    parts = [] if padding is None else [_padding(padding, frame)]
    # The function comes first, so that padding is the last factor, and a causal mask without padding stays alone.
    return _all([_translate(function, frame, mapped), *parts])


def _all(masks: list[Mask | None]) -> Mask | None:
    """Return the intersection; None stands for a mask that hides nothing."""
    present = [mask for mask in masks if mask is not None]
    return reduce(and_, present) if present else None


def _translate(function: MaskFunction, frame: Frame, mapped: bool) -> Mask | None:
    name = _name(function)
    translator = _TRANSLATIONS.get(name)
    if translator is not None:
        variables = {} if name in _PLAIN else _variables_of(function)
        translation = translator(frame, mapped, variables)
        if not isinstance(translation, _Unknown):
            return translation
    return Predicate(function, frame, mapped)


def _name(function: MaskFunction) -> str:
    from transformers import masking_utils

    for name in _PLAIN:
        if function is getattr(masking_utils, name, None):
            return name
    code = getattr(function, "__code__", None)
    return "" if code is None else _CLOSURES.get(code, "")


def _variables_of(function: MaskFunction) -> dict[str, Any]:
    """Return the variables that a closure holds."""
    return dict(inspect.getclosurevars(function).nonlocals)


_CLOSURES: dict[CodeType, str] = {}
"""The code of the functions that each factory of `transformers` returns, and the factory's name."""


def register_closures() -> None:
    """Find the functions that the factories of `transformers` return, before a forward pass is traced."""
    from transformers import masking_utils

    for name in _TRANSLATIONS:
        factory = getattr(masking_utils, name, None)
        if factory is not None and name not in _PLAIN:
            _CLOSURES.update({code: name for code in factory.__code__.co_consts if isinstance(code, CodeType)})


def _causal(frame: Frame, mapped: bool, variables: dict[str, Any]) -> TranslatedMask:
    # For a single query at the end, as in decoding, nothing is hidden.
    return None if frame.shift + 1 >= frame.keys else causal(frame.shift)


def _bidirectional(frame: Frame, mapped: bool, variables: dict[str, Any]) -> TranslatedMask:
    return None


def _sliding(frame: Frame, mapped: bool, variables: dict[str, Any]) -> TranslatedMask:
    width = int(variables["sliding_window"])
    if width < 1:
        return _UNKNOWN
    # The last query is the farthest from the first key.
    within = frame.shift + frame.queries - 1 < width
    return None if within else window(width - 1, None, offset=frame.shift)


def _sliding_both(frame: Frame, mapped: bool, variables: dict[str, Any]) -> TranslatedMask:
    width = int(variables["sliding_window"])
    return _UNKNOWN if width < 0 else window(width, width, offset=frame.shift)


def _chunks(frame: Frame, mapped: bool, variables: dict[str, Any]) -> TranslatedMask:
    size, padding = variables["chunk_size"], variables["left_padding"]
    padding = padding.to(frame.device)[:, None]
    rows, columns = _positions(frame)
    ids = [torch.div(numbers - padding, size, rounding_mode="floor") for numbers in (rows, columns)]
    return documents(ids[0]) if torch.equal(*ids) else documents(*ids)


def _padding_mask(frame: Frame, mapped: bool, variables: dict[str, Any]) -> TranslatedMask:
    return _padding(variables["padding_mask"], frame)


def _packed(frame: Frame, mapped: bool, variables: dict[str, Any]) -> TranslatedMask:
    ids = variables["packed_sequence_mask"]
    rows, columns = _positions(frame)
    if int(max(rows[-1], columns[-1])) >= ids.shape[-1]:
        return _UNKNOWN
    if torch.equal(rows, columns):
        return documents(ids[:, rows])
    return documents(ids[:, rows], ids[:, columns])


def _offsets(frame: Frame, mapped: bool, variables: dict[str, Any]) -> TranslatedMask:
    queries, keys = frame.query_offset + int(variables["q_offset"]), frame.key_offset + int(variables["kv_offset"])
    return _translate(variables["mask_function"], frame._replace(query_offset=queries, key_offset=keys), mapped)


def _and(frame: Frame, mapped: bool, variables: dict[str, Any]) -> TranslatedMask:
    functions = variables["mask_functions"]
    remapped = _in_documents(functions)
    return _all([_translate(function, frame, mapped) for function in remapped or functions])


def _or(frame: Frame, mapped: bool, variables: dict[str, Any]) -> TranslatedMask:
    masks = [_translate(function, frame, mapped) for function in variables["mask_functions"]]
    present = [mask for mask in masks if mask is not None]
    return reduce(or_, present) if len(present) == len(masks) else None


def _in_documents(functions: tuple[MaskFunction, ...]) -> tuple[MaskFunction, ...] | None:
    """Return the functions of a packed sequence without the map to positions that restart in each document.

    Within a document positions grow by one, so functions of the distance alone need no such positions.
    """
    if [_name(function) for function in functions] != [
        "packed_sequence_mask_function",
        "remap_positions_for_packed_sequence",
    ]:
        return None
    variables = _variables_of(functions[1])
    ids = _variables_of(functions[0])["packed_sequence_mask"]
    positions = variables["position_ids"]
    if positions.shape != ids.shape or not _depends_on_distance(variables["mask_function"]):
        return None
    consecutive = (ids.diff(dim=-1) != 0) | (positions.diff(dim=-1) == 1)
    restarts = (ids.diff(dim=-1) < 0).any()
    return None if bool(restarts) or not bool(consecutive.all()) else (functions[0], variables["mask_function"])


def _depends_on_distance(function: MaskFunction) -> bool:
    """Return whether a function depends on the distance of query and key alone."""
    name = _name(function)
    if name in ("and_masks", "or_masks"):
        return all(map(_depends_on_distance, _variables_of(function)["mask_functions"]))
    return name in _DISTANCE_FUNCTIONS


def _positions(frame: Frame) -> tuple[Tensor, Tensor]:
    rows = torch.arange(frame.queries, device=frame.device) + frame.query_offset
    return rows, torch.arange(frame.keys, device=frame.device) + frame.key_offset


def _padding(padding: Tensor, frame: Frame) -> Mask | None:
    """Return the real keys of each item: a span if they are one run, else a table (B, 1, 1, K)."""
    real = padding[:, frame.key_offset : frame.key_offset + frame.keys].to(frame.device, torch.bool)
    real = torch.nn.functional.pad(real, (0, frame.keys - real.shape[-1]))
    if bool(real.all()):
        return None
    count, first = real.sum(-1), real.int().argmax(-1)
    columns = torch.arange(frame.keys, device=frame.device)
    single_run = (columns >= first[:, None]) & (columns < (first + count)[:, None])
    if not torch.equal(single_run, real):
        return Dense(real[:, None, None, :])
    return span(first, first + count) if bool(first.any()) else lengths(count)


_TRANSLATIONS: dict[str, Callable[[Frame, bool, dict[str, Any]], TranslatedMask]] = {
    "causal_mask_function": _causal,
    "bidirectional_mask_function": _bidirectional,
    "sliding_window_overlay": _sliding,
    "sliding_window_bidirectional_overlay": _sliding_both,
    "chunked_overlay": _chunks,
    "padding_mask_function": _padding_mask,
    "packed_sequence_mask_function": _packed,
    "remap_positions_for_packed_sequence": lambda frame, mapped, variables: _UNKNOWN,
    "add_offsets_to_mask_function": _offsets,
    "and_masks": _and,
    "or_masks": _or,
}
_PLAIN = ("causal_mask_function", "bidirectional_mask_function")
_DISTANCE_FUNCTIONS = (*_PLAIN, "sliding_window_overlay", "sliding_window_bidirectional_overlay")


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int | Tensor = 0,
    mask_function: MaskFunction | None = None,
    attention_mask: Tensor | None = None,
    *,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Tensor | None:
    """Make the mask of a forward pass: what `transformers` calls a mask interface.

    Args:
        batch_size, q_length, kv_length: the sizes.
        q_offset, kv_offset: the positions of the first query and the first key.
        mask_function: the mask function; None for the causal one.
        attention_mask: the padding, (B, N).
        allow_is_causal_skip: whether None may stand for the mask of a single query that hides nothing.
        allow_is_bidirectional_skip: whether None may stand for any mask that hides nothing.
        use_vmap: whether the function takes single indices.
        device: the device.
        others: what other implementations read.

    Returns:
        A lazy (B, 1, Q, K) mask; None only where the caller allows it.
    """
    from transformers import masking_utils

    function = masking_utils.causal_mask_function if mask_function is None else mask_function
    where = torch.device(device)
    frame = Frame(batch_size, q_length, kv_length, int(q_offset), int(kv_offset), where)
    mask = translate(function, attention_mask, frame, use_vmap)
    if mask is None and (allow_is_bidirectional_skip or (allow_is_causal_skip and q_length == 1)):
        return None
    return LazyMask(mask, (batch_size, 1, q_length, kv_length), where)


def _mapped(function: MaskFunction) -> MaskFunction:
    """Return a function of single indices as one of four vectors of them."""
    for dimensions in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        function = torch.vmap(function, in_dims=dimensions, out_dims=0)

    def run(*indices: Tensor) -> Tensor:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        with TransformGetItemToIndex():
            return function(*indices)  # type: ignore[no-any-return]

    return run
