"""A decoding session changes no answer: not shared, nested, in two threads, left early or with weights that change."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.contract.changes import WAYS, other
from tests.pairs import in_turn
from torch import Tensor, nn

from qkv.compiled import available
from qkv.decode.beam import Beam, beam
from qkv.decode.ensemble import Ensemble
from qkv.decode.greedy import greedy
from qkv.decode.protocol import Hypothesis, Stepper
from qkv.decode.sampling import Sampling, sample
from qkv.linalg import matmul
from qkv.linalg.packed import PackedWeight
from qkv.linalg.session import DecodingSession
from qkv.models.configs.pointer import PointerConfig
from qkv.models.configs.translator import RecurrentConfig, TransformerConfig
from qkv.models.copying import CopyingTranslator
from qkv.models.pointer import PointerNetwork
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator

SIZE, ROWS, BOS, EOS, LIMIT = 40, 24, 1, 2, 10


PRODUCTS = ("MKL", "oneDNN")


@pytest.fixture(autouse=True, params=PRODUCTS)
def packed_products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight is packed, as on a processor where MKL's products are the fastest, and where oneDNN's are."""
    if available.why_unavailable() is not None:
        pytest.skip("no compiled kernels here")
    if request.param == "oneDNN" and not torch._C._has_mkldnn:
        pytest.skip("PyTorch without oneDNN")
    monkeypatch.setattr(matmul, "_onednn_is_faster", lambda: request.param == "oneDNN")
    monkeypatch.setattr(matmul, "_packed_weight_class", lambda: PackedWeight)
    monkeypatch.setattr(matmul, "_MIN_MULTIPLICATIONS", 1)
    monkeypatch.setattr(matmul, "_MIN_ELEMENTS", 1)
    monkeypatch.setattr(matmul, "_MIN_FOR_PANELS", 2**17)


def transformer(**options: Any) -> TransformerTranslator:
    sizes = {"width": 32, "heads": 4, "feed_forward": 64, "encoder_layers": 2, "decoder_layers": 2}
    return TransformerTranslator(TransformerConfig(size=SIZE, **{**sizes, **options}))


def recurrent(**options: Any) -> RecurrentTranslator:
    return RecurrentTranslator(
        RecurrentConfig(size=SIZE, **{"embedding": 32, "hidden": 32, "attention": 32, **options})
    )


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "transformer": transformer,
    "transformer, norms last": lambda: transformer(norm_first=False, tied=False),
    "transformer, additive": lambda: transformer(score="additive"),
    "gru": recurrent,
    "gru, split": lambda: recurrent(memory="split"),
    "lstm, luong": lambda: recurrent(model="lstm", wiring="luong", score="bilinear"),
    "rnn, dot": lambda: recurrent(model="rnn", score="dot"),
    "no attention": lambda: recurrent(score="none"),
    "copying gru": lambda: CopyingTranslator(recurrent(copy="mixture"), unknown=3),
    "copying transformer": lambda: CopyingTranslator(transformer(copy="joint"), unknown=3),
    "pointer": lambda: PointerNetwork(PointerConfig(features=1, width=32, attention=32)),
}
some = pytest.mark.parametrize(
    ("packed_products", "kind"), in_turn(PRODUCTS, ["transformer", "gru"]), indirect=["packed_products"]
)


def made(kind: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = MAKERS[kind]().eval()
    for parameter in model.parameters():
        # Wider than a fresh model, so that answers differ from row to row.
        nn.init.normal_(parameter, std=0.3)
    return model


def given(kind: str, seed: int = 0) -> tuple[Tensor, Tensor, dict[str, Any]]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 8, (ROWS,), generator=draw)
    lengths[0] = 7
    if kind == "pointer":
        return torch.rand(ROWS, 7, 1, generator=draw), lengths, {"bos": 0, "eos": 0, "limit": LIMIT}
    most = SIZE + 2 if kind.startswith("copying") else SIZE
    source = torch.randint(4, most, (ROWS, 7), generator=draw)
    return source, lengths, {"bos": BOS, "eos": EOS, "limit": LIMIT}


def decoded(
    model: Stepper[Any], kind: str, seed: int, how: str, session: DecodingSession | None = None
) -> list[Hypothesis]:
    source, lengths, marks = given(kind, seed)
    if how == "greedy":
        return greedy(model, source, lengths, session=session, **marks)
    if how == "sample":
        settings = {"sampling": Sampling(seed=3), "keys": torch.arange(ROWS)}
        return sample(model, source, lengths, session=session, **settings, **marks)
    found = beam(model, source, lengths, search=Beam(width=3, n_best=3), session=session, **marks)
    return [one for row in found for one in row]


def same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [one.ids for one in found] == [one.ids for one in expected]
    ours, theirs = (torch.tensor([one.score for one in some]) for some in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


class Plain:
    """A model that is never given a session, nor forked."""

    def __init__(self, model: Any) -> None:
        self.model, self.step, self.select = model, model.step, model.select

    def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> Any:
        return self.model.start(source, lengths)


@pytest.mark.parametrize(
    ("packed_products", "how", "kind"),
    in_turn(PRODUCTS, ("greedy", "beam", "sample"), MAKERS, every=5),
    indirect=["packed_products"],
)
def test_ids_are_those_without_a_session(kind: str, how: str) -> None:
    model = made(kind)
    expected = {seed: decoded(Plain(model), kind, seed, how) for seed in range(2)}
    with DecodingSession() as session:
        for seed in (0, 1, 0):
            same(decoded(model, kind, seed, how), expected[seed])
            same(decoded(model, kind, seed, how, session), expected[seed])
        assert bool(session._stored) == (kind != "pointer")


@pytest.mark.parametrize(
    ("packed_products", "way", "kind"),
    [
        pytest.param(products, way, kind, marks=[] if turn % 8 == 4 * place else pytest.mark.slow)
        for first, way in enumerate(WAYS)
        for turn, kind in enumerate(MAKERS, first)
        for place, products in enumerate(PRODUCTS)
    ],
    indirect=["packed_products"],
)
def test_weights_may_change_in_any_way_between_decodings(kind: str, way: str) -> None:
    """A session that stays open may go by the versions of weights, a new one sees all that has changed.

    In the fast suite each way meets every fourth kind of model, and the next way others.
    """
    model = made(kind)
    for _ in range(2):
        decoded(model, kind, 0, "greedy")
    for parameter in model.parameters():
        WAYS[way](parameter, other(parameter.detach()))
    same(decoded(model, kind, 0, "greedy"), decoded(Plain(model), kind, 0, "greedy"))


@some
def test_several_models_share_a_session(kind: str) -> None:
    """One of them twice, so that what it keeps is used twice in a step."""
    first, second = made(kind), made(kind, seed=1)
    expected = decoded(Ensemble((Plain(first), Plain(second), Plain(first))), kind, 0, "greedy")
    with DecodingSession() as session:
        for _ in range(2):
            same(decoded(Ensemble((first, second, first)), kind, 0, "greedy", session), expected)


@some
@pytest.mark.parametrize("shared", [True, False])
def test_a_decoding_within_a_decoding(kind: str, shared: bool) -> None:
    model = made(kind)
    expected, within = decoded(model, kind, 0, "beam"), decoded(model, kind, 1, "beam")
    inner: list[list[Hypothesis]] = []

    class Nesting(Plain):
        """Decodes another batch in the midst of its second step."""

        def __init__(self, session: DecodingSession) -> None:
            super().__init__(model)
            self.fork, self.regroup, self.session, self.steps = model.fork, model.regroup, session, 0
            self.step = self.stepped

        def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> Any:
            return model.start(source, lengths, session)

        def stepped(self, tokens: Tensor, state: Any) -> Any:
            self.steps += 1
            if self.steps in (2, 5):
                inner.append(decoded(model, kind, 1, "beam", self.session if shared else None))
            return model.step(tokens, state)

    with DecodingSession() as session:
        same(decoded(Nesting(session), kind, 0, "beam", session), expected)
    assert len(inner) == 2
    for found in inner:
        same(found, within)


@some
@pytest.mark.parametrize("shared", [True, False])
def test_two_threads_decode_at_once(kind: str, shared: bool) -> None:
    model = made(kind)
    expected = [decoded(model, kind, seed, "beam") for seed in range(2)]
    found: list[list[list[Hypothesis]]] = [[], []]
    barrier, session = threading.Barrier(2), DecodingSession() if shared else None

    def work(seed: int) -> None:
        torch.set_num_threads(1)
        barrier.wait()
        for _ in range(2):
            found[seed].append(decoded(model, kind, seed, "beam", session))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(2):
        assert len(found[seed]) == 2
        for each in found[seed]:
            same(each, expected[seed])


@some
def test_an_error_in_the_middle_leaves_nothing_behind(kind: str) -> None:
    model = made(kind)
    expected = decoded(model, kind, 0, "greedy")

    class Failing(Plain):
        """Breaks at its third step."""

        def __init__(self) -> None:
            super().__init__(model)
            self.steps, self.step = 0, self.stepped

        def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> Any:
            return model.start(source, lengths, session)

        def stepped(self, tokens: Tensor, state: Any) -> Any:
            self.steps += 1
            if self.steps == 3:
                raise ValueError("broken")
            return model.step(tokens, state)

    with DecodingSession() as session:
        for _ in range(2):
            with pytest.raises(ValueError, match="broken"):
                decoded(Failing(), kind, 1, "greedy", session)
            same(decoded(model, kind, 0, "greedy", session), expected)


@some
@torch.inference_mode()
def test_a_generator_that_is_closed_early_leaves_nothing_behind(kind: str) -> None:
    model, (source, lengths, _) = made(kind), given(kind)
    expected, sessions = decoded(model, kind, 0, "greedy"), []

    def tokens(seed: int) -> Iterator[Tensor]:
        with DecodingSession() as session:
            sessions.append(session)
            state, newest = model.start(*given(kind, seed)[:2], session), torch.full((ROWS,), BOS)
            while True:
                logits, state = model.step(newest, state)
                newest = logits.argmax(-1)
                yield newest

    first, second = tokens(0), tokens(0)
    drawn = [next(first) for _ in range(3)]
    again = [next(second)]
    first.close()
    assert not sessions[0]._stored
    same(greedy(model, source, lengths, bos=BOS, eos=EOS, limit=LIMIT), expected)
    again += [next(second), next(second)]
    assert all(map(torch.equal, drawn, again))
    second.close()
    assert [one.ids[:1] for one in expected if one.ids] == [
        (int(token),) for token, one in zip(drawn[0], expected, strict=True) if one.ids
    ]


@pytest.mark.parametrize(("packed_products", "kind"), in_turn(PRODUCTS, MAKERS), indirect=["packed_products"])
def test_weights_that_change_between_batches_are_those_of_now(kind: str) -> None:
    model = made(kind)
    with DecodingSession() as session:
        for change in range(3):
            with torch.no_grad():
                for number, parameter in enumerate(model.parameters()):
                    if number % 3 == change:
                        parameter.mul_(1.5)
            how = ("greedy", "beam")[change % 2]
            same(decoded(model, kind, 0, how, session), decoded(model, kind, 0, how))


@some
@torch.inference_mode()
def test_weights_that_change_between_steps_are_those_of_now(kind: str) -> None:
    model, (source, lengths, _) = made(kind), given(kind)
    with DecodingSession() as session:
        state, plain = model.start(source, lengths, session), model.start(source, lengths)
        for step in range(12):
            tokens = torch.randint(4, SIZE, (ROWS,))
            if step % 4 == 3:
                for parameter in model.parameters():
                    parameter.mul_(0.9)
            (logits, state), (expected, plain) = model.step(tokens, state), model.step(tokens, plain)
            torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


@some
@torch.inference_mode()
def test_two_futures_of_one_state_do_not_meet(kind: str) -> None:
    model, (source, lengths, _) = made(kind), given(kind)
    tokens = torch.randint(4, SIZE, (6, 2, ROWS))

    def futures(state: Any) -> list[Tensor]:
        for step in range(3):
            _, state = model.step(tokens[step, 0], state)
        states, logits = [state, model.select(state, torch.arange(ROWS - 1, -1, -1))], []
        for step in range(3, 6):
            for which in range(2):
                found, states[which] = model.step(tokens[step, which], states[which])
                logits.append(found)
        return logits

    with DecodingSession() as session:
        found = futures(model.start(source, lengths, session))
        expected = futures(model.start(source, lengths))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@some
@torch.inference_mode()
def test_a_state_outlives_its_session(kind: str) -> None:
    model, (source, lengths, _) = made(kind), given(kind)
    tokens = torch.randint(4, SIZE, (6, ROWS))
    with DecodingSession() as session:
        state = model.start(source, lengths, session)
        assert getattr(state, "inner", state).session is session
        for step in range(3):
            logits, state = model.step(tokens[step], state)
    held = logits.clone()
    decoded(model, kind, 1, "beam")
    assert torch.equal(logits, held)
    plain = model.start(source, lengths)
    for step in range(6):
        expected, plain = model.step(tokens[step], plain)
    for step in range(3, 6):
        logits, state = model.step(tokens[step], state)
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-4)
