"""A module is read as plain weights only if nobody could tell.

Every model, every module with parameters of its own: hooks, adapters (LoRA), parametrizations, quantization and modules
put in its place act in training, evaluation and decoding, or are refused by name.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

import pytest
import torch
from tests.contract.calls import by_part
from tests.pairs import fast
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import PackedSequence

from qkv.compiled import available
from qkv.decode.beam import Beam, beam
from qkv.decode.greedy import greedy
from qkv.decode.prompted import Prompted
from qkv.errors import QkvError
from qkv.linalg import matmul
from qkv.linalg.session import DecodingSession
from qkv.models.configs.language_model import DecoderConfig, RecurrentDecoderConfig
from qkv.models.configs.pointer import PointerConfig
from qkv.models.configs.reader import ClassifierConfig
from qkv.models.configs.translator import MonotonicConfig, RecurrentConfig, TransformerConfig
from qkv.models.copying import CopyingTranslator
from qkv.models.language_model import LanguageModel
from qkv.models.monotonic import MonotonicTranslator
from qkv.models.parts import PositionParts, TransformerParts
from qkv.models.pointer import PointerNetwork
from qkv.models.reader import MaskedLanguageModel, TextClassifier, TextTagger
from qkv.models.recurrent_language_model import RecurrentLanguageModel
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator
from qkv.nn.biases import BiasModule
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.non_local import NonLocalBlock
from qkv.nn.normalizers import SinkSoftmax
from qkv.nn.norms import NormParts
from qkv.nn.recurrent.lower import RecurrentSelfAttention

SIZE, ROWS, LENGTH, STEPS = 12, 3, 5, 3


class Inputs(NamedTuple):
    """What a model takes, and how it decodes: not at all, or from a source with a begin mark."""

    forward: tuple[Any, ...]
    decode: tuple[Tensor, Tensor, int] | None = None


def transformer(**options: Any) -> TransformerTranslator:
    sizes = {"width": 8, "heads": 2, "feed_forward": 12, "encoder_layers": 1, "decoder_layers": 2}
    return TransformerTranslator(TransformerConfig(size=SIZE, **{**sizes, "dropout": 0.0, **options}))


def recurrent(**options: Any) -> RecurrentTranslator:
    sizes = {"embedding": 8, "hidden": 8, "attention": 6, "dropout": 0.0}
    return RecurrentTranslator(RecurrentConfig(size=SIZE, **{**sizes, **options}))


def monotonic(**options: Any) -> MonotonicTranslator:
    return MonotonicTranslator(MonotonicConfig(size=SIZE, embedding=8, hidden=8, attention=6, dropout=0.0, **options))


def decoder(**options: Any) -> LanguageModel:
    sizes = {"width": 8, "heads": 2, "feed_forward": 12, "layers": 1, "dropout": 0.0, "context": 16}
    return LanguageModel(DecoderConfig(size=SIZE, **{**sizes, **options}))


def reader(**options: Any) -> ClassifierConfig:
    sizes = {"width": 8, "feed_forward": 12, "dropout": 0.0, "word_dropout": 0.0}
    return ClassifierConfig(size=SIZE, labels=3, **{**sizes, **options})


def stack(**options: Any) -> TransformerParts:
    return TransformerParts(SIZE, 8, 2, options.pop("key_heads", 2), 4, 12, 1, context=16, **options)


def pointer(**options: Any) -> PointerNetwork:
    return PointerNetwork(PointerConfig(width=8, attention=6, dropout=0.0, **{"features": 2, **options}))


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "transformer": transformer,
    "transformer, norms last, not tied": lambda: transformer(norm_first=False, tied=False, source_size=SIZE),
    "transformer, additive, relative": lambda: transformer(score="additive", positions="relative"),
    "transformer, bilinear, sinks, rotary": lambda: transformer(cross_score="bilinear", sinks=True, positions="rotary"),
    "transformer, features": lambda: transformer(features_mark=5),
    "transformer over a gru": lambda: transformer(encoder="gru"),
    "recurrent": recurrent,
    "recurrent, two layers of lstm": lambda: recurrent(model="lstm", decoder_layers=2, encoder_layers=2, tied=False),
    "recurrent, luong, dot": lambda: recurrent(model="rnn", wiring="luong", score="dot"),
    "recurrent, bilinear, sinks": lambda: recurrent(score="bilinear", sinks=True),
    "recurrent, two heads": lambda: recurrent(heads=2, score="cosine"),
    "recurrent, location": lambda: recurrent(score="location"),
    "recurrent, located heads": lambda: recurrent(score="location", heads=2),
    "recurrent, features": lambda: recurrent(features_mark=5),
    "recurrent over a transformer": lambda: recurrent(encoder="transformer", encoder_heads=2),
    "copying, mixture": lambda: CopyingTranslator(recurrent(copy="mixture"), unknown=3),
    "copying, joint": lambda: CopyingTranslator(transformer(copy="joint"), unknown=3),
    "monotonic": lambda: monotonic(score="additive"),
    "monotonic, dot": lambda: monotonic(score="dot"),
    "monotonic, jumps": lambda: monotonic(alignment="monotonic-1", source_size=SIZE),
    "pointer": pointer,
    "pointer, transformer": lambda: pointer(model="transformer", heads=2, score="squared_distance"),
    "pointer, words": lambda: pointer(elements="words", features=SIZE, model="gru", score="bilinear"),
    "language model": decoder,
    "language model, relative": lambda: decoder(positions="relative", key_heads=1, tied=False),
    "language model, learned, kernel": lambda: decoder(positions="learned", score="gaussian"),
    "recurrent language model": lambda: RecurrentLanguageModel(
        RecurrentDecoderConfig(size=SIZE, width=8, heads=2, layers=2, dropout=0.0)
    ),
    "classifier": lambda: TextClassifier(reader(wide=16)),
    "classifier, transformer": lambda: TextClassifier(reader(model="transformer", score="bilinear")),
    "tagger": lambda: TextTagger(reader(model="lstm", layers=2)),
    "published decoder": lambda: LanguageModel(stack(gated=True, key_heads=1, norms=NormParts("rms", heads=True))),
    "published decoder, parallel": lambda: LanguageModel(
        stack(norms=NormParts(place="parallel"), positions=PositionParts("rotary"), tied=False)
    ),
    "published pair": lambda: TransformerTranslator(stack(decoder_layers=1, positions=PositionParts("buckets"))),
    "published pair, two embeddings": lambda: TransformerTranslator(
        stack(decoder_layers=1, positions=PositionParts("halves"), source_size=SIZE, output_bias=True)
    ),
    "published encoder": lambda: MaskedLanguageModel(
        stack(kinds=2, masked_head=True, norms=NormParts(place="after", embedding=True))
    ),
    "published classifier": lambda: TextClassifier(
        stack(labels=3, pooler="tanh", tied=False, positions=PositionParts())
    ),
    "layer": lambda: MultiHeadAttention(8, 2, key_width=6, normalizer=SinkSoftmax(2)),
    "layer, additive, grouped": lambda: MultiHeadAttention(8, 4, key_heads=2, score="additive", key_width=6),
    "non-local": lambda: NonLocalBlock(8, form="concat"),
    "over the layer below": lambda: RecurrentSelfAttention(8, 8),
}
FAST = ("transformer", "copying, mixture", "language model", "published encoder", "layer")
"""A sample of all kinds of layers: a recurrent translator copies."""
FEW = ("copying, mixture", "language model")
"""With decoders of both kinds, for what the tests of other changes would miss only in part."""
a_few_models = pytest.mark.parametrize("kind", fast(MAKERS, *FEW))
every_model = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in FAST else pytest.mark.slow) for kind in MAKERS]
)


@pytest.fixture(autouse=True)
def _packing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let small products be packed and fused as large ones are, where this machine can do that at all."""
    if torch._C._has_mkldnn and available.why_unavailable() is None:
        monkeypatch.setattr(matmul, "_onednn_is_faster", lambda: True)
        monkeypatch.setattr(matmul, "_MIN_MULTIPLICATIONS", 1)
    with warnings.catch_warnings():
        # PyTorch's own quantization and peft's hints about tied weights.
        warnings.simplefilter("ignore")
        yield


def made(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = MAKERS[kind]()
    for parameter in model.parameters():
        # Wider than a fresh model, and nothing at zero: every parameter counts.
        nn.init.normal_(parameter, std=0.5)
    return model


def inputs(model: nn.Module) -> Inputs:  # noqa: PLR0911 - one case for each kind of model
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(6, SIZE, (ROWS, LENGTH), generator=draw)
    lengths = torch.tensor([LENGTH, LENGTH, 4])
    floats = torch.randn(ROWS, LENGTH, 8, generator=draw)
    config: Any = getattr(model, "config", None)
    match model:
        case PointerNetwork():
            source = ids if config.elements == "words" else torch.rand(ROWS, LENGTH, 2, generator=draw)
            return Inputs((source, lengths, torch.tensor([[0, 1], [0, 2], [0, 1]])), (source, lengths, 0))
        case TransformerTranslator() | RecurrentTranslator() | CopyingTranslator() | MonotonicTranslator():
            if config.__dict__.get("features_mark") is not None:
                ids[:, 2] = config.features_mark
            return Inputs((ids, lengths, ids[:, :4].flip(0)), (ids, lengths, 1))
        case LanguageModel() | RecurrentLanguageModel():
            return Inputs((ids,))
        case TextClassifier():
            features = (ids, lengths) if model.buckets else ()
            return Inputs((ids, lengths, *features))
        case TextTagger():
            return Inputs((ids, lengths, ids[:, :2] % 2))
        case MaskedLanguageModel():
            return Inputs((ids, lengths))
        case MultiHeadAttention():
            return Inputs((floats, torch.randn(ROWS, 4, 6, generator=draw)))
        case NonLocalBlock():
            return Inputs((floats.mT,))
    return Inputs((floats,))


def forward(model: nn.Module) -> Tensor:
    output: Tensor = model(*inputs(model).forward)
    return torch.where(output.isfinite(), output, 0)


def in_steps(model: Any) -> Tensor:
    """Read a text in two parts, with a state between them."""
    (ids,) = inputs(model).forward
    first, state = model.read(ids[:, :3])
    return torch.cat([first, model.read(ids[:, 3:], state)[0]], 1)


def padded(model: LanguageModel) -> Tensor:
    """Read texts of different lengths, with padding at the left."""
    (ids,), padding = inputs(model).forward, torch.tensor([0, 1, 3])
    return torch.where(torch.arange(LENGTH)[:, None] >= padding[:, None, None], model(ids, padding), 0)


def stepwise(model: Any, given: Inputs) -> Tensor:
    """Return the scores of given tokens, one step after the other in a session, all of them different."""
    assert given.decode is not None
    source, lengths, begin = given.decode
    with DecodingSession() as session:
        state, scores = model.start(source, lengths, session), []
        for token in range(begin, STEPS):
            logits, state = model.step(torch.full((len(source),), token), state)
            scores.append(torch.where(logits.isfinite(), logits, 0).flatten())
    return torch.cat(scores)


def learned(model: nn.Module) -> Tensor:
    """Return the output in training, after a backward pass."""
    output = forward(model.train())
    model.zero_grad()
    output.square().sum().backward()
    return output.detach()


def evaluated(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return forward(model.eval())


def decoded(model: nn.Module) -> Tensor:
    """Return what greedy and beam search find, as numbers; of a language model its answers with a cache."""
    given, found = inputs(model), []
    with torch.inference_mode():
        if given.decode is None:
            if isinstance(model, LanguageModel):
                return torch.cat([in_steps(model.eval()), padded(model)])
            return in_steps(model.eval()) if hasattr(model, "read") else evaluated(model)
        source, lengths, begin = given.decode
        how: dict[str, Any] = {"bos": begin, "eos": 0, "limit": STEPS}
        found += greedy(model.eval(), source, lengths, **how)  # type: ignore[arg-type]
        for row in beam(model, source, lengths, search=Beam(2, 2), **how):  # type: ignore[type-var]
            found += row
        return torch.cat([torch.tensor([hypothesis.score for hypothesis in found]), stepwise(model, given)])


MODES: dict[str, Callable[[nn.Module], Tensor]] = {"training": learned, "evaluation": evaluated, "decoding": decoded}


def places(model: nn.Module) -> list[str]:
    """Return the names of the modules with parameters of their own; of those inside of a model, which are called."""
    return [name for name, module in model.named_modules() if name and module._parameters]


def noise(x: Any) -> Any:
    """Change what a module takes or returns, in a way that no softmax hides."""
    if isinstance(x, PackedSequence):
        return x._replace(data=noise(x.data))
    if isinstance(x, tuple):
        parts = [noise(part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    draw = torch.Generator().manual_seed(2)
    return x + torch.rand(x.shape, generator=draw, dtype=x.dtype)


@final
class Wrapped(nn.Module):
    """A user's module around another one, without its attributes."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return noise(self.module(*inputs, **options))


@final
class Noised(nn.Module):
    """A parametrization: the parameter, and noise."""

    def forward(self, x: Tensor) -> Tensor:
        return noise(x)  # type: ignore[no-any-return]


Change = Callable[[nn.Module], Callable[[], None]]
"""Changes a module, and returns what undoes the change."""


def unless_refused(module: nn.Module, run: Callable[[nn.Module], Tensor], model: nn.Module) -> Tensor | None:
    """Return what a model answers; None if it refuses with an error that names the class of a module.

    Where the module is `Wrapped`, the error may also name what is inside.
    """
    named = (module, module.module) if isinstance(module, Wrapped) else (module,)
    try:
        return run(model)
    except QkvError as error:
        if not any(type(each).__name__ in str(error) for each in named):
            raise
        return None


def refused_or_seen(model: nn.Module, module: nn.Module, mode: str, before: Tensor) -> None:
    """Expect another answer than before, or an error that names the module's class."""
    after = unless_refused(module, MODES[mode], model)
    if after is not None:
        assert after.shape != before.shape or not torch.allclose(after, before), (type(module).__name__, mode)


def modes_of(turn: int, whole: bool) -> list[str]:
    """Return every mode, or in the fast suite one in turn."""
    return list(MODES) if whole else [list(MODES)[turn % len(MODES)]]


def expect_effect(kind: str, change: Change, whole: bool) -> None:
    """Expect a change of each module of a model to be seen in its modes, and gone when it is undone."""
    model = made(kind)
    before = {mode: run(model) for mode, run in MODES.items()}
    for turn, name in enumerate(places(model)):
        for mode in modes_of(turn, whole):
            module = model.get_submodule(name)
            undo = change(module)
            refused_or_seen(model, module, mode, before[mode])
            undo()
    for mode, run in MODES.items():
        torch.testing.assert_close(run(model), before[mode], rtol=1e-4, atol=1e-4)


@by_part
@every_model
def test_a_forward_hook_changes_the_answer(kind: str, whole: bool) -> None:
    def hooked(module: nn.Module) -> Callable[[], None]:
        return module.register_forward_hook(lambda _, inputs, output: noise(output)).remove

    expect_effect(kind, hooked, whole)


@by_part
@a_few_models
def test_a_forward_pre_hook_changes_the_answer(kind: str, whole: bool) -> None:
    def hooked(module: nn.Module) -> Callable[[], None]:
        # Token ids become one id; of the numbers of queries and keys that a bias takes, the first position moves.
        def before(module: nn.Module, inputs: Any) -> Any:
            match module:
                case nn.Embedding():
                    return tuple(torch.ones_like(ids) for ids in inputs)
                case BiasModule():
                    return (*inputs[:2], inputs[2] + 1)
            return noise(inputs)

        return module.register_forward_pre_hook(before).remove

    expect_effect(kind, hooked, whole)


def containers(model: nn.Module) -> list[str]:
    """Return the names of modules that hold others with parameters, and have a forward pass; the model is one."""
    return [
        name
        for name, module in model.named_modules()
        if not (name and module._parameters)
        and type(module).forward is not nn.Module.forward
        and any(True for _ in module.parameters())
    ]


@a_few_models
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_hook_on_a_container_acts_in_every_mode(kind: str, where: str) -> None:
    """The model, attention layers, blocks, encoders: also where decoding calls another method than `forward`."""
    model = made(kind)
    before = {mode: run(model) for mode, run in MODES.items()}
    for name in containers(model):
        module = model.get_submodule(name)
        for mode, run in MODES.items():
            called: list[bool] = []

            def hook(module: nn.Module, inputs: Any, output: Any = None, called: list[bool] = called) -> Any:
                called.append(True)
                return noise(inputs if output is None else output)

            register = module.register_forward_pre_hook if where == "before" else module.register_forward_hook
            handle = register(hook)
            after = unless_refused(module, run, model)
            handle.remove()
            assert called or after is None, (name, mode)
    for mode, run in MODES.items():
        torch.testing.assert_close(run(model), before[mode], rtol=1e-4, atol=1e-4)


def in_one_pass(model: Any, tokens: Tensor) -> Tensor:
    """Return the scores of targets, computed by one call of a model."""
    if isinstance(model, LanguageModel | RecurrentLanguageModel):
        return model(tokens)
    source, lengths, _ = inputs(model).decode or ()
    scores: Tensor = model(source, lengths, tokens)
    return scores


def token_by_token(model: Any, tokens: Tensor) -> Tensor:
    """Return the same scores, computed by the steps of a decoding in a session."""
    decoding = inputs(model).decode
    scores = []
    with DecodingSession() as session:
        if decoding is None:
            first, state = model.read(tokens[:, :2], session=session)
            scores, later = [first[:, 0], first[:, 1]], tokens[:, 2:]
        else:
            state, later = model.start(*decoding[:2], session), tokens
        for newest in later.unbind(1):
            logits, state = model.step(newest, state)
            scores.append(logits)
    return torch.stack(scores, 1)


def decoders(model: nn.Module) -> list[str]:
    """Return the names of the modules that predict one token after another: the model, and one inside of it."""
    return [name for name, module in model.named_modules() if hasattr(module, "step") and hasattr(module, "select")]


@every_model
def test_hooks_of_a_whole_model_see_and_change_in_steps_what_they_do_in_a_call(kind: str) -> None:
    """Tokens as inputs, their scores as output, both (B, T, ...); what a hook returns is what is decoded."""
    model = made(kind).eval()
    names = decoders(model)
    if not names:
        assert not hasattr(model, "read")
        return
    tokens = torch.tensor([[1, 2, 3, 4], [1, 4, 3, 2], [1, 3, 4, 2]])
    if isinstance(model, PointerNetwork):
        tokens -= 1
    ways: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {"call": in_one_pass, "steps": token_by_token}
    for name in names:
        module = model.get_submodule(name)
        seen: dict[str, list[Tensor]] = {}
        for way, run in ways.items():
            inputs_seen, outputs_seen = list[Tensor](), list[Tensor]()

            def after(
                module: nn.Module, arguments: Any, output: Tensor, seen: Any = (inputs_seen, outputs_seen)
            ) -> Any:
                seen[0].append(arguments[-1])
                seen[1].append(output)
                return output + torch.arange(output.shape[-1]).sin()

            with torch.no_grad():
                before = run(model, tokens)
                handle = module.register_forward_hook(after)
                changed = run(model, tokens)
                handle.remove()
            seen[way] = [torch.cat(inputs_seen, 1), torch.cat(outputs_seen, 1), changed]
            assert torch.equal(seen[way][0], tokens), (name, way)
            if not name:
                # The hook's own output, and nothing after it.
                torch.testing.assert_close(seen[way][1], before, rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(changed, before + torch.arange(before.shape[-1]).sin())
            else:
                assert not torch.allclose(changed, before, rtol=1e-3, atol=1e-3), (name, way)
        for called, stepped in zip(seen["call"], seen["steps"], strict=True):
            torch.testing.assert_close(called, stepped, rtol=1e-4, atol=1e-4)


@every_model
def test_a_hook_of_a_whole_model_decides_what_is_written(kind: str) -> None:
    """A hook that forbids a token, as one would for `generate` elsewhere: no search writes it."""
    model: Any = made(kind).eval()
    decoding = inputs(model).decode
    if decoding is None and not isinstance(model, LanguageModel):
        return
    source, lengths, begin = decoding or (inputs(model).forward[0], torch.tensor([LENGTH, LENGTH, 4]), 1)
    stepper = model if decoding else Prompted(model)
    how: dict[str, Any] = {"bos": begin, "eos": 0, "limit": STEPS}

    def written() -> list[int]:
        with torch.inference_mode():
            rows = [*greedy(stepper, source, lengths, **how)]
            rows += [row for beams in beam(stepper, source, lengths, search=Beam(2, 2), **how) for row in beams]
        return [token for row in rows for token in row.ids if token]

    token = max(before := written(), key=before.count)

    def forbid(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        return output.index_fill(-1, torch.tensor([token]), -torch.inf)

    handle = model.register_forward_hook(forbid)
    after = written()
    handle.remove()
    assert token not in after
    assert written() == before


@by_part
@every_model
def test_a_module_in_the_place_of_another_is_called(kind: str, whole: bool) -> None:
    """The module that is put there has no weight."""
    model = made(kind)
    before = {mode: run(model) for mode, run in MODES.items()}
    for turn, name in enumerate(places(model), 1):
        parent, _, attribute = name.rpartition(".")
        owner, original = model.get_submodule(parent), model.get_submodule(name)
        for mode in modes_of(turn, whole):
            setattr(owner, attribute, put := Wrapped(original))
            refused_or_seen(model, put, mode, before[mode])
            setattr(owner, attribute, original)


@every_model
def test_a_full_backward_hook_is_called(kind: str) -> None:
    model = made(kind)
    for name in places(model):
        module = model.get_submodule(name)
        called: list[bool] = []
        handle = module.register_full_backward_hook(lambda *_, called=called: called.append(True))
        if unless_refused(module, learned, model) is not None:
            assert called, name
        handle.remove()


@a_few_models
def test_a_parametrization_acts_and_learns(kind: str) -> None:
    model = made(kind)
    before = {mode: run(model) for mode, run in MODES.items()}
    for name in places(model):
        for parameter in list(model.get_submodule(name)._parameters):
            module = model.get_submodule(name)
            if module._parameters[parameter] is None:
                continue
            parametrize.register_parametrization(module, parameter, Noised())
            for mode in ("evaluation", "decoding", "training"):
                refused_or_seen(model, module, mode, before[mode])
            gradient = module.parametrizations[parameter].original.grad
            assert gradient is not None, (name, parameter)
            assert gradient.isfinite().all()
            parametrize.remove_parametrizations(module, parameter, leave_parametrized=False)


@a_few_models
@pytest.mark.parametrize("rule", ["weight_norm", "spectral_norm"])
def test_norms_of_weights_act_and_learn(kind: str, rule: str) -> None:
    model = made(kind)
    before = {mode: run(model) for mode, run in MODES.items()}
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for module in layers:
        getattr(parametrizations, rule)(module, "weight")
    for mode, run in MODES.items():
        after = run(model)
        assert after.isfinite().all()
        same = rule == "weight_norm" or not layers  # which starts from the same weights
        assert same == torch.allclose(after, before[mode], rtol=1e-3, atol=1e-3), mode
    learned(model)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name


@every_model
def test_adapters_act_and_learn(kind: str) -> None:
    """LoRA by peft, on every linear layer and every embedding."""
    peft = pytest.importorskip("peft")
    model = made(kind)
    before = {mode: run(model) for mode, run in MODES.items()}
    names = [name for name in places(model) if isinstance(model.get_submodule(name), nn.Linear | nn.Embedding)]
    config = peft.LoraConfig(r=2, target_modules=names, init_lora_weights=False)
    adapted = peft.inject_adapter_in_model(config, model) if names else model
    assert all(hasattr(adapted.get_submodule(name), "lora_dropout") for name in names)
    for mode, run in MODES.items():
        assert not names or not torch.allclose(run(adapted), before[mode]), mode
    learned(adapted)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


@a_few_models
def test_an_adapter_on_one_layer_acts_and_learns(kind: str) -> None:
    """LoRA on each linear layer and each embedding alone: each is called in training, evaluation and decoding."""
    peft = pytest.importorskip("peft")
    model = made(kind)
    before = {mode: run(model) for mode, run in MODES.items()}
    for name in places(model):
        original = model.get_submodule(name)
        if not isinstance(original, nn.Linear | nn.Embedding):
            continue
        config = peft.LoraConfig(r=2, target_modules=re.escape(name), init_lora_weights=False)
        peft.inject_adapter_in_model(config, model)
        adapted = [part for part, module in model.named_modules() if hasattr(module, "lora_dropout")]
        assert adapted == [name]
        for mode, run in MODES.items():
            assert not torch.allclose(run(model), before[mode]), (name, mode)
        learned(model)
        for part, parameter in model.get_submodule(name).named_parameters():
            if "lora_" in part:
                assert parameter.grad is not None, (name, part)
                assert parameter.grad.abs().max() > 0, (name, part)
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, original)
        for parameter in model.parameters():
            parameter.requires_grad_()
    for mode, run in MODES.items():
        torch.testing.assert_close(run(model), before[mode], rtol=1e-4, atol=1e-4)


@every_model
@pytest.mark.parametrize("way", fast(["lora", "dora", "ia3"], "dora", "ia3"))
def test_adapters_are_disabled_and_merged(kind: str, way: str) -> None:
    """Through peft's own model: adapted, as before while disabled, and the adapted answers once merged."""
    peft = pytest.importorskip("peft")
    model = made(kind)
    before = {mode: run(model) for mode, run in MODES.items()}
    # A merged output layer would change the embedding that shares its weights.
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    names = [name for name, layer in layers.items() if id(layer.weight) not in embedded]
    if not names:
        return
    if way == "ia3":
        config = peft.IA3Config(target_modules=names, feedforward_modules=[], init_ia3_weights=False)
    else:
        config = peft.LoraConfig(r=2, target_modules=names, init_lora_weights=False, use_dora=way == "dora")
    adapted = peft.get_peft_model(model, config)
    # What is disabled or merged has no parameter that learns.
    modes = {mode: MODES[mode] for mode in ("evaluation", "decoding")}
    answers = {mode: run(adapted.get_base_model()) for mode, run in modes.items()}
    for mode, run in modes.items():
        assert not torch.allclose(answers[mode], before[mode]), mode
        with adapted.disable_adapter():
            torch.testing.assert_close(run(adapted.get_base_model()), before[mode], rtol=1e-4, atol=1e-4)
    merged = adapted.merge_and_unload()
    for mode, run in modes.items():
        torch.testing.assert_close(run(merged), answers[mode], rtol=1e-3, atol=1e-3)


@every_model
def test_quantized_layers_are_called(kind: str) -> None:
    model = made(kind).eval()
    before = {mode: MODES[mode](model) for mode in ("evaluation", "decoding")}
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear, nn.LSTM, nn.GRU})
    left = [name for name, module in quantized.named_modules() if type(module) in (nn.Linear, nn.LSTM, nn.GRU)]
    assert left == []
    for mode, answer in before.items():
        after = MODES[mode](quantized)
        assert after.isfinite().all()
        assert not torch.equal(after, answer), mode
