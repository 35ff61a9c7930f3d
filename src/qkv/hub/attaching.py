"""Running models of `transformers` on qkv's engine."""

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, cast, final

import torch
from torch import Tensor, nn

from qkv.decode.protocol import Hypothesis
from qkv.errors import AttachError, ConfigError, UnsupportedError, expect_enough_memory, expect_name
from qkv.hub.interface import CALLED, attend, seam_of
from qkv.hub.mask_functions import make_mask, register_closures
from qkv.nn.attention import attending
from qkv.nn.decoding.cache import BatchRows

NAME = "qkv"
"""The name of the implementation: `model.config._attn_implementation`."""
ROWS = "qkv_rows"
_QUERY, _KEY = (
    re.compile(rf"(^|_)({names})(_|$|\d)", re.IGNORECASE) for names in ("q|query|queries|wq|qs", "k|key|keys|wk|ks")
)
_FUSED = re.compile(r"(^|_)(w?qkv|c_attn|query_key_value|query_key)", re.IGNORECASE)

Model = TypeVar("Model", bound=nn.Module)


def attach(model: Model, *, ignore: Sequence[str] = ()) -> Model:
    """Let a model of `transformers` compute its attention with qkv, so that it can be recorded and inspected.

    The model is not run. Results agree with the model's own within rounding; weights are never stored as a matrix: with
    `output_attentions=True` the model returns lazy maps. `model.set_attn_implementation("sdpa")` undoes it.

    Args:
        model: a model that uses the `AttentionInterface` of `transformers`, or a model of `peft` around one.
        ignore: paths or class names of modules that keep an attention of their own, which cannot be recorded.

    Returns:
        The same model.

    Raises:
        AttachError: no module of the model uses the interface; the first forward pass raises it too, for modules that
            have query and key projections but compute attention themselves.
        ConfigError: `ignore` names no module of the model.
        UnsupportedError: the model is not one of `transformers`, or the installed version is too old.

    Example:
        >>> import qkv, torch
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(vocab_size=99, n_positions=64, n_embd=16, n_layer=2, n_head=2)
        >>> model = qkv.hub.attach(GPT2LMHeadModel(config).eval())
        >>> with qkv.record(model) as trace:
        ...     output = model(torch.arange(5)[None])
        >>> trace.layers, trace.weights("transformer.h.1.attn").shape
        (['transformer.h.0.attn', 'transformer.h.1.attn'], torch.Size([1, 2, 5, 5]))
    """
    attached, model = model, _without_adapters(model)
    _register(model)
    _check_ignored(model, ignore)
    modules = [module for _, module in attending(model)]
    if not modules:
        raise _refused(model, [name for name, _ in _projecting_modules(model)])
    for module in modules:
        seam_of(module)
    for name, module in _projecting_modules(model):
        if name not in ignore and type(module).__name__ not in ignore:
            _verify(model, module)
    model.set_attn_implementation(NAME)  # type: ignore[operator]
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation_internal"):
            config._attn_implementation_internal = NAME  # type: ignore[union-attr]
        if hasattr(module, "_expand_inputs_for_generation"):
            _follow_rows(module)
    model.qkv_registered = _Registered()  # type: ignore[assignment]
    return attached


def _without_adapters(model: Model) -> Model:
    """Return the model of `transformers` that a model of `peft` adapts in place."""
    adapted = type(model).__module__.partition(".")[0] == "peft" and hasattr(model, "get_base_model")
    if not adapted:
        return model
    base: Model = cast(Any, model).get_base_model()
    return base


@final
class _Registered:
    """A part of an attached model that, when loaded in another process, registers its attention there."""

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _registered, ()


def _registered() -> _Registered:
    from transformers import AttentionInterface, AttentionMaskInterface

    register_closures()
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, make_mask)
    return _Registered()


def _register(model: nn.Module) -> None:
    try:
        from transformers import PreTrainedModel
    except ImportError as error:
        expect_enough_memory(error)
        hint = "Install it: pip install 'qkv[hub]'."
        raise UnsupportedError("attach", "transformers 5.6 or newer", str(error), hint) from error
    if not isinstance(model, PreTrainedModel):
        hint = "Models of qkv and PyTorch are recorded as they are: qkv.record(model)."
        got = type(model).__name__
        raise UnsupportedError("attach(model)", "a model of transformers", got, hint)
    _registered()


def _check_ignored(model: nn.Module, ignore: Sequence[str]) -> None:
    """Check that each name is one of a module or of a class."""
    if isinstance(ignore, str) or not isinstance(ignore, Collection) or not all(isinstance(x, str) for x in ignore):
        hint = f"Write ignore=[{ignore!r}]." if isinstance(ignore, str) else "Give paths or class names of modules."
        raise ConfigError("attach(ignore)", "a list of names", repr(ignore)[:80], hint)
    modules = dict(model.named_modules())
    valid = [*filter(None, modules), *dict.fromkeys(type(module).__name__ for module in modules.values())]
    for name in ignore:
        expect_name("attach(ignore)", name, valid, "paths or class names of the model's modules")


def _projecting_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that have their own projections of queries and keys."""
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            continue  # recorded as it is
        parts = {**dict(module.named_parameters(recurse=False)), **dict(module.named_children())}
        names = [part for part, part_of_layer in parts.items() if _is_matrix(part_of_layer)]
        separate = any(map(_QUERY.search, names)) and any(map(_KEY.search, names))
        if separate or any(map(_FUSED.search, names)):
            yield name, module


def _is_matrix(part: nn.Module | nn.Parameter) -> bool:
    weight = part if isinstance(part, nn.Parameter) else getattr(part, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim >= 2 and not isinstance(part, nn.Embedding)


def _verify(model: nn.Module, module: nn.Module) -> None:
    """Check on the first pass of a module that its attention comes through the interface."""
    names = tuple(name for name, other in model.named_modules() if type(other) is type(module))
    module.register_forward_pre_hook(_begin)
    module.register_forward_hook(partial(_end, names))


def _begin(module: nn.Module, inputs: object) -> None:
    if not torch.compiler.is_compiling():  # compiled code does not show what ran: the next eager pass does
        CALLED.difference_update(module.modules())


def _end(names: tuple[str, ...], module: nn.Module, inputs: object, output: object) -> None:
    if torch.compiler.is_compiling():
        return
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key, hook in list(hooks.items()):
            if hook is _begin or (isinstance(hook, partial) and hook.func is _end):
                del hooks[key]
    if CALLED.isdisjoint(module.modules()):
        raise _refused(module, names)


def _refused(module: nn.Module, names: Sequence[str]) -> AttachError:
    kind = type(module).__name__
    listed_names = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    hint = (
        "It computes attention itself, whatever attn_implementation says; attach(model, ignore=[...]) leaves modules "
        "with these names or of these classes as they are, if others can be attached."
    )
    got = f"{kind}, which does not use it: {listed_names}" if names else f"{kind}, which does not use it"
    return AttachError("attach(model)", "attention through transformers' AttentionInterface", got, hint)


def _follow_rows(model: nn.Module) -> None:
    """Let a recorder know where the rows of a batch come from as `generate` expands and reorders them."""
    if ROWS in model._modules:
        return
    model.add_module(ROWS, BatchRows())
    model.generate = _Method(_generate, model)  # type: ignore[assignment]
    model._prepare_model_inputs = _Method(_prepare_model_inputs, model)  # type: ignore[assignment]
    model._expand_inputs_for_generation = _Method(_expand_inputs, model)  # type: ignore[assignment]
    model._reorder_cache = _Method(_reorder_cache, model)  # type: ignore[assignment]


@final
class _Method:
    """A function bound to a model; unlike a bound method it is pickled itself, not by its name in the model."""

    def __init__(self, function: Callable[..., Any], model: nn.Module) -> None:
        self._function, self._model = function, model

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._function(self._model, *arguments, **options)


def _unattached(model: nn.Module, name: str) -> Callable[..., Any]:
    """Return a method of the model's class, bound to it."""
    return inspect.getattr_static(type(model), name).__get__(model, type(model))  # type: ignore[no-any-return]


def _generate(model: Any, *arguments: Any, **options: Any) -> Any:
    """Note that a generation begins and ends; it may contain others, and read several sources."""
    none = torch.empty(0, dtype=torch.int64, device="cpu")
    model._modules[ROWS](none, start=True)
    try:
        return _unattached(model, "generate")(*arguments, **options)
    finally:
        model._modules[ROWS](none, end=True)


def _prepare_model_inputs(model: Any, *arguments: Any, **options: Any) -> Any:
    """Note that a generation reads its source."""
    prepared = _unattached(model, "_prepare_model_inputs")(*arguments, **options)
    model._modules[ROWS](torch.arange(prepared[0].shape[0], device="cpu"), start=True)
    return prepared


def _expand_inputs(model: Any, expand_size: int = 1, *arguments: Any, **options: Any) -> Any:
    """Note that every row is repeated."""
    expanded = _unattached(model, "_expand_inputs_for_generation")(expand_size, *arguments, **options)
    if expand_size > 1:
        batch = next(x for x in (expanded[0], *expanded[1].values()) if isinstance(x, Tensor)).shape[0] // expand_size
        model._modules[ROWS](torch.arange(batch, device="cpu").repeat_interleave(expand_size))
    return expanded


def _reorder_cache(model: Any, past: Any, beams: Tensor) -> Any:
    """Note which row each row continues."""
    model._modules[ROWS](beams)
    if hasattr(type(model), "_reorder_cache"):
        return _unattached(model, "_reorder_cache")(past, beams)
    past.reorder_cache(beams)
    return past


def hypotheses(generated: Any, *, end: int | Sequence[int] = ()) -> list[Hypothesis]:
    """Return the sequences of a beam search or of sampling in `transformers` as values that a trace can select.

    Args:
        generated: what `generate(..., return_dict_in_generate=True, output_scores=True)` returned.
        end: ids that end a sampled sequence, as in `model.generation_config.eos_token_id`: what follows one is padding.
            A beam search reports where its sequences end.

    Returns:
        One for each sequence, for `hypothesis=` of `trace.alignment` and `trace.scene` with its row of the batch.
        Log-probabilities are NaN where the outputs lack them, as those of Whisper do.

    Raises:
        ConfigError: the outputs do not hold the scores of each step.
    """
    if not getattr(generated, "scores", None):
        hint = "Call generate with return_dict_in_generate=True and output_scores=True."
        raise ConfigError("generated", "outputs with scores", type(generated).__name__, hint)
    if getattr(generated, "beam_indices", None) is None:
        return _samples(generated, {end} if isinstance(end, int) else set(end))
    beams = []
    for ids, rows, score in zip(generated.sequences, generated.beam_indices, generated.sequences_scores, strict=True):
        steps = int((rows >= 0).sum())
        new = ids[len(ids) - generated.beam_indices.shape[-1] :][:steps].tolist()
        pairs = zip(generated.scores, rows.tolist(), new, strict=False)
        # Whisper returns the scores of its first rows alone.
        terms = tuple(float(scores[row, token]) if row < len(scores) else math.nan for scores, row, token in pairs)
        beams.append(Hypothesis(tuple(new), sum(terms), True, terms, float(score), int(rows[steps - 1])))
    return beams


def _samples(generated: Any, end: Collection[int]) -> list[Hypothesis]:
    """Return sequences of which each stays in its row of the batch."""
    samples = []
    for row, ids in enumerate(generated.sequences[:, -len(generated.scores) :].tolist()):
        steps = next((step for step, token in enumerate(ids, 1) if token in end), len(ids))
        pairs = zip(generated.scores[:steps], ids[:steps], strict=True)
        terms = tuple(float(scores[row].float().log_softmax(-1)[token]) for scores, token in pairs)
        samples.append(Hypothesis(tuple(ids[:steps]), sum(terms), ids[steps - 1] in end, terms, row=row))
    return samples
