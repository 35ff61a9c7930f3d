"""Gradients pass through merged parts of every mechanism, also where a row sees nothing in several parts, or at all."""

from itertools import pairwise

import torch
from tests.contract.calls import MECHANISMS, Call, near
from tests.contract.served import by_served
from torch import Tensor

from qkv.functional import attention_with_state
from qkv.normalizers.kinds import MERGEABLE
from qkv.normalizers.row_state import merge

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
NAMES = {
    f"{score.name}-{normalizer.name}": (score, normalizer)
    for score, normalizer in MECHANISMS
    if normalizer.name in MERGEABLE
}
QUERIES, KEYS, CUTS = 64, 63, (0, 23, 32, 51, 63)
MASK = torch.ones(QUERIES, KEYS, dtype=torch.bool).tril(1)
MASK[-1] = False


def drawn(name: str, dtype: torch.dtype) -> Call:
    return Call.draw(*NAMES[name], ((2, 2), QUERIES, KEYS), dtype, mask=MASK)


def merged(call: Call, leaves: dict[str, Tensor], backend: str) -> Tensor:
    """The output of four parts, merged from the right, so that rows that see nothing in two parts come first."""
    parts = []
    for start, stop in pairwise(CUTS):
        of_part = call.with_options(mask=MASK[:, start:stop])
        key, value = leaves["key"][..., start:stop, :], leaves["value"][..., start:stop, :]
        arguments = of_part.arguments(leaves)
        parts.append((attention_with_state(leaves["query"], key, value, **arguments, backend=backend), start))
    (total, _), *others = reversed(parts)
    for part, start in others:
        total = merge([part, total], [start, start + 1])
    return total[0]


@by_served(lambda name, dtype: drawn(name, dtype).request(state=True), every=4, name=NAMES, dtype=DTYPES)
def test_gradients_of_merged_parts_are_those_of_one_call(backend: str, name: str, dtype: torch.dtype) -> None:
    call = drawn(name, dtype)
    leaves = {name: x.detach().requires_grad_() for name, x in call.leaves.items()}
    output = merged(call, leaves, backend)
    exact, slopes = call.gradients("reference")
    cotangent = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view(output.shape)
    gradients = torch.autograd.grad(output, list(leaves.values()), cotangent, materialize_grads=True)
    assert near(output, exact)
    for leaf, gradient in zip(leaves, gradients, strict=True):
        assert near(gradient, slopes[leaf], 4000), leaf
