"""Key-value attention of a recurrent network over a lower layer: each state h = [k; v] has one half to be found by.

The upper layer looks at what the lower one was before (self-attention); keys make the weights, values are pooled.
"""

import torch
from torch import nn

import qkv

WIDTH, LENGTH = 8, 6


def main() -> None:
    """Compare the lecture's three lines with the call, and see that values have no say in the weights."""
    torch.manual_seed(0)
    lower, upper = (nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(2))
    states = lower(torch.randn(2, LENGTH, WIDTH))[0].detach()
    above = upper(states)[0].detach()
    key, value = states.chunk(2, -1)  # h_j = [k_j; v_j]
    query = above[..., : WIDTH // 2]  # k'_i, the half that the upper layer finds with
    past = qkv.masks.causal(offset=-1)  # only what came before; the first state has nothing to look at
    context, weights = qkv.attention_with_weights(query, key, value, score=qkv.scores.Dot(), mask=past)
    for i in range(1, LENGTH):
        e_i = (key[0, :i] * query[0, i]).sum(-1)  # e_ij = f(k_i, k_j)
        alpha_i = e_i.softmax(-1)
        c_i = (alpha_i[:, None] * value[0, :i]).sum(0)  # the sum goes over j
        assert torch.allclose(weights[0, i, :i], alpha_i, atol=1e-6)
        assert torch.allclose(context[0, i], c_i, atol=1e-6)
    assert bool((context[:, 0] == 0).all()), "no past gives 0, not NaN"
    other = qkv.attention_with_weights(query, key, torch.randn_like(value), score=qkv.scores.Dot(), mask=past)[1]
    assert torch.equal(other, weights), "values have no say in the weights"
    whole = qkv.attention_with_weights(above, states, states, score=qkv.scores.Dot(), mask=past)[1]
    assert not torch.allclose(whole, weights), "without the split they have"
    print("weights of the last state over those before it:", [round(float(w), 3) for w in weights[0, -1, :-1]])


if __name__ == "__main__":
    main()
