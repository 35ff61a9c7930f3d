"""Bahdanau's score, equation by equation, with the widths of the lecture's code: query 18, key 19, value 20, hidden 30.

And that code itself, which scores each query only against the key at its own position, so that its softmax is one row.
"""

import torch
from torch import Tensor

import qkv

BATCH, EMBEDDING, LENGTH = 2, 10, 15
QUERY, KEY, VALUE, HIDDEN = 18, 19, 20, 30


def main() -> None:
    """Compare the equations, the engine and the lecture's code."""
    torch.manual_seed(0)
    x = torch.randn(BATCH, LENGTH, EMBEDDING)
    query, key, value = (x @ torch.randn(EMBEDDING, width) / 3 for width in (QUERY, KEY, VALUE))
    w_q, w_k, w_v = torch.randn(HIDDEN, QUERY) / 4, torch.randn(HIDDEN, KEY) / 4, torch.randn(HIDDEN)
    hidden = torch.tanh((query @ w_q.mT)[:, :, None] + (key @ w_k.mT)[:, None])  # tanh(W_q q_i + W_k k_j)
    scores = hidden @ w_v  # times vᵀ: (2, 15, 15), one for each pair
    weights = scores.softmax(-1)  # over the keys of each query
    output = weights @ value
    score = qkv.scores.Additive(w_v, w_q, w_k)
    ours, our_weights = qkv.attention_with_weights(query, key, value, score=score)
    assert torch.allclose(ours, output, atol=1e-4)
    assert torch.allclose(our_weights, weights, atol=1e-4)
    print(f"hidden {tuple(hidden.shape)}, scores {tuple(scores.shape)}, output {tuple(output.shape)}")
    pooled, row = lecture(query, key, value, w_q, w_k, w_v)
    diagonal = scores.diagonal(dim1=1, dim2=2).softmax(-1)
    assert torch.allclose(row, diagonal, atol=1e-4), "only the pairs (i, i)"
    assert pooled.shape == (BATCH, VALUE), "one output for a sequence, not one for each query"
    print(f"the lecture's code: weights {tuple(row.shape)}, the softmax of the scores' diagonal")
    try:
        row.view(2, 20)  # as its plot expects them
    except RuntimeError:
        print("its plot wants 2 × 20 weights where there are 2 × 15, and fails")
    else:
        raise AssertionError("the plot's shape")


def lecture(query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> tuple[Tensor, Tensor]:
    """The lecture's lines, in rows: W_q Q + W_k K adds column to column."""
    logits = torch.tanh(query @ w_q.mT + key @ w_k.mT) @ w_v
    attention_scores = logits.softmax(-1)
    return (attention_scores[..., None] * value).sum(1), attention_scores


if __name__ == "__main__":
    main()
