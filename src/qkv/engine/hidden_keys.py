"""Zero the keys and values that no query may see, and the queries that see no key."""

import torch

from qkv.engine.problem import Call


def zero_hidden_keys(call: Call, keys: bool = True) -> Call:
    """Zero keys and values that no query sees, so that their contents cannot reach a result or a gradient.

    Args:
        call: the tensors of a call, as the caller gave them.
        keys: whether keys and values are zeroed too, and not only queries that see nothing.

    Returns:
        The same call, with those rows replaced by zeros.

    Example:
        >>> from qkv.engine.describe import Arguments, describe
        >>> from qkv.masks.patterns import lengths
        >>> x = torch.full((1, 3, 2), torch.nan)
        >>> mask = lengths(torch.tensor([0]))
        >>> given = Arguments(lambda query, key: query @ key.mT, None, mask, None, 0.0, None, False)
        >>> zero_hidden_keys(describe(x, x, x, given).call).key.sum()
        tensor(0.)
    """
    visibility = call.visibility
    if visibility.kind == "all" and visibility.grid.keys:
        return call
    query, key, value = call.query, call.key, call.value
    visible_keys = visibility.keys_with_queries() if keys else None
    if visible_keys is not None:
        visible_K1 = visible_keys.unsqueeze(-1)
        key, value = torch.where(visible_K1, key, 0.0), torch.where(visible_K1, value, 0.0)
    nonempty_rows = None if visibility.kind == "causal" else visibility.rows_with_keys()
    if nonempty_rows is not None:
        query = torch.where(nonempty_rows.unsqueeze(-1), query, 0.0)
    return call._replace(query=query, key=key, value=value)
