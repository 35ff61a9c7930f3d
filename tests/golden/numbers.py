"""Digests of numbers: outputs and gradients, choices of algorithms, decoded ids, weights of models."""

import hashlib
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tests.contract.judge import Case, Trial, paired
from tests.contract.mechanisms import ON_CPU, SCORES
from tests.models.test_translators import batch, made
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.decode.beam import Beam, beam
from qkv.decode.greedy import greedy
from qkv.engine.problem import Problem
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
from qkv.models.reader import MaskedLanguageModel, TextClassifier
from qkv.models.recurrent_language_model import RecurrentLanguageModel
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator
from qkv.nn.norms import NormParts
from qkv.planner.plan import plan_for
from qkv.scores.pointwise import (
    BoxcarShape,
    EpanechnikovShape,
    GaussianShape,
    Leaky,
    Linear,
    NegativeHalf,
    Pointwise,
    Softcap,
)

PROBLEMS = 200_000
UPDATES = 20
BATCH = [[3, 4, 5, 6], [7, 8], [9], [8, 9, 10, 11, 12]]


def digest(*tensors: Tensor) -> str:
    """A digest of the bits, types and shapes of some tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        found.update(tensor.detach().flatten().clone().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def answers() -> Iterator[tuple[str, str]]:
    """Output and gradients of each case by each backend, at one and two threads."""
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for score in SCORES:
            for case in paired(score):
                trial = Trial(case)
                for backend in ON_CPU:
                    if trial.refusal(backend) is None:
                        yield f"{backend}: {case}, {threads} threads", _answer(trial, case, backend)
    torch.set_num_threads(1)


def _answer(trial: Trial, case: Case, backend: str) -> str:
    output, leaves = trial.run(backend, case.dtype)
    gradients = torch.autograd.grad(
        output, list(leaves.values()), trial.cotangent(output.dtype), materialize_grads=True
    )
    return digest(output, *gradients)


def choices() -> Iterator[tuple[str, str]]:
    """The algorithm chosen for random problems."""
    draw = random.Random(0)
    for number in range(PROBLEMS):
        yield f"problem {number}", plan_for(_problem(draw)).algorithm


def _problem(draw: random.Random) -> Problem:
    pick = draw.choice
    core = pick(["dot", "dot", "tanh_sum", "relu_sum", "distance", "tile"])
    pointwise: dict[str, list[Pointwise]] = {
        "dot": [Linear(), Linear(), Softcap(20.0)],
        "relu_sum": [Leaky(0.0), Leaky(0.2)],
        "distance": [NegativeHalf(), GaussianShape(), BoxcarShape(), EpanechnikovShape(2), EpanechnikovShape(1)],
    }
    bent = pick(pointwise.get(core, [Linear()]))
    kernel = isinstance(bent, GaussianShape | BoxcarShape | EpanechnikovShape)
    dense = ["softmax", "softmax", "mean", "identity", "sigmoid", "hard", "sparsemax", "entmax"]
    normalizer = pick(["sum", "sum", *dense] if kernel else dense)
    lengths = [1, 2, 4, 5, 16, 17, 40, 64, 100, 256, 512, 1000, 2048, 4096, 16384]
    queries = pick(lengths)
    return Problem(
        core=core,
        pointwise=bent,
        normalizer=normalizer,
        sink=normalizer == "softmax" and pick([False, False, True]),
        mask=pick(["all", "causal", "keys", "bounds", "dense", "predicate"]),
        bias=pick(["none", "none", "fixed", "learned"]),
        dropout=pick([False, False, True]),
        gradient=pick([False, True]),
        state=pick([False, False, True]),
        leading=pick([(), (1,), (3,), (2, 4), (8, 8), (1, 8), (32, 1), (2, 2, 2)]),
        queries=queries,
        keys=pick([queries, pick(lengths)]),
        width=1 if core in ("relu_sum",) else pick([1, 2, 16, 32, 64, 128, 512]),
        value_width=pick([1, 16, 64, 128, 256, 1024]),
        dtype=pick([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16]),
        device="cpu",
    )


KINDS = [
    ("rnn", {"model": "gru", "wiring": "bahdanau"}),
    ("rnn", {"model": "lstm", "wiring": "luong"}),
    ("transformer", {"score": "scaled_dot"}),
    ("transformer", {"score": "additive"}),
]


def decoded() -> Iterator[tuple[str, str]]:
    """Ids of greedy and beam decoding."""
    for kind in KINDS:
        for dtype in (torch.float32, torch.float64):
            model = made(kind, seed=1, dtype=dtype)
            source, lengths = batch(BATCH * 4)
            with torch.inference_mode():
                one = greedy(model, source, lengths, bos=1, eos=2, limit=20)
                many = beam(model, source, lengths, bos=1, eos=2, limit=20, search=Beam(width=5))
            yield f"greedy {kind} {dtype}", str([found.ids for found in one])
            yield f"beam {kind} {dtype}", str([[found.ids for found in row] for row in many])


def trained() -> Iterator[tuple[str, str]]:
    """Weights of five models after some updates."""
    source, lengths = batch(BATCH * 8)
    target = torch.randint(3, 13, (len(source), 6), generator=torch.Generator().manual_seed(2))
    for kind in (KINDS[0], KINDS[1], KINDS[2]):
        model = made(kind, dtype=torch.float32).train()
        yield (
            f"trained {kind}",
            _updated(model, lambda model=model: _loss(model, target, source, lengths)),
        )
    torch.manual_seed(0)
    classifier = TextClassifier(ClassifierConfig(size=13, labels=3)).train()
    labels = torch.arange(len(source)) % 3
    yield (
        "trained classifier",
        _updated(classifier, lambda: F.cross_entropy(_first(classifier(source, lengths)), labels)),
    )
    torch.manual_seed(0)
    pointer = PointerNetwork(PointerConfig(features=1, model="lstm", layers=1, width=32, attention=16)).train()
    elements = torch.rand(16, 6, 1, generator=torch.Generator().manual_seed(3))
    order = 1 + elements.squeeze(-1).argsort(-1)
    whole = torch.full((16,), 6)
    yield "trained pointer", _updated(pointer, lambda: _pointer_loss(pointer, elements, whole, order))


RECURRENT: dict[str, Any] = {"size": 13, "embedding": 16, "hidden": 16, "attention": 16}
PUBLISHED: list[dict[str, Any]] = [
    {"positions": PositionParts("rotary", share=0.7), "norms": NormParts("layer", 1e-5, "parallel"), "dropout": 0.1},
    {
        "positions": PositionParts("rotary", local_base=50.0),
        "norms": NormParts("rms_plus_one", 1e-6, "both", heads=True),
        "gated": True,
        "window": 2,
        "windowed": (True, False),
        "attention_bias": "inputs",
        "feed_forward_bias": False,
        "softcap": 5.0,
        "embed_scale": 4.0,
        "tied": False,
    },
]
LANGUAGE: list[tuple[str, Callable[[], nn.Module]]] = [
    *(
        (
            f"language {options}",
            lambda options=options: LanguageModel(DecoderConfig(size=13, width=16, heads=2, **options)),
        )
        for options in (
            {},
            {"positions": "learned", "tied": False},
            {"window": 2, "key_heads": 1},
            {"positions": "alibi", "score": "additive", "bias": False, "activation": "gelu"},
            {"positions": "relative", "normalizer": "entmax"},
            {"score": "gaussian", "positions": "sinusoidal"},
        )
    ),
    *(
        (
            f"recurrent language {options}",
            lambda options=options: RecurrentLanguageModel(
                RecurrentDecoderConfig(size=13, width=16, heads=2, **options)
            ),
        )
        for options in (
            {},
            {"model": "lstm", "layers": 2, "window": 2},
            {"model": "rnn", "score": "none", "tied": False},
        )
    ),
    ("stack language", lambda: LanguageModel(TransformerParts(13, 16, 4, 2, 4, 32, 2, dropout=0.1))),
    ("stack language, capped", lambda: LanguageModel(TransformerParts(13, 16, 4, 2, 4, 32, 2, output_softcap=3.0))),
    *(
        (
            f"stack language {i}",
            lambda options=options: LanguageModel(TransformerParts(13, 16, 4, 2, 6, 32, 2, **options)),
        )
        for i, options in enumerate(PUBLISHED)
    ),
]
TRANSLATORS: list[tuple[str, Callable[[], nn.Module]]] = [
    *(
        (
            f"transformer {options}",
            lambda options=options: TransformerTranslator(
                TransformerConfig(size=13, width=16, heads=2, feed_forward=32, **options)
            ),
        )
        for options in (
            {"tied": False},
            {"encoder": "lstm"},
            {"source_size": 13, "positions": "rotary", "window": 2},
            {"norm_first": False, "positions": "relative", "attention_dropout": 0.1},
            {"features_mark": 4, "cross_score": "additive", "positions": "alibi"},
        )
    ),
    *(
        (f"recurrent {options}", lambda options=options: RecurrentTranslator(RecurrentConfig(**RECURRENT, **options)))
        for options in (
            {"model": "lstm", "decoder_layers": 2, "tied": False},
            {"model": "rnn", "score": "dot", "encoder": "transformer", "memory": "split"},
            {"score": "location", "source_size": 13},
            {"heads": 4, "score": "scaled_dot", "features_mark": 4},
        )
    ),
    *(
        (f"monotonic {options}", lambda options=options: MonotonicTranslator(MonotonicConfig(**RECURRENT, **options)))
        for options in ({"model": "lstm"}, {"alignment": "monotonic-1", "source_size": 13}, {"model": "rnn"})
    ),
    (
        "copying",
        lambda: CopyingTranslator(RecurrentTranslator(RecurrentConfig(**RECURRENT, copy="mixture")), unknown=3),
    ),
    (
        "stack translator",
        lambda: TransformerTranslator(
            TransformerParts(
                13, 16, 4, 4, 4, 32, 2, decoder_layers=2, positions=PositionParts("buckets"), end_dropout=True
            )
        ),
    ),
    (
        "stack translator of two vocabularies",
        lambda: TransformerTranslator(
            TransformerParts(
                *(13, 16, 4, 4, 4, 32, 2),
                decoder_layers=2,
                positions=PositionParts(kind="halves"),
                norms=NormParts(place="after", final=False),
                activation="relu",
                source_size=13,
                tied=False,
                output_bias=True,
                dropout=0.1,
                embed_scale=4.0,
            )
        ),
    ),
]
READERS: list[tuple[str, Callable[[], nn.Module]]] = [
    *(
        (
            f"reader {options}",
            lambda options=options: TextClassifier(ClassifierConfig(size=13, labels=13, width=16, **options)),
        )
        for options in (
            {"model": "transformer", "layers": 2},
            {"model": "transformer", "positions": "rotary", "window": 2, "pool": "mean"},
            {"model": "lstm", "residual": True},
            {"model": "none"},
        )
    ),
    (
        "stack reader 0",
        lambda: MaskedLanguageModel(
            TransformerParts(
                *(13, 16, 4, 4, 4, 32, 2),
                kinds=2,
                masked_head=True,
                norms=NormParts(place="after", final=False, embedding=True),
            )
        ),
    ),
    (
        "stack reader 1",
        lambda: TextClassifier(
            TransformerParts(
                *(13, 16, 4, 4, 4, 32, 2), labels=13, pooler="tanh", dropout=0.1, norms=NormParts(final=False)
            )
        ),
    ),
]


def readers() -> Iterator[tuple[str, str]]:
    """First weights, scores, and weights after some updates of models that read a whole text."""
    source, lengths = batch(BATCH * 4)
    labels = torch.arange(len(source)) % 13
    for name, make in READERS:
        torch.manual_seed(0)
        model: Any = make().eval()
        if name.startswith("stack"):
            # They are never trained from new weights.
            _filled(model)
        else:
            yield f"first weights of {name}", _weights(model)
        with torch.inference_mode():
            scores = model(source, lengths)
            real = torch.arange(source.shape[1]) < lengths[:, None]
            yield f"scores of {name}", digest(scores[real] if scores.ndim == 3 else scores)
        model.train()

        def loss(model: Any = model) -> Tensor:
            scores = model(source, lengths)
            return F.cross_entropy(scores[:, 0] if scores.ndim == 3 else scores, labels)

        yield f"trained {name}", _updated(model, loss)


def models() -> Iterator[tuple[str, str]]:
    """First weights, scores at once and step by step, and weights after some updates of every model of tokens."""
    source, lengths = batch(BATCH * 4)
    target = torch.randint(3, 13, (len(source), 6), generator=torch.Generator().manual_seed(2))
    for name, make in [*LANGUAGE, *TRANSLATORS]:
        torch.manual_seed(0)
        model: Any = make().eval()
        if name.startswith("stack"):
            # They are never trained from new weights.
            _filled(model)
        else:
            yield f"first weights of {name}", _weights(model)
        sides = () if (name, make) in LANGUAGE else (source, lengths)
        with torch.inference_mode():
            yield f"scores of {name}", digest(model(*sides, target), *_stepped(model, target, *sides))
        model.train()
        yield f"trained {name}", _updated(model, lambda model=model, sides=sides: _loss(model, target, *sides))


def _stepped(model: Any, target: Tensor, *sides: Tensor) -> list[Tensor]:
    """Scores of each step, with a session and without, from the third on for half of the rows."""
    if sides:
        states = [model.start(*sides, session) for session in (None, DecodingSession())]
    else:
        states = [model.read(target[:, :2])[1]]
    scores, some = [], torch.arange(0, len(target), 2)
    for first in states:
        state = first
        for tokens in target[:, :2].unbind(1):
            logits, state = model.step(tokens, state)
            scores.append(logits)
        state = model.select(state, some)
        for tokens in target[some, 2:].unbind(1):
            logits, state = model.step(tokens, state)
            scores.append(logits)
    return scores


def _first(x: Tensor | tuple[Tensor, ...]) -> Tensor:
    return x if isinstance(x, Tensor) else x[0]


def _loss(model: nn.Module, target: Tensor, *sides: Tensor) -> Tensor:
    scores = model(*sides, target[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten())


def _pointer_loss(model: nn.Module, elements: Tensor, lengths: Tensor, order: Tensor) -> Tensor:
    before = F.pad(order[:, :-1], (1, 0))
    return F.nll_loss(model(elements, lengths, before).flatten(0, 1), order.flatten())


def _weights(model: nn.Module) -> str:
    """A digest of all parameters, whatever their names and order."""
    return hashlib.sha256("".join(sorted(map(digest, model.parameters()))).encode()).hexdigest()[:16]


def _filled(model: nn.Module) -> nn.Module:
    """Draw every parameter anew by its name, so that nothing depends on the order in which they are made."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # By the names of earlier versions.
            before = re.sub("^(reader[.])", "", re.sub("^pool[.]", "head.", name))
            if getattr(model, "embed_source", None) is not None:
                before = {"embed_source.weight": "embed.weight", "embed.weight": "target_embed.weight"}.get(name, name)
            seed = int(hashlib.sha256(before.encode()).hexdigest()[:8], 16)
            parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(seed))
    return model


def _updated(model: nn.Module, loss: Callable[[], Tensor]) -> str:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(5)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return _weights(model)
