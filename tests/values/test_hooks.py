"""A method within the hooks of a module is called as PyTorch calls `forward`, and changes nothing for other threads."""

import threading
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as some
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.nn.modules import module as modules

from qkv.models.configs.language_model import DecoderConfig
from qkv.models.language_model import LanguageModel
from qkv.values.hooks import through_hooks

Log = list[tuple[Any, ...]]
Register = Callable[[nn.Module, Log, int, bool], Any]


class FailedError(Exception):
    """What a layer's forward pass raises."""


class Layer(nn.Module):
    """Multiplies, and fails when it is told to."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.weight, self.fails = nn.Parameter(torch.tensor([2.0, 3.0])), fails

    def forward(self, x: Tensor, *, factor: float = 1.0) -> Tensor:
        if self.fails:
            raise FailedError
        return factor * self.weight * x


def _before(layer: nn.Module, log: Log, number: int, changes: bool) -> Any:
    def hook(module: nn.Module, args: Any) -> Any:
        log.append((number, module is layer, len(args), args[0].tolist()))
        return args[0] + number if changes else None

    return layer.register_forward_pre_hook(hook, prepend=number % 3 == 0)


def _before_with_keywords(layer: nn.Module, log: Log, number: int, changes: bool) -> Any:
    def hook(module: nn.Module, args: Any, options: Any) -> Any:
        log.append((number, module is layer, args[0].tolist(), dict(options)))
        return (args, {"factor": options["factor"] + number}) if changes else None

    return layer.register_forward_pre_hook(hook, with_kwargs=True)


def _wrong_before(layer: nn.Module, log: Log, number: int, changes: bool) -> Any:
    return layer.register_forward_pre_hook(lambda module, args, options: args if changes else None, with_kwargs=True)


def _after(layer: nn.Module, log: Log, number: int, changes: bool) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        log.append((number, module is layer, args[0].tolist(), None if output is None else output.tolist()))
        return output + number if changes and output is not None else None

    return layer.register_forward_hook(hook, prepend=number % 3 == 0)


def _always(layer: nn.Module, log: Log, number: int, changes: bool) -> Any:
    def hook(module: nn.Module, args: Any, options: Any, output: Any) -> Any:
        log.append((number, module is layer, dict(options), None if output is None else output.tolist()))
        return 2 * output if changes and output is not None else None

    return layer.register_forward_hook(hook, with_kwargs=True, always_call=True)


def _fails_after(layer: nn.Module, log: Log, number: int, changes: bool) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        log.append((number, "fails"))
        if changes:
            raise FailedError

    return layer.register_forward_hook(hook)


def _backward(layer: nn.Module, log: Log, number: int, changes: bool) -> Any:
    def hook(module: nn.Module, inputs: Any, outputs: Any) -> Any:
        log.append((number, module is layer, inputs[0].tolist(), outputs[0].tolist()))
        return (inputs[0] * number,) if changes else None

    return layer.register_full_backward_hook(hook)


def _before_backward(layer: nn.Module, log: Log, number: int, changes: bool) -> Any:
    def hook(module: nn.Module, outputs: Any) -> Any:
        log.append((number, module is layer, outputs[0].tolist()))
        return (outputs[0] * number,) if changes else None

    return layer.register_full_backward_pre_hook(hook)


def _for_all_before(layer: nn.Module, log: Log, number: int, changes: bool) -> Any:
    def hook(module: nn.Module, args: Any) -> Any:
        log.append((number, module is layer, args[0].tolist()))
        return (args[0] * 2,) if changes else None

    return modules.register_module_forward_pre_hook(hook)


def _for_all_after(layer: nn.Module, log: Log, number: int, changes: bool) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        log.append((number, module is layer, None if output is None else output.tolist()))
        return output - number if changes and output is not None else None

    return modules.register_module_forward_hook(hook, always_call=number % 2 == 0)


def _for_all_backward(layer: nn.Module, log: Log, number: int, changes: bool) -> Any:
    def hook(module: nn.Module, inputs: Any, outputs: Any) -> None:
        log.append((number, module is layer, outputs[0].tolist()))

    return modules.register_module_full_backward_hook(hook)


KINDS: dict[str, Register] = {
    register.__name__: register
    for register in (
        *(_before, _before_with_keywords, _wrong_before, _after, _always, _fails_after, _backward, _before_backward),
        *(_for_all_before, _for_all_after, _for_all_backward),
    )
}


def outcome(kinds: list[tuple[str, bool]], fails: bool, call: Callable[..., Tensor]) -> tuple[Any, ...]:
    """Return the answer, its gradients or error, and what the hooks saw, in their order."""
    layer, log = Layer(fails), Log()
    x = torch.tensor([5.0, 7.0], requires_grad=True)
    handles = [KINDS[kind](layer, log, number, changes) for number, (kind, changes) in enumerate(kinds, 1)]
    try:
        output = call(layer, x, factor=1.5)
        output.square().sum().backward()
    except (FailedError, RuntimeError) as error:
        return type(error), log
    finally:
        for handle in handles:
            handle.remove()
    return output.tolist(), None if x.grad is None else x.grad.tolist(), layer.weight.grad.tolist(), log


@settings(max_examples=100, deadline=None)
@given(some.lists(some.tuples(some.sampled_from(sorted(KINDS)), some.booleans()), max_size=6), some.booleans())
def test_hooks_run_around_a_method_as_around_forward(kinds: list[tuple[str, bool]], fails: bool) -> None:
    """All kinds of hooks in any number and order, of a module and of all modules, also where calls fail."""
    within = outcome(kinds, fails, lambda layer, x, **options: through_hooks(layer, layer.forward, x, **options))
    assert within == outcome(kinds, fails, lambda layer, x, **options: layer(x, **options))


def test_an_older_backward_hook_runs() -> None:
    seen: Log = []
    layer, x = Layer(), torch.tensor([5.0, 7.0], requires_grad=True)
    handle = layer.register_backward_hook(lambda module, inputs, outputs: seen.append((module is layer, *outputs)))
    through_hooks(layer, lambda x: {"result": [layer.weight * x]}, x)["result"][0].sum().backward()
    handle.remove()
    ((same, outputs),) = seen
    assert same
    assert outputs.tolist() == [1.0, 1.0]


def test_other_threads_call_the_module_meanwhile() -> None:
    """One thread is inside of the method while the other calls `forward`, replaces it and reads the module."""
    layer, x = Layer(), torch.tensor([5.0, 7.0])
    seen: list[bool] = []
    layer.register_forward_hook(lambda module, args, output: seen.append(module is layer))
    inside, called, answers = threading.Event(), threading.Event(), list[Tensor]()

    def method(x: Tensor) -> Tensor:
        inside.set()
        assert called.wait(60)
        return -x

    thread = threading.Thread(target=lambda: answers.append(through_hooks(layer, method, x)))
    thread.start()
    assert inside.wait(60)
    before = set(layer.__dict__)
    answer = layer(x)
    assert "forward" not in before
    layer.forward = lambda x: 10 * x  # type: ignore[method-assign, assignment]
    replaced = layer(x)
    called.set()
    thread.join()
    assert answer.tolist() == [10.0, 21.0]
    assert replaced.tolist() == [50.0, 70.0]
    assert answers[0].tolist() == [-5.0, -7.0]
    assert layer(x).tolist() == [50.0, 70.0]
    assert seen == [True] * 4


def test_threads_that_share_a_hooked_model_get_the_answers_of_one() -> None:
    """Some decode with a cache, some call the model, all at once, through hooks on the model and each part of it."""
    torch.manual_seed(0)
    model = LanguageModel(DecoderConfig(size=20, width=8, heads=2, feed_forward=12, layers=2, context=16)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    computing = [x for x in model.modules() if next(x.parameters(), None) is not None]
    for module in computing:
        if type(module).forward is not nn.Module.forward:
            module.register_forward_hook(lambda module, inputs, output: _raised(output))
    tokens = torch.randint(4, 20, (2, 8))

    @torch.no_grad()
    def decode() -> Tensor:
        first, state = model.read(tokens[:, :1])
        scores = [first[:, 0]]
        for index in range(1, 8):
            newest, state = model.step(tokens[:, index], state)
            scores.append(newest)
        return torch.stack(scores, 1)

    @torch.no_grad()
    def call() -> Tensor:
        answer: Tensor = model(tokens)
        return answer

    alone = {decode: decode(), call: call()}
    torch.testing.assert_close(alone[decode], alone[call], rtol=1e-4, atol=1e-4)
    assert wrong_answers([decode, call, decode, call], alone) == []


def wrong_answers(runs: list[Callable[[], Tensor]], alone: dict[Callable[[], Tensor], Tensor]) -> list[str]:
    """Return what differs, or fails, while several threads run at once, ten times each."""
    start, wrong = threading.Barrier(len(runs)), list[str]()

    def repeat(run: Callable[[], Tensor]) -> None:
        start.wait(60)
        for _ in range(10):
            try:
                same = torch.allclose(run(), alone[run], rtol=1e-5, atol=1e-5)
            except Exception as error:
                wrong.append(repr(error))
            else:
                wrong.extend([] if same else ["another answer"])

    threads = [threading.Thread(target=repeat, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def _raised(output: Any) -> Any:
    if isinstance(output, tuple):
        return (_raised(output[0]), *output[1:])
    return output + 0.25
