"""A module is read as plain weights only if nobody could tell.

Every model, every module with parameters of its own: hooks, adapters (LoRA), parametrizations, quantization and modules
put in its place act in training, evaluation and decoding, or are refused by name.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import PackedSequence

from qkv.compiled import available
from qkv.decode.beam import Beam, beam
from qkv.decode.greedy import greedy
from qkv.decode.protocol import start_in
from qkv.errors import QkvError
from qkv.linalg import matmul
from qkv.linalg.session import DecodingSession
from qkv.models.copying import CopyingTranslator
from qkv.models.language_model import DecoderConfig, LanguageModel
from qkv.models.masked import MaskedLanguageModel
from qkv.models.monotonic import MonotonicConfig, MonotonicTranslator
from qkv.models.parts import PositionParts, TransformerParts
from qkv.models.pointer import PointerConfig, PointerNetwork
from qkv.models.reader import ReaderConfig, TextClassifier, TextTagger
from qkv.models.recurrent_language_model import RecurrentDecoderConfig, RecurrentLanguageModel
from qkv.models.recurrent_translator import RecurrentConfig, RecurrentTranslator
from qkv.models.translator import TransformerConfig, TransformerTranslator
from qkv.nn.biases import BiasModule
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.non_local import NonLocalBlock
from qkv.nn.normalizers import SinkSoftmax
from qkv.nn.norms import NormParts
from qkv.nn.recurrent.lower import RecurrentSelfAttention

SIZE, ROWS, LENGTH, STEPS = 12, 3, 5, 4


class Inputs(NamedTuple):
    """What a model takes, and how it decodes: not at all, or from a source with a begin mark."""

    forward: tuple[Any, ...]
    decode: tuple[Tensor, Tensor, int] | None = None


def transformer(**options: Any) -> TransformerTranslator:
    sizes = {"width": 8, "heads": 2, "feed_forward": 12, "encoder_layers": 1, "decoder_layers": 2}
    return TransformerTranslator(TransformerConfig(SIZE, **{**sizes, "dropout": 0.0, **options}))


def recurrent(**options: Any) -> RecurrentTranslator:
    sizes = {"embedding": 8, "hidden": 8, "attention": 6, "dropout": 0.0}
    return RecurrentTranslator(RecurrentConfig(SIZE, **{**sizes, **options}))


def monotonic(**options: Any) -> MonotonicTranslator:
    return MonotonicTranslator(MonotonicConfig(SIZE, embedding=8, hidden=8, attention=6, dropout=0.0, **options))


def decoder(**options: Any) -> LanguageModel:
    sizes = {"width": 8, "heads": 2, "feed_forward": 12, "layers": 1, "dropout": 0.0, "context": 16}
    return LanguageModel(DecoderConfig(SIZE, **{**sizes, **options}))


def reader(**options: Any) -> ReaderConfig:
    sizes = {"width": 8, "heads": 2, "feed_forward": 12, "dropout": 0.0, "word_dropout": 0.0}
    return ReaderConfig(SIZE, 3, **{**sizes, **options})


def stack(**options: Any) -> TransformerParts:
    return TransformerParts(SIZE, 8, 2, options.pop("key_heads", 2), 4, 12, 1, context=16, **options)


def pointer(**options: Any) -> PointerNetwork:
    return PointerNetwork(PointerConfig(hidden=8, attention=6, dropout=0.0, **{"features": 2, **options}))


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "transformer": transformer,
    "transformer, norms last, not tied": lambda: transformer(norm_first=False, tied=False, source_size=SIZE),
    "transformer, additive, relative": lambda: transformer(score="additive", positions="relative"),
    "transformer, bilinear, sinks, rotary": lambda: transformer(cross_score="bilinear", sinks=True, positions="rotary"),
    "transformer, features": lambda: transformer(features_mark=5),
    "transformer over a gru": lambda: transformer(encoder="gru"),
    "recurrent": recurrent,
    "recurrent, two layers of lstm": lambda: recurrent(cell="lstm", decoder_layers=2, encoder_layers=2, tied=False),
    "recurrent, luong, dot": lambda: recurrent(cell="rnn", wiring="luong", score="dot"),
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
    "pointer, transformer": lambda: pointer(encoder="transformer", heads=2, score="squared_distance"),
    "pointer, words": lambda: pointer(elements="words", features=SIZE, encoder="gru", score="bilinear"),
    "language model": decoder,
    "language model, relative": lambda: decoder(positions="relative", key_heads=1, tied=False),
    "language model, learned, kernel": lambda: decoder(positions="learned", score="gaussian"),
    "recurrent language model": lambda: RecurrentLanguageModel(
        RecurrentDecoderConfig(SIZE, width=8, heads=2, layers=2, dropout=0.0)
    ),
    "classifier": lambda: TextClassifier(reader(wide=16)),
    "classifier, transformer": lambda: TextClassifier(reader(encoder="transformer", score="bilinear")),
    "tagger": lambda: TextTagger(reader(encoder="lstm", layers=2)),
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
FAST = ("transformer", "recurrent", "copying, mixture", "language model", "published encoder", "layer")
"""A sample of all kinds of layers."""
every_model = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in FAST else pytest.mark.slow) for kind in MAKERS]
)


@pytest.fixture(autouse=True)
def _packing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let small products be packed and fused as large ones are, where this machine can do that at all."""
    if torch._C._has_mkldnn and available.why_unavailable() is None:
        monkeypatch.setattr(matmul, "_favored", lambda: True)
        monkeypatch.setattr(matmul, "_LEAST", 1)
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
        state, scores = start_in(session, model, source, lengths), []
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
    """Return what a model answers; None if it refuses with an error that names the class of a module."""
    try:
        return run(model)
    except QkvError as error:
        if type(module).__name__ not in str(error):
            raise
        return None


def refused_or_seen(model: nn.Module, module: nn.Module, mode: str, before: Tensor) -> None:
    """Expect another answer than before, or an error that names the module's class."""
    after = unless_refused(module, MODES[mode], model)
    if after is not None:
        assert after.shape != before.shape or not torch.allclose(after, before), (type(module).__name__, mode)


def expect_effect(kind: str, change: Change) -> None:
    """Expect a change of each module of a model to be seen in every mode, and gone when it is undone."""
    model = made(kind)
    before = {mode: run(model) for mode, run in MODES.items()}
    for name in places(model):
        for mode in MODES:
            module = model.get_submodule(name)
            undo = change(module)
            refused_or_seen(model, module, mode, before[mode])
            undo()
    for mode, run in MODES.items():
        torch.testing.assert_close(run(model), before[mode], rtol=1e-4, atol=1e-4)


@every_model
def test_a_forward_hook_changes_the_answer(kind: str) -> None:
    def hooked(module: nn.Module) -> Callable[[], None]:
        return module.register_forward_hook(lambda _, inputs, output: noise(output)).remove

    expect_effect(kind, hooked)


@every_model
def test_a_forward_pre_hook_changes_the_answer(kind: str) -> None:
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

    expect_effect(kind, hooked)


def containers(model: nn.Module) -> list[str]:
    """Return the names of the modules inside of a model that hold others with parameters, and have a forward pass."""
    return [
        name
        for name, module in model.named_modules()
        # A copying translator takes the parts of the translator in it, which never computes as a whole.
        if name not in ("", "inner")
        and not module._parameters
        and type(module).forward is not nn.Module.forward
        and any(True for _ in module.parameters())
    ]


@every_model
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_hook_on_a_container_acts_in_every_mode(kind: str, where: str) -> None:
    """Attention layers, blocks, encoders: also where a decoder or a cache calls another method than `forward`."""
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


@every_model
def test_a_module_in_the_place_of_another_is_called(kind: str) -> None:
    """The module that is put there has no weight."""
    model = made(kind)
    before = {mode: run(model) for mode, run in MODES.items()}
    for name in places(model):
        parent, _, attribute = name.rpartition(".")
        owner, original = model.get_submodule(parent), model.get_submodule(name)
        for mode in MODES:
            setattr(owner, attribute, Wrapped(original))
            refused_or_seen(model, original, mode, before[mode])
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


@every_model
def test_a_parametrization_acts_and_learns(kind: str) -> None:
    model = made(kind)
    before = {mode: run(model) for mode, run in MODES.items()}
    for name in places(model):
        for parameter in list(model.get_submodule(name)._parameters):
            module = model.get_submodule(name)
            if module._parameters[parameter] is None:
                continue
            parametrize.register_parametrization(module, parameter, Noised())
            for mode in MODES:
                refused_or_seen(model, module, mode, before[mode])
            learned(model)
            gradient = module.parametrizations[parameter].original.grad
            assert gradient is not None, (name, parameter)
            assert gradient.isfinite().all()
            parametrize.remove_parametrizations(module, parameter, leave_parametrized=False)


@every_model
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
