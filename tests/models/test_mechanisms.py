"""Every score under every normalizer in every model: built from settings, trained for a step, kept, decoded."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from tests.pairs import in_turn
from torch import Tensor, nn

from qkv.checkpoint.tensors import pack, unpack
from qkv.errors import ConfigError
from qkv.linalg.session import DecodingSession
from qkv.models.configs.language_model import DecoderConfig, RecurrentDecoderConfig
from qkv.models.configs.reader import ClassifierConfig, ReaderConfig
from qkv.models.configs.translator import RecurrentConfig, TransformerConfig
from qkv.models.language_model import LanguageModel
from qkv.models.reader import TextClassifier, TextTagger
from qkv.models.recurrent_language_model import RecurrentLanguageModel
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator
from qkv.nn.attention import Attention
from qkv.nn.first_batch import start_from_first_batch
from qkv.nn.mechanism import MechanismConfig
from qkv.normalizers.catalog import NORMALIZERS
from qkv.scores.catalog import SCORES

SIZE = 11
SOURCE, LENGTHS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0], [4, 6, 0, 0, 0]]), torch.tensor([5, 3, 2])
TARGET = torch.tensor([[1, 5, 7, 9, 4], [1, 3, 3, 8, 6], [1, 10, 9, 8, 7]])
KERNELS = {"gaussian", "boxcar", "epanechnikov", "triangular"}
NON_NEGATIVE = {*KERNELS, "uniform", "nonlocal_concat"}
ROTATED = {"scaled_dot", "dot", "cosine", "bilinear", "squared_distance", *KERNELS}


def translator(**settings: Any) -> nn.Module:
    small = {"size": SIZE, "embedding": 8, "hidden": 8, "attention": 4, "encoder_heads": 2, "dropout": 0.0}
    return RecurrentTranslator(RecurrentConfig(**{**small, **settings}))


def transformer(**settings: Any) -> nn.Module:
    small = {"size": SIZE, "width": 8, "heads": 2, "feed_forward": 8, "dropout": 0.0}
    return TransformerTranslator(TransformerConfig(**{**small, "encoder_layers": 1, "decoder_layers": 1, **settings}))


def language(**settings: Any) -> nn.Module:
    small = {"size": SIZE, "width": 8, "heads": 2, "feed_forward": 8, "layers": 1, "context": 8, "dropout": 0.0}
    return LanguageModel(DecoderConfig(**{**small, **settings}))


def recurrent_language(**settings: Any) -> nn.Module:
    small = {"size": SIZE, "width": 8, "heads": 2, "layers": 2, "context": 8, "dropout": 0.0}
    return RecurrentLanguageModel(RecurrentDecoderConfig(**{**small, **settings}))


def reader(kind: type, **settings: Any) -> nn.Module:
    small = {"size": SIZE, "labels": 3, "width": 8, "feed_forward": 8, "dropout": 0.0, "word_dropout": 0.0}
    config = ClassifierConfig if kind is TextClassifier else ReaderConfig
    model: nn.Module = kind(config(**{**small, **settings}))
    return model


class Kind(NamedTuple):
    """A model, and the settings with which it is tested."""

    make: Callable[..., nn.Module]
    settings: Mapping[str, Any]


KINDS: Mapping[str, Kind] = {
    "bahdanau": Kind(translator, {}),
    "luong-heads-split": Kind(translator, {"wiring": "luong", "heads": 2, "memory": "split", "model": "rnn"}),
    "lstm-deep": Kind(translator, {"model": "lstm", "encoder_layers": 2, "decoder_layers": 2, "heads": 2}),
    "transformer": Kind(transformer, {}),
    "transformer-gru": Kind(translator, {"encoder": "transformer", "memory": "split", "window": 1}),
    "transformer-rotary-window": Kind(transformer, {"positions": "rotary", "window": 2}),
    "transformer-relative": Kind(transformer, {"positions": "relative"}),
    "transformer-alibi": Kind(transformer, {"positions": "alibi"}),
    "gru-transformer-window": Kind(transformer, {"encoder": "gru", "window": 2, "positions": "none"}),
    "generate": Kind(language, {"key_heads": 1}),
    "generate-lstm-window": Kind(recurrent_language, {"model": "lstm", "window": 2}),
    "classify": Kind(lambda **settings: reader(TextClassifier, **settings), {"model": "gru"}),
    "classify-transformer": Kind(lambda **settings: reader(TextClassifier, **settings), {"model": "transformer"}),
    "tag": Kind(lambda **settings: reader(TextTagger, **settings), {"model": "transformer", "window": 1}),
}


def scores_of(model: nn.Module, target: Tensor = TARGET) -> Tensor:
    match model:
        case LanguageModel() | RecurrentLanguageModel():
            found: Tensor = model(target)
        case TextClassifier():
            found = model(SOURCE, LENGTHS)
        case TextTagger():
            found = model(SOURCE, LENGTHS, torch.tensor([[0, 2], [0, 1], [0, 1]]))
        case _:
            found = model(SOURCE, LENGTHS, target)
    return found


def step_by_step(model: nn.Module) -> Tensor | None:
    """The scores of one token at a time; None for models that write nothing."""
    if isinstance(model, LanguageModel | RecurrentLanguageModel):
        scores, state = model.read(TARGET[:, :1])
        parts = [scores[:, 0]]
        for tokens in TARGET[:, 1:].unbind(1):
            scores_BN, state = model.step(tokens, state)
            parts.append(scores_BN)
        return torch.stack(parts, 1)
    if isinstance(model, RecurrentTranslator | TransformerTranslator):
        with DecodingSession() as session:
            memory: Any = model.start(SOURCE, LENGTHS, session)
            parts = []
            for tokens in TARGET.unbind(1):
                scores_BN, memory = model.step(tokens, memory)
                parts.append(scores_BN)
        return torch.stack(parts, 1)
    return None


def side_by_side(model: Any) -> tuple[Tensor, Tensor]:
    """The scores of forked futures of each source, and of the same futures alone."""
    rows, width = torch.arange(3), 2
    first = torch.full((3,), 1)
    _, state = model.step(first, model.start(SOURCE, LENGTHS))
    forked = model.fork(state, rows, width)
    source, lengths = SOURCE.repeat_interleave(width, 0), LENGTHS.repeat_interleave(width)
    futures = torch.tensor([[3, 4, 5], [6, 7, 8], [9, 10, 3], [4, 5, 6], [7, 8, 9], [10, 3, 4]])
    for tokens in futures.unbind(1):
        scores, forked = model.step(tokens, forked)
    alone = model(source, lengths, torch.cat([torch.ones(6, 1, dtype=torch.int64), futures], 1))
    return scores, alone[:, -1]


def built(kind: str, score: str, normalizer: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = KINDS[kind].make(score=score, normalizer=normalizer, **KINDS[kind].settings)
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():  # a language model's blocks start as identities
            nn.init.normal_(parameter, std=0.3)
    start_from_first_batch(model, lambda: scores_of(model))
    return model


FIRST = ("bahdanau", "transformer", "generate", "classify")


LEARNED = {"normalizer": "entmax", "alpha": "learned"}


def legal(score: str, kind: str | None = None) -> list[str]:
    """The normalizers that a score can have, beside the positions of a kind of model if one is given."""
    positions = None if kind is None else KINDS[kind].settings.get("positions")
    if positions == "rotary" and score not in ROTATED:
        return []
    summed = score in NON_NEGATIVE and positions not in ("alibi", "relative")
    return [name for name in NORMALIZERS if name != "sum" or summed]


@pytest.mark.parametrize(
    ("every", "kind", "score"),
    [
        pytest.param(every, kind, score, marks=pytest.mark.slow if every == 3 or (turn + place) % 2 else ())
        for every in (9, 3)
        for turn, kind in enumerate(KINDS)
        for place, score in enumerate(SCORES)
        if legal(score, kind)
    ],
)
def test_a_score_learns_under_every_normalizer(kind: str, score: str, every: int) -> None:
    """All of them in the first model of each task; in variants of it every third or ninth one, others in each.

    In the fast suite a third of all in those first models too, of every second score, and of the others in the next.
    """
    turn, found = list(KINDS).index(kind) + list(SCORES).index(score), legal(score, kind)
    step = every // 3 if kind in FIRST else every
    for normalizer in found[turn % step :: step]:
        silent = normalizer == "hard" or score in ("boxcar", "uniform")
        # A draw of the relu's vectors can leave all pairs below 0; others do not.
        assert any(learns(kind, score, normalizer, seed) for seed in range(1 if silent else 8)) != silent, normalizer


def learns(kind: str, score: str, normalizer: str, seed: int) -> bool:
    """Whether the scores get a gradient; all gradients must be finite."""
    model, compared = built(kind, score, normalizer, seed), list[Tensor]()
    for layer in attentions(model):
        layer.register_forward_pre_hook(noted(compared))
    scores_of(model).float().log_softmax(-1)[..., 2].mean().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients), normalizer
    return any(side.grad is not None and bool(side.grad.any()) for side in compared)


@pytest.mark.parametrize(
    ("kind", "score"),
    [case for case in in_turn(KINDS, SCORES, every=3) if legal(case.values[1], case.values[0])],
)
@torch.no_grad()
def test_steps_and_futures_side_by_side_give_the_scores_of_one_pass(kind: str, score: str) -> None:
    """Each kind of model with each score; the normalizers take turns, so that each one meets each kind."""
    turn, found = list(SCORES).index(score) + list(KINDS).index(kind), legal(score, kind)
    model = built(kind, score, found[turn % len(found)]).double().eval()
    stepped = step_by_step(model)
    if stepped is not None:
        torch.testing.assert_close(stepped, scores_of(model), rtol=1e-9, atol=1e-10)
    if isinstance(model, RecurrentTranslator | TransformerTranslator):
        torch.testing.assert_close(*side_by_side(model), rtol=1e-9, atol=1e-10)


PLACED: list[dict[str, Any]] = [
    {"positions": positions, "window": window, "decoder_layers": 2}
    for positions in ("sinusoidal", "rotary", "alibi", "relative", "none")
    for window in (None, 2)
]


@pytest.mark.parametrize("settings", PLACED, ids=str)
@torch.no_grad()
def test_futures_that_are_dropped_and_parted_again_have_their_own_positions(settings: dict[str, Any]) -> None:
    """As in a beam, whose keys stay side by side when others continue."""
    torch.manual_seed(0)
    model: Any = transformer(**settings).double().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("positions.table"):
            nn.init.normal_(parameter)
    torch.testing.assert_close(step_by_step(model), scores_of(model), rtol=1e-9, atol=1e-10)
    with DecodingSession() as session:
        state = model.start(SOURCE, LENGTHS, session)
        for tokens in TARGET[:, :2].unbind(1):
            _, state = model.step(tokens, state)
        state = model.fork(state, torch.arange(3), 2)
        futures = TARGET[:, :2].repeat_interleave(2, 0)
        rows = torch.arange(6)
        for kept in ([0, 1, 2, 3, 4, 5], [1, 1, 2, 3, 5, 4], [1, 0, 5, 5]):
            state, futures, rows = model.regroup(state, torch.tensor(kept)), futures[kept], rows[kept]
            tokens = torch.arange(len(kept)) % (SIZE - 3) + 3
            scores, state = model.step(tokens, state)
            futures = torch.cat([futures, tokens[:, None]], 1)
    alone = model(SOURCE[rows // 2], LENGTHS[rows // 2], futures)
    torch.testing.assert_close(scores, alone[:, -1], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "alibi", "relative", "none"])
def test_a_transformer_encoder_before_a_recurrent_decoder_has_its_own_mechanism(positions: str) -> None:
    torch.manual_seed(0)
    own: dict[str, Any] = {"encoder": "transformer", "encoder_score": "cosine", "encoder_normalizer": "entmax"}
    model = translator(**own, positions=positions, window=1).double().eval()
    usual = translator(encoder="transformer", window=1).double().eval()
    usual.load_state_dict(model.state_dict(), strict=False)
    assert not torch.allclose(scores_of(model), scores_of(usual))
    scores_of(model).log_softmax(-1)[..., 2].mean().backward()
    assert all(weight.grad is not None and bool(weight.grad.isfinite().all()) for weight in model.parameters())
    with torch.no_grad():
        torch.testing.assert_close(step_by_step(model), scores_of(model), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(*side_by_side(model), rtol=1e-9, atol=1e-10)


LOCATED: list[dict[str, Any]] = [
    {},
    {"wiring": "luong", "model": "rnn", "memory": "split"},
    {"model": "lstm", "encoder_layers": 2, "decoder_layers": 2},
    {"encoder": "transformer"},
    {"heads": 2},
]


@pytest.mark.parametrize(
    ("how", "settings"),
    in_turn([*({"normalizer": each} for each in legal("location")), {"sinks": True}, LEARNED], LOCATED),
    ids=str,
)
def test_a_location_sensitive_score_has_every_normalizer_and_decoder(
    settings: dict[str, Any], how: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    model = translator(score="location", **how, **settings).double().eval()
    found = scores_of(model)
    with torch.no_grad():
        stepped = step_by_step(model)
        torch.testing.assert_close(*side_by_side(model), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(stepped, found.detach(), rtol=1e-9, atol=1e-10)
    found.log_softmax(-1)[..., 2].mean().backward()
    filters = model.get_parameter("score.filters").grad
    assert (filters is not None and bool(filters.any())) != (how.get("normalizer") == "hard")


def attentions(model: nn.Module) -> list[Attention]:
    """The attentions that have the mechanism: not those of an encoder before a recurrent decoder."""
    apart = "encoder." if isinstance(model, RecurrentTranslator) else "\0"
    found = [layer for name, layer in model.named_modules() if not name.startswith(apart)]
    return [layer for layer in found if isinstance(layer, Attention)]


def noted(compared: list[Tensor]) -> Callable[..., None]:
    """A hook that keeps the queries and keys of an attention, and their gradients."""

    def keep(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        for side in given[:2]:
            if side.requires_grad and side is not given[2]:
                side.retain_grad()
                compared.append(side)

    return keep


KEPT: list[dict[str, Any]] = [
    {"score": "additive"},
    {"score": "cosine", "normalizer": "entmax", "alpha": "learned"},
    {"score": "dot", "sinks": True},
    {"score": "gaussian", "bandwidth": 3.0},
    {"score": "gaussian", "bandwidth": 3.0, "normalizer": "softmax"},
    {"score": "epanechnikov", "power": 3.0},
    {"score": "epanechnikov", "power": 3.0, "normalizer": "softmax"},
    {"score": "learned", "normalizer": "sparsemax"},
]


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        pytest.param(
            settings,
            kind,
            id="-".join(f"{item}" for item in (*settings.values(), kind)),
            marks=[pytest.mark.slow] * ((turn + place) % 3 > 0),
        )
        for turn, settings in enumerate(KEPT)
        for place, kind in enumerate(KINDS)
        if MechanismConfig(**settings).normalizer in legal(settings["score"], kind)
    ],
)
def test_weights_that_are_read_again_give_the_same_bits(settings: dict[str, Any], kind: str) -> None:
    made = KINDS[kind].make
    torch.manual_seed(0)
    model = made(**{**KINDS[kind].settings, **settings})
    start_from_first_batch(model, lambda: scores_of(model))
    data, tied = pack(model.state_dict(), "weights")
    other = made(**{**KINDS[kind].settings, **settings})
    other.load_state_dict(unpack(data, tied, "weights"))
    assert torch.equal(scores_of(other.eval()), scores_of(model.eval()))


def illegal() -> Iterator[tuple[dict[str, Any], str]]:
    for score in SCORES:
        if score not in NON_NEGATIVE:
            yield {"score": score, "normalizer": "sum"}, "normalizer"
        if score not in {*KERNELS, "squared_distance"}:
            yield {"score": score, "bandwidth": 2.0}, "bandwidth"
        if score != "epanechnikov":
            yield {"score": score, "power": 1.0}, "power"
    for normalizer in NORMALIZERS:
        if normalizer != "entmax":
            yield {"score": "uniform", "normalizer": normalizer, "alpha": 1.5}, "alpha"
        if normalizer != "softmax":
            yield {"score": "uniform", "normalizer": normalizer, "sinks": True}, "sinks"
    for name, score in (("alpha", "dot"), ("bandwidth", "gaussian"), ("power", "epanechnikov")):
        for number in (-1.0, 0.0, float("inf"), float("nan")):
            yield {"score": score, "normalizer": "entmax" if name == "alpha" else None, name: number}, name
    yield {"score": "concat"}, "additive or nonlocal-concat"
    yield {"score": "lokation"}, 'Did you mean "location"'
    yield {"score": "aditive"}, 'Did you mean "additive"'
    yield {"score": "trianglar"}, 'Did you mean "triangular"'
    yield {"normalizer": "softmx"}, 'Did you mean "softmax"'
    yield {"normalizer": "entmax", "alpha": "learnt"}, 'alpha: expected a finite number above 1 or "learned"'


@pytest.mark.parametrize(("settings", "words"), list(illegal()))
def test_what_has_no_meaning_is_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        MechanismConfig(**settings)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("mlp", "additive"),
        ("Bahdanau", "additive"),
        ("general", "bilinear"),
        ("multiplicative", "bilinear"),
        ("scaled-dot", "scaled_dot"),
        ("nonlocal-concat", "nonlocal_concat"),
        ("squared-distance", "squared_distance"),
    ],
)
def test_a_score_has_the_names_of_the_literature(typed: str, name: str) -> None:
    assert MechanismConfig(score=typed) == MechanismConfig(score=name)


def test_a_kernel_that_sees_nothing_says_what_to_change() -> None:
    torch.manual_seed(0)
    model = transformer(score="epanechnikov", bandwidth=1e-3)
    with pytest.raises(ConfigError, match=r"bandwidth: .*none in .*, where queries and keys lie [\d.]+ apart"):
        start_from_first_batch(model, lambda: scores_of(model))


def test_a_bandwidth_starts_from_the_median_distance() -> None:
    torch.manual_seed(0)
    model = language(score="squared_distance", width=64, positions="none")
    start_from_first_batch(model, lambda: scores_of(model))
    layer = model.blocks[0].self_attention  # type: ignore[index, union-attr]
    seen: list[Tensor] = []
    hook = layer.attention.register_forward_pre_hook(lambda _, given: seen.extend(given[:2]))
    scores_of(model)
    hook.remove()
    causal = torch.ones(5, 5).tril().bool()
    expected = torch.cdist(seen[0], seen[1])[..., causal].median()
    torch.testing.assert_close(layer.score.value().bandwidth, expected.expand(2), rtol=1e-3, atol=0)


def unsuited() -> Iterator[tuple[str, dict[str, Any], str]]:
    """Every score and normalizer beside positions that do not suit them."""
    for kind, score in product(KINDS, SCORES):
        for normalizer in legal(score):
            if normalizer not in legal(score, kind):
                yield kind, {"score": score, "normalizer": normalizer}, "positions: expected sinusoidal"


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        *unsuited(),
        ("bahdanau", {"score": "none", "heads": 2}, "heads: expected 1 without attention"),
        ("bahdanau", {"score": "none", "normalizer": "hard"}, "normalizer"),
        ("bahdanau", {"score": "location", "normalizer": "sum"}, "normalizer"),
        ("transformer", {"score": "location"}, "only recurrent decoders"),
        ("transformer", {"cross_score": "location"}, "only recurrent decoders"),
        ("generate-lstm-window", {"score": "location"}, "only recurrent decoders of qkv train translate"),
        ("classify", {"score": "location"}, "only recurrent decoders"),
        ("bahdanau", {"window": 3}, "window: expected no such setting of a recurrent encoder"),
        ("bahdanau", {"heads": 3}, "heads: expected a divisor of hidden"),
        ("bahdanau", {"encoder": "grv"}, 'Did you mean "gru"'),
        ("transformer-gru", {"encoder_heads": 3}, "encoder_heads: expected a divisor of embedding"),
        ("transformer", {"score": "none"}, "a Transformer is attention"),
        ("transformer", {"cross_score": "none"}, "a Transformer is attention"),
        ("transformer", {"cross_normalizer": "sum"}, "cross_normalizer"),
        ("transformer", {"cross_score": "aditive"}, "cross_score: expected the name of a score"),
        ("transformer", {"score": "additive", "positions": "rotary"}, "positions: expected sinusoidal"),
        ("transformer", {"positions": "learned"}, "use relative, whose distances are learned too"),
        ("classify-transformer", {"positions": "learned"}, "use relative, whose distances are learned too"),
        ("transformer-gru", {"encoder_score": "location"}, "encoder_score"),
        ("transformer-gru", {"encoder_score": "gaussian", "positions": "alibi"}, "positions"),
        ("bahdanau", {"encoder_score": "dot"}, "encoder_score: expected no such setting of a recurrent encoder"),
        ("bahdanau", {"positions": "rotary"}, "positions: expected no such setting of a recurrent encoder"),
        ("gru-transformer-window", {"width": 15, "heads": 3}, "width: expected an even width"),
        ("generate", {"score": "additive", "positions": "rotary"}, "positions: expected sinusoidal"),
        ("generate", {"score": "gaussian", "positions": "alibi"}, "positions: expected sinusoidal"),
        ("classify", {"window": 2}, "window: expected a Transformer"),
        ("classify", {"positions": "rotary"}, "positions: expected a Transformer"),
        ("classify", {"pool": "mean", "score": "dot"}, "score: expected the default beside a mean"),
    ],
)
def test_a_model_refuses_what_it_lacks(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        KINDS[name].make(**{**KINDS[name].settings, **settings})
    assert words in str(raised.value)


def test_the_attention_to_the_source_can_be_another_one() -> None:
    config = TransformerConfig(
        size=SIZE, score="gaussian", bandwidth=2.0, cross_score="dot", cross_normalizer="sparsemax"
    )
    assert config.cross == MechanismConfig(score="dot", normalizer="sparsemax")
    assert TransformerConfig(size=SIZE, score="gaussian", cross_normalizer="softmax").cross.score == "gaussian"
    assert TransformerConfig(size=SIZE, score="gaussian", cross_score="dot").cross.normalizer == "softmax"
    assert TransformerConfig(size=SIZE, normalizer="hard", cross_score="dot").cross.normalizer == "hard"
