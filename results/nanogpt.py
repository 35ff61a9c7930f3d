"""nanoGPT's training on a CPU, reimplemented: the baseline of the time to a validation loss of 1.88.

    python -m results.nanogpt FILE OUT.json [STEPS]

Model and settings of karpathy/nanoGPT: 4 layers, 4 heads, width 128, context 64, batches of 12, no dropout, AdamW with
betas 0.9 and 0.99, learning rate 1e-3 with cosine decay to 1e-4 after 100 warm-up steps, weight decay 0.1, clipping at
1. Only the training steps are timed; the loss is that of the whole held-out text, in adjacent windows.
"""

import json
import math
import sys
import time
from pathlib import Path

import torch
from benchmarks._gpt import NanoGPT
from torch import Tensor
from torch.nn import functional as F

CONTEXT, BATCH, STEPS = 64, 12, 2000
PEAK, LEAST, WARMUP = 1e-3, 1e-4, 100


def learning_rate(step: int, steps: int) -> float:
    """Return the learning rate of a step, as nanoGPT's `get_lr` does."""
    if step < WARMUP:
        return PEAK * (step + 1) / (WARMUP + 1)
    return LEAST + 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP))) * (PEAK - LEAST)


@torch.no_grad()
def held_out_loss(model: NanoGPT, ids: Tensor) -> float:
    """Return the loss in nats per character."""
    rows = (len(ids) - 1) // CONTEXT
    inputs, targets = ids[: rows * CONTEXT].view(rows, -1), ids[1 : rows * CONTEXT + 1].view(rows, -1)
    parts = zip(inputs.split(128), targets.split(128), strict=True)
    total = sum(float(F.cross_entropy(model(x).mT, y, reduction="sum")) for x, y in parts)
    return total / targets.numel()


def main() -> None:
    """Train, validate, write the figures."""
    file, out, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else STEPS
    torch.manual_seed(1337)
    text = file.read_text(encoding="utf-8")
    number = {character: at for at, character in enumerate(sorted(set(text)))}
    ids = torch.tensor([number[character] for character in text])
    train, valid = ids[: int(len(ids) * 0.9)], ids[int(len(ids) * 0.9) :]
    model = NanoGPT(len(number), context=CONTEXT, layers=4, heads=4, width=128)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    not_decayed = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": not_decayed, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.99))
    wall, processor = time.perf_counter(), time.process_time()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        start = torch.randint(len(train) - CONTEXT, (BATCH,))
        window = train[start[:, None] + torch.arange(CONTEXT + 1)]
        loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    seconds = {"wall_seconds": time.perf_counter() - wall, "processor_seconds": time.process_time() - processor}
    record = {name: round(value, 1) for name, value in seconds.items()}
    record |= {"steps": steps, "loss": round(held_out_loss(model.eval(), valid), 4), "threads": torch.get_num_threads()}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
