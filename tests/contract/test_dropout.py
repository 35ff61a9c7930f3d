"""Counter-based dropout: the bits depend only on (seed, row, key), forward, backward and in every backend."""

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call, Request, drawn, near, request, same_bits
from tests.contract.mechanisms import ON_CPU
from tests.contract.served import by_served
from tests.pairs import in_turn
from torch import Tensor

from qkv.engine.dropout import keep_mask, keep_matrix, mix
from qkv.functional import attention, attention_with_weights, explain
from qkv.masks.base import Mask
from qkv.masks.patterns import Lengths, lengths


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inputs(*sizes: int) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys = sizes
    return torch.randn(2, 3, queries, 4), torch.randn(2, 3, keys, 4), torch.randn(2, 3, keys, 5)


by_backend = by_served(lambda: request(*inputs(20, 30), dropout=0.4))


@by_served(lambda dropout: request(*inputs(150, 200), dropout=dropout), dropout=[0.1, 0.25, 0.5, 0.9])
def test_the_expected_fraction_is_dropped(backend: str, dropout: float) -> None:
    """Each weight is a Bernoulli draw: the fraction is within five standard deviations, by row, by key and overall."""
    query, key, value = inputs(150, 200)
    _, weights = attention_with_weights(query, key, value, dropout=dropout, generator=seeded(), backend=backend)
    dropped = (weights == 0).double()
    for dim, draws in (((0, 1, 2, 3), 180_000), ((0, 1, 2), 900), ((3,), 200)):
        deviation = (dropout * (1 - dropout) / draws) ** 0.5
        assert ((dropped.mean(dim) - dropout).abs() < 5 * deviation).all()


@by_backend
def test_kept_weights_are_scaled_up(backend: str) -> None:
    query, key, value = inputs(20, 30)
    output, weights = attention_with_weights(query, key, value, dropout=0.4, generator=seeded(), backend=backend)
    whole = attention_with_weights(query, key, value)[1]
    assert near(weights, torch.where(weights == 0, 0.0, whole / 0.6))
    assert near(output, weights @ value)


@by_backend
def test_the_same_seed_gives_the_same_bits(backend: str) -> None:
    query, key, value = inputs(20, 30)
    draws = [attention(query, key, value, dropout=0.4, generator=seeded(s), backend=backend) for s in (3, 3, 4)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.allclose(draws[0], draws[2])


@by_backend
def test_one_generator_gives_new_bits_each_time(backend: str) -> None:
    query, key, value = inputs(20, 30)
    generator = seeded()
    one, other = (attention(query, key, value, dropout=0.4, generator=generator, backend=backend) for _ in range(2))
    assert not torch.allclose(one, other)


@by_backend
def test_the_global_seed_is_respected(backend: str) -> None:
    query, key, value = inputs(20, 30)
    outputs = []
    for _ in range(2):
        torch.manual_seed(9)
        outputs.append(attention(query, key, value, dropout=0.4, backend=backend))
    assert torch.equal(*outputs)


def few() -> Request:
    return request(*inputs(4, 12), dropout=0.3)


@pytest.mark.slow
@by_served(few, backends=[name for name in ON_CPU if name != "reference"])
def test_the_mean_of_every_backend_is_unbiased(backend: str) -> None:
    is_unbiased(backend)


def test_the_mean_is_unbiased() -> None:
    is_unbiased("reference")


def is_unbiased(backend: str) -> None:
    query, key, value = few().tensors
    generator, draws = seeded(), 2000
    outputs = torch.stack(
        [attention(query, key, value, dropout=0.3, generator=generator, backend=backend) for _ in range(draws)]
    )
    deviation = outputs.std(0) / draws**0.5
    assert ((outputs.mean(0) - attention(query, key, value)).abs() < 5 * deviation).all()


PADDED = {"dropout": 0.4, "mask": lengths(torch.tensor([4, 7]))}


@by_served(lambda: drawn(((2, 2), 5, 7), **PADDED))
def test_backward_uses_the_same_bits(backend: str) -> None:
    """Forward and backward agree with the weights that were applied, in every mechanism."""
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, ((2, 2), 5, 7), **PADDED)
        if not call.serves(backend):
            continue
        output, gradients = call.with_options(generator=seeded()).gradients(backend)
        expected, theirs = call.with_options(generator=seeded()).gradients("reference")
        assert near(output, expected), call
        assert all(near(x, theirs[name], 4000) for name, x in gradients.items()), call
        again, same = call.with_options(generator=seeded()).gradients(backend)
        assert same_bits(output, again), call
        assert all(same_bits(x, same[name]) for name, x in gradients.items()), call


def test_the_gradient_is_that_of_the_applied_weights() -> None:
    query, key, value = (x.double().requires_grad_() for x in inputs(5, 7))
    options = {"dropout": 0.4, "backend": "reference"}
    output, weights = attention_with_weights(query, key, value, generator=seeded(), **options)
    gradient = torch.autograd.grad(output.sum(), value)[0]
    assert near(gradient, weights.detach().sum(-2).unsqueeze(-1).expand_as(value))


def test_explain_draws_nothing() -> None:
    """Inspecting a plan does not change the next call's dropout."""
    tensors, generator = inputs(5, 7), seeded()
    before = generator.get_state()
    explain(*tensors, dropout=0.4, generator=generator)
    assert torch.equal(before, generator.get_state())


def test_bits_of_a_part_are_a_part_of_the_bits() -> None:
    """Any tile can be computed on its own."""
    seed = torch.tensor(-(2**62) + 5)
    rows, keys = torch.arange(30), torch.arange(40)
    whole = keep_mask(seed, rows, keys, 0.3)
    assert torch.equal(keep_mask(seed, rows[7:19], keys[11:], 0.3), whole[7:19, 11:])
    assert torch.equal(keep_matrix(seed, (2, 3), 5, 40, 0.3).view(30, 40), whole)


@pytest.mark.parametrize("dropout", [0.0, 0.3, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("seed", [0, 7, -5, 2**62 + 13, -(2**63)])
def test_small_and_large_problems_have_the_same_bits(seed: int, dropout: float) -> None:
    """A problem of few weights is not computed by the operators of one of many."""
    few, many = (keep_matrix(torch.tensor(seed), (3,), size, 300, dropout) for size in (40, 400))
    rows = torch.arange(3 * 40).view(3, 40)
    assert torch.equal(few, keep_mask(torch.tensor(seed), rows, torch.arange(300), dropout))
    assert torch.equal(few.view(-1, 300), many.view(-1, 300)[: 3 * 40])


def test_almost_certain_dropout_drops() -> None:
    """The threshold has 32 bits even where the probability rounds to 1."""
    for size in (10, 400):
        assert keep_matrix(torch.tensor(7), (), size, 400, 1 - 2**-53).sum() <= 1


def test_rows_and_keys_are_uncorrelated() -> None:
    keep = keep_mask(torch.tensor(1), torch.arange(400), torch.arange(400), 0.5).double() * 2 - 1
    for table in (keep, keep.T):
        correlation = table @ table.T / 400 - torch.eye(400)
        assert correlation.abs().max() < 6 / 400**0.5


def test_mix_is_a_bijection_of_32_bits() -> None:
    """No two counters may share their bits: checked by inverting the hash step by step."""
    x = torch.cat([torch.arange(1 << 12), torch.randint(0, 2**32, (1 << 12,))])
    assert torch.equal(_unmix(mix(x)), x)


def _unmix(y: Tensor) -> Tensor:
    low = 0xFFFFFFFF
    y = y ^ (y >> 16)
    y = _times(y, pow(0xC2B2AE35, -1, 2**32))
    y = y ^ (y >> 13) ^ (y >> 26)
    y = _times(y, pow(0x85EBCA6B, -1, 2**32))
    return (y ^ (y >> 16)) & low


def _times(x: Tensor, factor: int) -> Tensor:
    """The product modulo 2³², by halves, so that nothing overflows."""
    return (x * (factor & 0xFFFF) + ((x * (factor >> 16)) << 16)) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("mask", "backend"),
    in_turn([lengths(0), lengths(torch.tensor([0, 1])), ~lengths(1)], [*ON_CPU, "auto"], every=3),
    ids=str,
)
def test_a_single_key_may_be_hidden(backend: str, mask: Mask) -> None:
    """A dimension of size 1 broadcasts even if a tile takes a slice of it."""
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, ((2, 2), 3, 1), dropout=0.3, mask=mask)
        if backend == "auto" or call.serves(backend):
            output, gradients = call.gradients(backend)
            hidden = output[:1] if isinstance(mask, Lengths) and isinstance(mask.keys, torch.Tensor) else output
            assert not hidden.any(), call
            assert all(x.isfinite().all() for x in gradients.values()), call
