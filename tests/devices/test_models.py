"""A training step and decoding of every model on fake CUDA tensors: nothing waits for the GPU; `make test-gpu`.

PyTorch's CPU build has no cuDNN, so that the launches of recurrent layers are not those of a GPU and are not counted.
"""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.launches.counting import Counter, fake_cuda, on_fake_cuda
from tests.devices.calls import expect_no_waiting

from qkv.decode.greedy import greedy
from qkv.tasks.catalog import recipe_of
from qkv.training.optimizer import build_optimizer, clip_gradient, scale_gradient
from qkv.training_settings import Settings

PAIRS = list(product("abcdefgh", "abcde"))
LINES = {
    "translate": [f"{a} {b} c\t{b} {a}" for a, b in PAIRS],
    "classify": [f"{'low' if a < b else 'high'}\t{a} {b} c" for a, b in PAIRS],
    "tag": [line for a, b in PAIRS for line in (f"{a}\tX", f"{b}\tY", "")],
    "point": [f"{a} {b} {a}\t2 1" for a, b in PAIRS],
    "generate": ["the cat sat on the mat"] * 400,
}
MODELS = [
    *(("translate", {"model": model}) for model in ("transformer", "gru", "lstm", "rnn")),
    *(("translate", {"model": "gru", "score": score}) for score in ("general", "cosine", "gaussian", "dot", "none")),
    *(("generate", {"model": model}) for model in ("transformer", "gru")),
    *(("classify", {"model": model}) for model in ("transformer", "gru", "none")),
    *(("tag", {"model": model}) for model in ("transformer", "lstm")),
    *(("point", {"model": model}) for model in ("transformer", "gru")),
]


def trained(task: str, model: dict[str, Any], folder: Path) -> Any:
    """Return the data of a small training."""
    file = folder / "lines.tsv"
    file.write_text("\n".join(LINES[task]) + "\n", encoding="utf-8")
    recipe = recipe_of(task)
    files = {"text": str(file)} if task == "generate" else {"data": str(file)}
    settings = recipe.load_settings({"data": files, "model": {**model, "width": 24}})
    return recipe.read(settings, None)


def expect_step_without_waiting(task: str, counter: Counter, model: torch.nn.Module) -> None:
    """Fail if a step waited for the GPU, except once for the lengths of rows that PyTorch packs, on the host."""
    if any(isinstance(module, torch.nn.RNNBase) for module in model.modules()):
        packed = {line: count for line, count in counter.copies.items() if line.startswith("models/recurrence.py")}
        assert sum(packed.values()) <= 1, packed
        counter.copies.subtract(packed)
        counter.copies = +counter.copies
    expect_no_waiting(counter)


@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
@pytest.mark.parametrize(
    ("task", "settings"), MODELS, ids=lambda part: part if isinstance(part, str) else " ".join(part.values())
)
def test_a_training_step_waits_for_nothing(task: str, settings: dict[str, Any], tmp_path: Path) -> None:
    job = trained(task, settings, tmp_path)
    model = job.build()
    with fake_cuda():
        on_fake_cuda(model)
        optimizer = build_optimizer(model, Settings())
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        batch = job.collate(job.batches(tokens=100, seed=0, epoch=0)[0], parameters[0].device)
        with Counter() as counter:
            loss, units = job.objective(model, batch)
            loss.backward()
            scale_gradient(parameters, 1 / units)
            with Counter() as at_the_end:
                clip_gradient(parameters, 1.0)
            optimizer.step()
    assert loss.is_cuda
    assert all(parameter.grad is None or parameter.grad.is_cuda for parameter in parameters)
    expect_step_without_waiting(task, counter, model)
    # The norm that stops a training which diverges, before a weight changes.
    assert (at_the_end.reads + at_the_end.copies).total() == 1


@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
@pytest.mark.parametrize("kind", ["transformer", "gru", "lstm", "rnn"])
def test_a_step_of_greedy_decoding_reads_once(kind: str, tmp_path: Path) -> None:
    model = trained("translate", {"model": kind}, tmp_path).build().eval()
    with fake_cuda():
        on_fake_cuda(model)
        source, lengths = torch.ones(3, 5, dtype=torch.int64, device="cuda"), torch.full((3,), 5, device="cuda")
        reads = []
        for limit in (2, 7):
            with Counter() as counter:
                greedy(model, source, lengths, bos=1, eos=2, limit=limit)
            reads.append(counter.reads + counter.copies)
    # What is read before the first step and after the last one is the same for any number of steps.
    assert (reads[1] - reads[0]).total() == 7 - 2, reads
