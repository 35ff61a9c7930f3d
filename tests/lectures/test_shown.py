"""What the lectures show by an experiment: each is computed here, and the chapters of the course draw most of them."""

from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.configs.translator import RecurrentConfig, TransformerConfig
from qkv.models.language_model import LanguageModel
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator
from qkv.nn.non_local import Form, NonLocalBlock
from qkv.nn.recurrent.lower import RecurrentSelfAttention


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# Kernels


def truth(x: np.ndarray) -> np.ndarray:
    """The lecture's function behind the noisy points."""
    return 2 * np.sin(x) + x**0.8


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov", "triangular"])
def test_leaving_one_out_finds_the_valley_of_the_error(kernel: str) -> None:
    """The boxcar's error jumps with every point that enters its window, so its minimum is rugged."""
    pytest.importorskip("sklearn")
    from qkv.models.regression import KernelRegression

    noise = np.random.default_rng(0)
    x = np.sort(noise.uniform(0, 5, 60))
    y, grid = truth(x) + 0.5 * noise.standard_normal(60), np.linspace(0, 5, 200)

    def mistake(model: KernelRegression) -> float:
        return float(np.square(model.fit(x[:, None], y).predict(grid[:, None]) - truth(grid)).mean())

    best = min(mistake(KernelRegression(kernel, float(h), degree=0)) for h in np.logspace(-1.3, 0.7, 17))
    assert mistake(KernelRegression(kernel, degree=0)) < 1.5 * best


# Recurrent decoders


def test_a_decoder_step_is_the_four_lines_of_the_lecture() -> None:
    config = RecurrentConfig(size=20, score="dot", wiring="luong", embedding=6, hidden=8)
    model = RecurrentTranslator(config).eval()
    source, target = torch.randint(4, 20, (1, 5)), torch.randint(4, 20, (1, 3))
    seen, inputs = [], []
    model.attention.register_forward_hook(lambda module, given, output: seen.append((*given, output)))
    model.readout.register_forward_hook(lambda module, given, output: inputs.append(given[0]))
    with qkv.record(model) as trace:
        model(source, torch.tensor([5]), target)
    states, keys, values, contexts = (part[0].detach() for part in seen[0])
    t = 1
    e_t = torch.stack([states[t] @ key for key in keys])
    alpha_t = e_t.exp() / e_t.exp().sum()
    a_t = sum(alpha * value for alpha, value in zip(alpha_t, values, strict=True))
    joined = torch.cat([states[t], a_t])
    assert torch.allclose(alpha_t, trace.weights("attention")[0, t], atol=1e-6)
    assert torch.allclose(a_t, contexts[t], atol=1e-6)
    assert torch.allclose(joined, inputs[0][0, t, : len(joined)], atol=1e-6), "what the output layer is given"


def test_the_lectures_code_scores_each_query_against_its_own_key_alone() -> None:
    x = torch.randn(2, 15, 10)
    query, key, _value = (x @ torch.randn(10, width) / 3 for width in (18, 19, 20))
    w_q, w_k, w_v = torch.randn(30, 18) / 4, torch.randn(30, 19) / 4, torch.randn(30)
    scores = qkv.scores.Additive(w_v, w_q, w_k)(query, key)
    row = (torch.tanh(query @ w_q.mT + key @ w_k.mT) @ w_v).softmax(-1)  # its lines: column is added to column
    assert torch.allclose(row, scores.diagonal(dim1=1, dim2=2).softmax(-1), atol=1e-4)
    with pytest.raises(RuntimeError):
        row.view(2, 20)  # as its plot expects them


def test_split_states_have_keys_that_find_and_values_that_are_averaged() -> None:
    below = nn.GRU(8, 8, batch_first=True)
    layer = RecurrentSelfAttention(8, 16, score="dot", memory="split")
    with torch.no_grad():
        states = below(torch.randn(1, 6, 8))[0]
        with qkv.record(layer) as trace:
            layer(states)
        weights = trace.weights("attention")[0]
        key, value = states[0].chunk(2, -1)
        for i in range(6):
            assert torch.allclose(weights[i, : i + 1], (key[: i + 1] @ key[i]).softmax(-1), atol=1e-6)
        with qkv.record(layer) as trace:
            layer(torch.cat([key, torch.randn_like(value)], -1)[None])
        assert torch.equal(trace.weights("attention")[0], weights), "a value does not affect where it is found"


class LastSymbol(nn.Module):
    """A layer, and a linear output at the last position."""

    def __init__(self, name: str) -> None:
        super().__init__()
        modules = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
        self.layer = modules[name](32, 32, batch_first=True) if name in modules else qkv.nn.MultiHeadAttention(32, 1)
        self.output = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, nn.RNNBase):
            return self.output(self.layer(x)[0][:, -1])
        x = x + qkv.nn.sinusoidal(x.shape[1], 32)
        return self.output(self.layer(x[:, -1:], x)[:, 0])


def symbols(count: int, length: int) -> tuple[Tensor, Tensor]:
    """A symbol, noise, and a blank that asks for it (count, n, 32); and the symbol's index."""
    answer = torch.randint(0, 8, (count,))
    first = 3 * nn.functional.one_hot(answer, 32).float()[:, None]
    return torch.cat([first, torch.randn(count, length - 2, 32), torch.zeros(count, 1, 32)], 1), answer


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru", "attention"])
def test_gradients_vanish_through_recurrences_and_not_through_attention(name: str) -> None:
    def slope(length: int) -> float:
        torch.manual_seed(0)
        x, answer = symbols(16, length)
        loss = nn.functional.cross_entropy(LastSymbol(name)(x.requires_grad_()), answer, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, x)
        return float(gradient[:, 0].norm(dim=-1).mean())

    left = slope(512) / slope(4)
    # One step of attention divides its gradient among n tokens: 1/n, not exponential.
    assert left > 0.1 * 4 / 512 if name == "attention" else left < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rnn", "lstm", "gru", "attention"])
def test_attention_alone_learns_to_name_the_first_of_32_tokens(name: str) -> None:
    model = LastSymbol(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        x, answer = symbols(32, 32)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), answer).backward()
        optimizer.step()
    x, answer = symbols(500, 32)
    right = float((model(x).argmax(-1) == answer).float().mean())
    assert right > 0.8 if name == "attention" else right < 0.3


def depth(out: Tensor) -> int:
    """The longest chain in the backward graph, which no number of processors can shorten."""
    longest: dict[object, int] = {}
    todo = [out.grad_fn]
    while todo:
        node = todo[-1]
        assert node is not None
        after = [other for other, _ in node.next_functions if other is not None]
        missing = [other for other in after if other not in longest]
        todo.extend(missing)
        if not missing:
            longest[todo.pop()] = 1 + max((longest[other] for other in after), default=0)
    return longest[out.grad_fn]


def test_a_recurrence_takes_n_steps_and_attention_a_fixed_number() -> None:
    def recurrent(length: int) -> int:
        cell, state = nn.GRUCell(16, 16), torch.zeros(1, 16)
        for step in torch.randn(1, length, 16).unbind(1):
            state = cell(step, state)
        return depth(state)

    layer = qkv.nn.MultiHeadAttention(16, 4)
    assert depth(layer(torch.randn(1, 16, 16))) == depth(layer(torch.randn(1, 128, 16)))
    assert recurrent(128) > 7 * recurrent(16)


# Scores and heads


def found_share(name: str, width: int) -> float:
    """Train a score to find one of 16 keys from 32 symbols, whose query is a hidden rotation plus noise."""
    torch.manual_seed(0)
    table, rotation = torch.randn(32, width), torch.linalg.qr(torch.randn(width, width)).Q
    score: nn.Module = qkv.nn.AdditiveScore(width, width, hidden=width)
    if name != "additive":
        score = qkv.nn.BilinearScore(width, width, scale=width**-0.5 if name == "scaled" else 1.0)
        nn.init.normal_(score.weight, std=width**-0.5)
    optimizer = torch.optim.Adam(score.parameters(), lr=0.01)
    for step in range(251):
        key = table[torch.rand(64, 32).topk(16).indices]
        answer = torch.randint(0, 16, (64,))
        query = (key[torch.arange(64), answer] @ rotation + 0.2 * torch.randn(64, width))[:, None]
        found = qkv.attention(query, key, torch.eye(16).expand(64, -1, -1), score=score.value())[:, 0]
        if step < 250:
            optimizer.zero_grad()
            (found - torch.eye(16)[answer]).square().sum(-1).mean().backward()
            optimizer.step()
    return float((found.argmax(-1) == answer).float().mean())


@pytest.mark.slow
def test_additive_beats_the_product_at_large_widths_only_if_it_is_not_scaled() -> None:
    unscaled, scaled, additive = (found_share(name, 512) for name in ("plain", "scaled", "additive"))
    assert additive > unscaled + 0.2
    assert scaled > 0.9


def test_a_rotation_as_query_weight_finds_the_token_before() -> None:
    width, length = 32, 16
    rate = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    blocks = [torch.tensor([[c, -s], [s, c]]) for c, s in zip(rate.cos().tolist(), rate.sin().tolist(), strict=True)]
    position = qkv.nn.sinusoidal(length, width)
    sharp = qkv.scores.ScaledDot(scale=3.0)
    values = torch.randn(length, 4)
    query = position @ torch.block_diag(*blocks).mT  # PE(p) to PE(p − 1)
    output, weights = qkv.attention_with_weights(query, position, values, score=sharp)
    plain = qkv.attention(position, position, values, score=sharp)
    assert bool((weights.argmax(-1)[1:] == torch.arange(length - 1)).all())
    assert (output[1:] - values[:-1]).abs().mean() < (plain[1:] - values[:-1]).abs().mean() / 2


def test_the_readout_gets_the_context_beside_the_state() -> None:
    """[a_t; s_t] of the first lecture, and the embedding of the token before."""
    model = RecurrentTranslator(RecurrentConfig(size=20, embedding=4, hidden=6, attention=5)).eval()
    inputs: list[Tensor] = []
    model.readout.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    source, written = torch.randint(4, 20, (1, 7)), torch.randint(4, 20, (1, 3))
    with qkv.record(model) as trace, torch.no_grad():
        model(source, torch.tensor([7]), written)
    (layer,) = trace.layers
    context = trace.weights(layer) @ trace.calls[layer][0].value
    _, read, before = torch.cat(inputs, 1).split([6, context.shape[-1], 4], -1)
    torch.testing.assert_close(read, context)
    torch.testing.assert_close(before, model.embed(written))


def test_a_head_is_a_bilinear_score_and_the_output_projection_sums_heads() -> None:
    x = torch.randn(2, 6, 32)
    mixed = qkv.nn.MultiHeadAttention(32, 4, bias=False)
    apart = qkv.nn.MultiHeadAttention(32, 4, bias=False, leave_out=("output",))
    apart.load_state_dict({name: part for name, part in mixed.state_dict().items() if not name.startswith("output")})
    heads = apart(x).unflatten(-1, (4, 8))
    w_o = mixed.output.weight.mT.unflatten(0, (4, 8))
    assert torch.allclose(mixed(x), sum(heads[:, :, i] @ w_o[i] for i in range(4)), atol=1e-5)
    value = apart.projections.together(x)[2]
    w_q, w_k = (mixed.projections.part(index)[0].mT.unflatten(1, (4, -1)) for index in (0, 1))
    for i in range(4):
        matrix = w_q[:, i] @ w_k[:, i].mT
        bilinear = qkv.scores.Bilinear(matrix, scale=8**-0.5)
        assert torch.allclose(qkv.attention(x, x, value[:, i], score=bilinear), heads[:, :, i], atol=1e-5)
        assert int(torch.linalg.matrix_rank(matrix)) == 8


@pytest.mark.slow
def test_one_head_of_a_trained_model_attends_far_and_one_near() -> None:
    """Each answer follows from the symbol one position back and from the key at the start of the line."""
    count, length, due = 5, 19, slice(2, None, 3)

    def lines(rows: int) -> Tensor:
        key = torch.randint(0, count, (rows, 1))
        drawn, other = torch.randint(0, count, (2, rows, length // 3))
        answer = 2 * count + count * drawn + key
        return torch.cat([count + key, torch.stack([drawn, other, answer], -1).flatten(1)], 1)

    sizes = {"width": 64, "heads": 2, "feed_forward": 96, "layers": 1}
    config = DecoderConfig(size=2 * count + count**2, positions="rotary", context=length, dropout=0.0, **sizes)
    model = LanguageModel(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    for _ in range(300):
        text = lines(64)
        optimizer.zero_grad()
        logits = model(text[:, :-1])[:, due].flatten(0, 1)
        nn.functional.cross_entropy(logits, text[:, 1:][:, due].flatten()).backward()
        optimizer.step()
    text = lines(64)
    with qkv.record(model.eval()) as trace, torch.no_grad():
        right = (model(text[:, :-1])[:, due].argmax(-1) == text[:, 1:][:, due]).float().mean()
    weights = trace.weights(trace.layers[0]).mean(0)
    place = torch.arange(length - 1)
    distance = (weights * (place[:, None] - place)).sum(-1)[:, due][:, 1:].mean(-1)
    assert right > 0.95
    assert float(distance.max()) > 3 * float(distance.min())


# Transformers, graphs and images


def test_the_three_attentions_of_a_transformer_see_what_they_may() -> None:
    sizes = {"width": 32, "heads": 2, "feed_forward": 64, "encoder_layers": 1, "decoder_layers": 1}
    model = TransformerTranslator(TransformerConfig(size=20, **sizes)).eval()
    source, target = torch.randint(4, 20, (1, 7)), torch.randint(4, 20, (1, 5))
    with qkv.record(model) as trace:
        model(source, torch.tensor([7]), target)
    own, masked, cross = (
        trace.weights(f"{layer}.attention")[0, 0]
        for layer in ("encoder.0.self_attention", "decoder.0.self_attention", "decoder.0.cross_attention")
    )
    assert own.shape == (7, 7)
    assert cross.shape == (5, 7), "queries of the target, keys of the source"
    assert bool((own > 0).all() and (cross > 0).all())
    assert bool((masked.triu(1) == 0).all())


def test_512_sinusoidal_positions_have_far_fewer_directions() -> None:
    for width in (256, 1024):
        table = qkv.nn.sinusoidal(512, width, dtype=torch.float64)
        singular = torch.linalg.svdvals(table)
        assert int((singular > 1e-6 * singular[0]).sum()) < 200


def test_a_message_goes_one_edge_further_with_each_layer_and_none_to_other_items() -> None:
    adjacency = torch.eye(5, dtype=torch.bool)
    for listener, speaker in ((1, 0), (2, 1), (3, 2), (4, 3), (4, 0)):
        adjacency[listener, speaker] = True
    layers = [qkv.nn.MultiHeadAttention(8, 1) for _ in range(3)]
    x, reach = torch.randn(2, 5, 8), torch.eye(5)
    for count in range(1, 4):
        reach = ((adjacency.float() @ reach) > 0).float()

        def run(x: Tensor, count: int = count) -> Tensor:
            for layer in layers[:count]:
                x = layer(x, mask=adjacency)
            return x

        influence = torch.autograd.functional.jacobian(run, x).square().sum((2, 5)).sqrt()
        assert torch.equal(influence[0, :, 0] > 0, reach.bool())
        assert bool((influence[0, :, 1] == 0).all())


def test_a_non_local_block_sees_every_pixel_and_a_convolution_nine() -> None:
    image = 0.3 * torch.randn(1, 4, 9, 12)
    inputs = image.clone().requires_grad_()
    (slope,) = torch.autograd.grad(nn.Conv2d(4, 4, 3, padding=1)(inputs)[0, :, 2, 2].sum(), inputs)
    assert int((slope[0].abs().sum(0) > 0).sum()) == 9
    for form in get_args(Form):
        block = NonLocalBlock(4, form=form)
        assert torch.equal(block(image), image), "a new block changes nothing"
        with qkv.record(block) as trace:
            block(image)
        (weights,) = (trace.weights(layer)[0] for layer in trace.layers)
        assert weights.shape == (108, 108)
        total = float(weights[26].sum())
        assert (abs(total - 1) < 1e-4) == form.endswith("gaussian"), "1/n makes no distribution"
