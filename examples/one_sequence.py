"""Train a language model on one long text that several processes share; any number of them gives the same losses.

torchrun --standalone --nproc-per-node 2 examples/one_sequence.py --tokens 2048 --steps 3
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn import functional as F

import qkv
from qkv.models import DecoderConfig, LanguageModel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--tokens", type=int, default=2048)
parser.add_argument("--steps", type=int, default=3)
given = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)  # the same model and text in every process
model = LanguageModel(DecoderConfig(size=64, width=64, heads=2, layers=1, context=given.tokens, dropout=0.0))
text = (torch.arange(given.tokens + 1) % 37 * 5 % 64)[None]
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

with qkv.distributed.shard(layout="zigzag") as part:
    tokens, targets = part.split(text[:, :-1], 1), part.split(text[:, 1:], 1)
    for step in range(given.steps):
        optimizer.zero_grad()
        logits = model(tokens)  # (1, this process's tokens, 64); its attention sees the tokens of all
        # A sum over this process's tokens, divided by the number of all: the losses of the processes add up.
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / given.tokens
        loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if part.rank == 0:
            print(f"step {step + 1}: loss {total:.4f}", flush=True)

    query, key, value = torch.randn(3, 1, 2, tokens.shape[1], 32).unbind()
    plan = qkv.distributed.explain(query, key, value, mask=qkv.masks.causal())
if part.rank == 0:
    print(plan, flush=True)
dist.destroy_process_group()
