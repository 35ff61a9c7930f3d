"""The public functions: attention and its siblings agree, and accept what their docstrings promise."""

import inspect
import threading

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call, near
from torch import Tensor

import qkv
from qkv import masks, normalizers, scores

SIBLINGS = (qkv.attention, qkv.attention_with_weights, qkv.attention_with_state, qkv.explain)


def draw(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def test_siblings_take_the_same_arguments() -> None:
    """At most ten names, keyword-only after the tensors, one meaning each."""
    signatures = [inspect.signature(function).parameters for function in SIBLINGS]
    for parameters in signatures:
        assert list(parameters) == list(signatures[0])
        assert [p.default for p in parameters.values()] == [p.default for p in signatures[0].values()]
        kinds = [p.kind for p in parameters.values()]
        assert kinds[:3] == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * 3
        assert set(kinds[3:]) == {inspect.Parameter.KEYWORD_ONLY}


def test_attention_always_returns_one_tensor() -> None:
    query, key, value = draw((3, 4), (5, 4), (5, 2))
    for options in ({}, {"mask": masks.causal()}, {"score": scores.Gaussian()}, {"dropout": 0.5}):
        output = qkv.attention(query, key, value, **options)
        assert isinstance(output, Tensor)
        assert output.shape == (3, 2)


@pytest.mark.parametrize("sizes", [((), 3, 5), ((2,), 3, 5), ((2, 2), 3, 5), ((3, 1, 2), 3, 5)], ids=str)
def test_siblings_agree(sizes: tuple[tuple[int, ...], int, int]) -> None:
    for score, normalizer in MECHANISMS:
        if sizes[0][-1:] != (2,) and ("per_head" in score.name or normalizer.shapes):
            continue
        call = Call.draw(score, normalizer, sizes)
        output = call.output("auto")
        assert output.shape == (*sizes[0], 3, 4), call
        assert near(call.weights("auto")[0], output), call
        assert near(call.state("auto")[0], output), call


def test_weights_of_convex_normalizers_are_shares() -> None:
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, mask=masks.lengths(torch.tensor([4, 0])))
        value = normalizer.build(call.leaves)
        weights = call.weights("auto")[1]
        assert (weights[0, ..., 4:] == 0).all(), call
        if value.convex and normalizer.name != "softmax_sink":
            assert (weights >= 0).all(), call
            total = weights.sum(-1)
            assert near(total[0], torch.ones_like(total[0]), 4000) or score.bend is not None, call
            assert (total[1] == 0).all(), call


def test_one_hot_weights_look_up_a_value() -> None:
    """A database lookup: the value whose key matches."""
    keys, values = torch.eye(4), torch.arange(8.0).view(4, 2)
    found = qkv.attention(keys[[2, 0]], keys, values, score=scores.Dot(), normalizer=normalizers.Hard())
    assert torch.equal(found, values[[2, 0]])


def test_uniform_scores_pool_averages() -> None:
    query, key, value = draw((3, 4), (5, 7), (5, 2))
    assert near(qkv.attention(query, key, value, score=scores.Uniform()), value.mean(0).expand(3, 2))


def test_outputs_stay_in_the_convex_hull() -> None:
    query, key, value = draw((30, 4), (5, 4), (5, 2))
    output = qkv.attention(query, key, value)
    assert (output <= value.amax(0)).all()
    assert (output >= value.amin(0)).all()


def test_order_of_keys_does_not_matter() -> None:
    query, key, value = draw((3, 4), (9, 4), (9, 2))
    order = torch.randperm(9)
    assert near(qkv.attention(query, key[order], value[order]), qkv.attention(query, key, value))


def test_a_function_is_a_score() -> None:
    query, key, value = draw((2, 3, 4), (2, 5, 4), (2, 5, 2))

    def manhattan(query: Tensor, key: Tensor) -> Tensor:
        return -torch.cdist(query, key, p=1)

    expected = torch.softmax(manhattan(query, key), -1) @ value
    assert near(qkv.attention(query, key, value, score=manhattan), expected)


def test_a_cache_gives_what_the_whole_gives() -> None:
    """Step by step with the past length as offset, within the bound."""
    query, key, value = draw((2, 9, 4), (2, 9, 4), (2, 9, 3))
    whole = qkv.attention(query, key, value, mask=masks.causal())
    steps = [
        qkv.attention(query[:, t : t + 1], key[:, : t + 1], value[:, : t + 1], mask=masks.causal(offset=t))
        for t in range(9)
    ]
    assert near(torch.cat(steps, 1), whole)


def test_padding_changes_nothing() -> None:
    query, key, value = draw((3, 4), (5, 4), (5, 2))
    padded = [torch.nn.functional.pad(x, (0, 0, 0, 6), value=9.9)[None] for x in (key, value)]
    output = qkv.attention(query[None], *padded, mask=masks.lengths(torch.tensor([5])))
    assert near(output[0], qkv.attention(query, key, value))


def test_threads_do_not_disturb_each_other() -> None:
    call = Call.draw(*MECHANISMS[9], ((2, 2), 40, 50))
    expected, found = call.gradients("auto"), []

    def work() -> None:
        found.append(call.gradients("auto"))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for output, gradients in found:
        assert torch.equal(output, expected[0])
        assert all(torch.equal(x, expected[1][name]) for name, x in gradients.items())


def test_inputs_are_left_as_they_were() -> None:
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, mask=masks.lengths(torch.tensor([4, 0])))
        before = {name: x.clone() for name, x in call.leaves.items()}
        call.gradients("auto")
        assert all(torch.equal(x, before[name]) for name, x in call.leaves.items()), call


def test_values_cannot_be_changed() -> None:
    for value in (scores.ScaledDot(), normalizers.Softmax(), masks.causal()):
        with pytest.raises((AttributeError, TypeError)):
            value.anything = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("backend", ["reference", "blocked", "rowwise"])
@pytest.mark.parametrize("score", [scores.Boxcar(9.0), scores.Uniform()], ids=str)
def test_a_row_whose_scores_cancel_gives_zero(backend: str, score: scores.Score) -> None:
    query, key, value, bias = torch.zeros(2, 3, 2), torch.zeros(2, 4, 2), torch.ones(2, 4, 5), torch.zeros(3, 4)
    bias[0] = torch.tensor([0.0, 0.0, -2.0, -2.0])
    value[:, 0] = 7
    inputs = [x.requires_grad_() for x in (query, key, value, bias)]
    how = {"score": score, "normalizer": normalizers.Sum(), "bias": bias}
    output, weights = qkv.attention_with_weights(query, key, value, **how, backend=backend)  # type: ignore[arg-type]
    amap = qkv.attention_map(query, key, **how)  # type: ignore[arg-type]
    assert not any(bool(rows[:, 0].any()) for rows in (output, weights, amap.dense()))
    gradients = torch.autograd.grad(output[:, 0].sum(), inputs, allow_unused=True, materialize_grads=True)
    assert not any(bool(gradient.any()) for gradient in gradients)
    assert bool((output[:, 1:] > 1).all())
