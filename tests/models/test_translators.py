"""Promises of every translation model: batching, padding, caching and later tokens change no answer."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from qkv.decode.forced import forced
from qkv.decode.greedy import greedy
from qkv.decode.protocol import Hypothesis
from qkv.errors import ConfigError, ShapeError
from qkv.models.configs.translator import MonotonicConfig, RecurrentConfig, TransformerConfig
from qkv.models.monotonic import MonotonicTranslator
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator
from qkv.recording.recorder import record

SIZE, BOS, EOS = 13, 1, 2
Model = RecurrentTranslator | TransformerTranslator | MonotonicTranslator


def recurrent(**options: Any) -> RecurrentTranslator:
    sizes = {"size": SIZE, "embedding": 6, "hidden": 5, "attention": 4}
    return RecurrentTranslator(RecurrentConfig(**{**sizes, **options}))


def transformer(**options: Any) -> TransformerTranslator:
    sizes = {"size": SIZE, "width": 8, "heads": 2, "feed_forward": 12, "encoder_layers": 2, "decoder_layers": 2}
    return TransformerTranslator(TransformerConfig(**{**sizes, **options}))


def monotonic(**options: Any) -> MonotonicTranslator:
    sizes = {"size": SIZE, "embedding": 6, "hidden": 5, "attention": 4}
    return MonotonicTranslator(MonotonicConfig(**{**sizes, **options}))


MAKERS: dict[str, Callable[..., Model]] = {"rnn": recurrent, "transformer": transformer, "monotonic": monotonic}
KINDS = [
    *(
        ("rnn", {"model": cell, "wiring": wiring})
        for cell in ("gru", "lstm", "rnn")
        for wiring in ("bahdanau", "luong")
    ),
    *(("rnn", {"score": score}) for score in ("dot", "scaled_dot", "bilinear", "none")),
    ("rnn", {"score": "none", "wiring": "luong", "tied": False}),
    *(("transformer", {"score": score}) for score in ("scaled_dot", "dot", "bilinear", "additive")),
    ("transformer", {"norm_first": False, "tied": False}),
    ("rnn", {"source_size": 15, "wiring": "luong"}),
    ("transformer", {"source_size": 15, "tied": False}),
    ("rnn", {"features_mark": 7}),
    ("rnn", {"features_mark": 7, "wiring": "luong", "model": "lstm", "source_size": 15}),
    ("rnn", {"features_mark": 7, "hidden": 6, "heads": 2, "encoder": "transformer", "encoder_heads": 2}),
    ("rnn", {"features_mark": 7, "score": "location"}),
    ("rnn", {"score": "location", "hidden": 6, "heads": 2}),
    ("rnn", {"score": "location", "hidden": 6, "heads": 3, "memory": "split", "wiring": "luong"}),
    ("transformer", {"features_mark": 7}),
    ("transformer", {"features_mark": 7, "norm_first": False, "encoder": "gru"}),
    ("monotonic", {"source_size": 15}),
    ("monotonic", {"alignment": "monotonic-0"}),
    ("monotonic", {"alignment": "monotonic-0", "score": "dot", "model": "lstm", "tied": False}),
    ("monotonic", {"alignment": "monotonic-0", "score": "additive", "model": "rnn"}),
    ("monotonic", {"alignment": "monotonic-1"}),
    ("monotonic", {"alignment": "monotonic-1", "jumps": 1, "model": "lstm"}),
    ("rnn", {"score": "location"}),
    ("rnn", {"score": "location", "wiring": "luong", "model": "lstm"}),
]
MONOTONIC = KINDS[-7], KINDS[-4]
LOCATED = KINDS[-2:]


def made(kind: tuple[str, dict[str, Any]], seed: int = 0, dtype: torch.dtype = torch.float64) -> Model:
    name, options = kind
    torch.manual_seed(seed)
    model = MAKERS[name](**options)
    for parameter in model.parameters():
        # Wider weights than a fresh model has, so that states saturate and answers differ between rows.
        nn.init.normal_(parameter, std=0.5)
    return model.to(dtype).eval()


_TURNS = count()


def every(test: Any) -> Any:
    """Call a test with every kind: in the fast suite every second one, and in the next test the others."""
    turn = next(_TURNS)
    cases = [
        pytest.param(
            kind,
            marks=pytest.mark.slow if (turn + place) % 2 else (),
            id="-".join([kind[0], *map(str, kind[1].values())]),
        )
        for place, kind in enumerate(KINDS)
    ]
    return pytest.mark.parametrize("kind", cases)(test)


sentences = st.lists(st.lists(st.integers(3, SIZE - 1), max_size=6), min_size=1, max_size=5)


def batch(rows: list[list[int]], fill: int = 0, extra: int = 0) -> tuple[Tensor, Tensor]:
    width = max(1, *map(len, rows)) + extra
    return (
        torch.tensor([row + [fill] * (width - len(row)) for row in rows]),
        torch.tensor([len(row) for row in rows]),
    )


@every
def test_steps_with_a_cache_give_the_scores_of_one_pass(kind: tuple[str, dict[str, Any]]) -> None:
    model = made(kind)
    source, lengths = batch([[3, 4, 5, 6], [7], [], [8, 9]])
    target = torch.randint(0, SIZE, (4, 6))
    state, steps = model.start(source, lengths), []
    for tokens in target.unbind(1):
        logits, state = model.step(tokens, state)
        steps.append(logits)
    torch.testing.assert_close(torch.stack(steps, 1), model(source, lengths, target), rtol=1e-10, atol=1e-12)


@every
def test_later_targets_change_no_earlier_score(kind: tuple[str, dict[str, Any]]) -> None:
    model = made(kind)
    source, lengths = batch([[3, 4, 5], [7]])
    target = torch.randint(0, SIZE, (2, 6))
    other = target.clone()
    other[:, 3:] = torch.randint(0, SIZE, (2, 3))
    before, after = model(source, lengths, target), model(source, lengths, other)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3:], after[:, 3:])


@every
def test_what_stands_in_the_padding_changes_no_bit(kind: tuple[str, dict[str, Any]]) -> None:
    model = made(kind, dtype=torch.float32)
    rows = [[3, 4, 5, 6], [7], [], [8, 9]]
    target = torch.randint(0, SIZE, (4, 5))
    expected = model(*batch(rows, extra=2), target)
    for fill in (5, SIZE - 1, -100, 10**9):
        assert torch.equal(model(*batch(rows, fill, extra=2), target), expected)


@every
def test_a_selection_of_rows_goes_on_as_those_rows(kind: tuple[str, dict[str, Any]]) -> None:
    model = made(kind)
    source, lengths = batch([[3, 4, 5, 6], [7], [8, 9]])
    tokens = torch.randint(0, SIZE, (3,))
    _, state = model.step(torch.full((3,), BOS), model.start(source, lengths))
    rows = torch.tensor([2, 0, 2])
    expected, _ = model.step(tokens, state)
    chosen, _ = model.step(tokens[rows], model.select(state, rows))
    torch.testing.assert_close(chosen, expected[rows], rtol=1e-10, atol=1e-12)
    # A state is a value: computing from it changed nothing in it.
    again, _ = model.step(tokens, state)
    assert torch.equal(again, expected)


@every
def test_each_row_is_predicted_as_if_alone_and_unpadded(kind: tuple[str, dict[str, Any]]) -> None:
    model = made(kind)
    rows = [[3, 4, 5, 6], [7], [], [8, 9]]
    target = torch.randint(0, SIZE, (4, 5))
    together = model(*batch(rows, extra=3), target)
    for place, row in enumerate(rows):
        alone = model(*batch([row]), target[place : place + 1])
        torch.testing.assert_close(together[place], alone[0], rtol=1e-10, atol=1e-12)


def same_or_tied(model: Model, row: list[int], one: Hypothesis, other: Hypothesis, bound: float) -> bool:
    """True if two answers agree, or first differ where the two best scores are within the bound."""
    if one.ids == other.ids:
        return True
    pairs = zip((*one.ids, EOS), (*other.ids, EOS), strict=False)
    shared = next(place for place, (mine, theirs) in enumerate(pairs) if mine != theirs)
    target = torch.tensor([[BOS, *one.ids[:shared]]])
    best = model(*batch([row]), target)[0, -1].topk(2).values
    return bool(best[0] - best[1] < bound)


ALIKE = {
    "bahdanau": KINDS[0],
    "luong": KINDS[1],
    "transformer": KINDS[11],
    "monotonic-0": MONOTONIC[0],
    "monotonic-1": MONOTONIC[1],
    "location": LOCATED[0],
}


@pytest.mark.parametrize(
    ("kind", "dtype", "bound"),
    [
        pytest.param(kind, *how, marks=[] if turn % 2 == place else pytest.mark.slow, id=f"{name}-{how[0]}")
        for turn, (name, kind) in enumerate(ALIKE.items())
        for place, how in enumerate([(torch.float64, 1e-11), (torch.float32, 1e-4)])
    ],
)
@settings(max_examples=6)
@given(rows=sentences, seed=st.integers(0, 99), data=st.data())
def test_decoded_ids_do_not_depend_on_the_batch(
    kind: tuple[str, dict[str, Any]], dtype: torch.dtype, bound: float, rows: list[list[int]], seed: int, data: Any
) -> None:
    model = made(kind, seed, dtype)
    marks = {"bos": BOS, "eos": EOS, "limit": 8}
    order = data.draw(st.permutations(range(len(rows))))
    whole = greedy(model, *batch([rows[place] for place in order], fill=4, extra=2), **marks)
    for place, found in zip(order, whole, strict=True):
        (alone,) = greedy(model, *batch([rows[place]]), **marks)
        assert same_or_tied(model, rows[place], found, alone, bound)
        if found.ids == alone.ids:
            assert found.score == pytest.approx(alone.score, rel=1e-3, abs=bound)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[11], *MONOTONIC], ids=["rnn", "transformer", "zeroth", "first"])
def test_forced_scores_are_those_of_one_pass(kind: tuple[str, dict[str, Any]]) -> None:
    model = made(kind)
    rows, targets = [[3, 4, 5], [7], [8, 9]], [[5, 6, 7, EOS], [EOS], [4, 4, EOS]]
    source, lengths = batch(rows)
    for place, found in enumerate(forced(model, source, lengths, targets, bos=BOS, eos=EOS)):
        target = torch.tensor([[BOS, *targets[place][:-1]]])
        logits = model(source[place : place + 1], lengths[place : place + 1], target).log_softmax(-1)
        expected = logits[0].gather(-1, torch.tensor(targets[place])[:, None]).squeeze(-1).tolist()
        assert found.log_probabilities == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    "kind",
    [KINDS[0], KINDS[2], KINDS[3], KINDS[11], *MONOTONIC, *LOCATED],
    ids=["gru", "lstm", "luong", "transformer", "monotonic-0", "monotonic-1", "location", "location-luong"],
)
def test_gradients_are_those_of_the_function(kind: tuple[str, dict[str, Any]]) -> None:
    name, options = kind
    small = (
        {"size": 5, "width": 2} if name == "transformer" else {"size": 5, "embedding": 2, "hidden": 2, "attention": 2}
    )
    if name == "transformer":
        small |= {"heads": 1, "feed_forward": 2, "encoder_layers": 1, "decoder_layers": 1}
    model = made((name, {**options, **small}))
    names = [name for name, _ in model.named_parameters()]
    given_batch = (torch.tensor([[3, 4, 2], [4, 0, 0]]), torch.tensor([3, 1]), torch.tensor([[1, 3], [1, 4]]))

    def run(*parameters: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), given_batch)
        return output

    assert torch.autograd.gradcheck(run, tuple(model.parameters()), atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[11]], ids=["rnn", "transformer"])
def test_a_seed_decides_every_parameter(kind: tuple[str, dict[str, Any]]) -> None:
    name, options = kind
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(MAKERS[name](**options).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@every
def test_the_named_alignment_layer_is_an_attention_of_the_model(kind: tuple[str, dict[str, Any]]) -> None:
    model = made(kind)
    layer = model.alignment_layer
    assert (layer is None) == (kind[1].get("score") == "none")
    if layer is not None:
        assert type(model.get_submodule(layer)).__name__ == "Attention"


@every
def test_a_step_of_training_lowers_the_loss(kind: tuple[str, dict[str, Any]]) -> None:
    name, options = kind
    model = MAKERS[name](**{**options, "dropout": 0.0})
    source, lengths = batch([[3, 4, 5], [7], [8, 9]])
    target = torch.randint(3, SIZE, (3, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        logits = model(source, lengths, target[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    assert all(parameter.grad is not None for parameter in model.parameters())


@every
def test_bfloat16_autocast_runs_forward_and_backward(kind: tuple[str, dict[str, Any]]) -> None:
    model = made(kind, dtype=torch.float32).train()
    source, lengths = batch([[3, 4, 5], [7]])
    target = torch.randint(0, SIZE, (2, 4))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(source, lengths, target)
    logits.float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_bidirectional_states_are_pytorchs_on_each_sentence_alone() -> None:
    model = made(("rnn", {"model": "lstm", "score": "bilinear"}))
    rows = [[3, 4, 5, 6], [7], [8, 9]]
    state = model.start(*batch(rows))
    for place, row in enumerate(rows):
        expected, _ = model.encoder(model.embed(torch.tensor([row])))
        torch.testing.assert_close(state.values[place, : len(row)], expected[0], rtol=1e-10, atol=1e-12)
        assert not state.values[place, len(row) :].any()


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (RecurrentConfig, {"hidden": 0}, "hidden: expected an integer, at least 1"),
        (RecurrentConfig, {"model": "gur"}, 'model: .* Did you mean "gru"'),
        (RecurrentConfig, {"score": "aditive"}, 'Did you mean "additive"'),
        (TransformerConfig, {"score": "none"}, "score: expected a score, because a Transformer is attention"),
        (RecurrentConfig, {"dropout": 1.0}, "dropout: expected a finite number from 0 and below 1"),
        (TransformerConfig, {"heads": 3}, "heads: expected a divisor"),
        (TransformerConfig, {"attention_dropout": -0.1}, "attention_dropout: expected a finite number from 0"),
        (TransformerConfig, {"encoder_layers": 0}, "encoder_layers: expected an integer, at least 1"),
    ],
)
def test_a_size_outside_its_range_is_named(config: type, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(size=5, **options)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[11]], ids=["rnn", "transformer"])
@pytest.mark.parametrize(
    ("source", "lengths", "target", "message"),
    [
        ([[3, 4]], [3], [[1]], "lengths: expected numbers from 0 to 2; got 3"),
        ([[3, 4]], [-1], [[1]], "lengths: expected numbers from 0 to 2; got -1"),
        ([[3, 4]], [1, 1], [[1]], "lengths: expected 1 numbers; got 2"),
        ([[3, SIZE]], [2], [[1]], "source: expected numbers from 0 to 12; got 13"),
        ([3, 4], [2], [[1]], r"source: expected int64 of shape \(B, S\)"),
        ([[3.0, 4.0]], [2], [[1]], r"source: expected int64 .* got torch.float32"),
        ([[3, 4]], [2], [[SIZE]], "target: expected numbers from 0 to 12; got 13"),
        ([[3, 4]], [2], [[1], [1]], "target: expected 1 rows"),
    ],
)
def test_a_batch_that_does_not_fit_is_named(
    kind: tuple[str, dict[str, Any]], source: Any, lengths: list[int], target: list[list[int]], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        made(kind)(torch.tensor(source), torch.tensor(lengths), torch.tensor(target))


@every
def test_a_source_without_columns_is_an_empty_sentence(kind: tuple[str, dict[str, Any]]) -> None:
    model, target = made(kind), torch.tensor([[BOS, 4]])
    none = torch.zeros(1, 0, dtype=torch.int64), torch.tensor([0])
    assert torch.equal(model(*none, target), model(*batch([[]]), target))
    assert model(*none, target).isfinite().all()


@pytest.mark.parametrize("score", ["additive", "bilinear", "scaled_dot", "dot"])
@pytest.mark.parametrize("wiring", ["bahdanau", "luong"])
def test_split_states_have_keys_to_find_and_values_to_average(score: str, wiring: str) -> None:
    torch.manual_seed(0)
    config = RecurrentConfig(
        size=20,
        wiring=wiring,
        embedding=8,
        hidden=8,
        attention=8,
        score=score,
        memory="split",  # type: ignore[arg-type]
    )
    model = RecurrentTranslator(config).double().eval()
    source, lengths = torch.randint(4, 20, (2, 5)), torch.tensor([5, 3])
    state, values = model.read(source, lengths)
    assert values.shape == (2, 5, 8)
    target = torch.randint(4, 20, (2, 4))
    together = model(source, lengths, target)
    for place, tokens in enumerate(target.unbind(1)):
        logits, state = model.step(tokens, state)
        torch.testing.assert_close(logits, together[:, place])
    with record(model) as trace:
        model(source, lengths, target)
    call = trace.calls["attention"][0]
    assert call.value.shape[-1] == 8


def test_an_odd_width_cannot_be_split() -> None:
    with pytest.raises(ConfigError, match=r"hidden: expected an even width"):
        RecurrentConfig(size=20, hidden=7, memory="split")


@pytest.mark.parametrize("kind", LOCATED, ids=["bahdanau", "luong"])
@torch.no_grad()
def test_a_record_of_a_location_sensitive_model_shows_the_weights_it_used(kind: tuple[str, dict[str, Any]]) -> None:
    model = made(kind)
    source, lengths = batch([[3, 4, 5, 6], [7, 8]])
    target = torch.randint(3, SIZE, (2, 5))
    with record(model) as trace:
        state = model.start(source, lengths)
        used = []
        for tokens in target.unbind(1):
            _, state = model.step(tokens, state)
            used.append(state.alignment)
    torch.testing.assert_close(trace.weights("attention"), torch.stack(used, 1), rtol=1e-10, atol=1e-12)
    assert trace.scene(1).layer("attention").shape == (1, 5, 4)
