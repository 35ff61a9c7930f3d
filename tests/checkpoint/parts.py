"""A small checkpoint with every kind of content."""

from pathlib import Path

import torch

from qkv.checkpoint.contents import Contents, TrainerState
from qkv.metrics.figure import Figure


def small(seed: int = 0, *, figures: bool = True) -> Contents:
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(4, 3, generator=generator)
    model = {
        "embedding.weight": shared,
        "output.weight": shared,
        "half": torch.randn(3, generator=generator).to(torch.bfloat16),
        "count": torch.tensor(7 + seed),
        "empty": torch.zeros(0, 5),
    }
    trainer = TrainerState({"optimizer.exp_avg.half": torch.ones(3)}, {"step": seed, "best": None, "loss": 0.1})
    scores = (Figure("bleu", 31.2, "case:mixed"), Figure("perplexity", float("inf"), "", False))
    return Contents(
        model, {"task": "translate", "model": {"width": 3}}, '{"a": "ü"}', trainer, scores if figures else ()
    )


def same(first: Contents, second: Contents) -> bool:
    def tensors(contents: Contents) -> list[tuple[str, torch.Tensor]]:
        state = {} if contents.trainer is None else contents.trainer.tensors
        return sorted([*contents.model.items(), *state.items()], key=lambda item: item[0])

    ours, theirs = tensors(first), tensors(second)
    return (
        [name for name, _ in ours] == [name for name, _ in theirs]
        and all(a.dtype == b.dtype and torch.equal(a, b) for (_, a), (_, b) in zip(ours, theirs, strict=True))
        and (first.config, first.tokenizer, tuple(first.figures))
        == (second.config, second.tokenizer, tuple(second.figures))
        and (None if first.trainer is None else first.trainer.numbers)
        == (None if second.trainer is None else second.trainer.numbers)
    )


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
