"""Key-value attention of a recurrent layer over the layer below: half of each state h = [k; v] is its key.

Attending to a lower layer is self-attention; keys determine the weights, values are averaged (Daniluk et al. 2017).
"""

import torch
from torch import nn

import qkv
from qkv.nn.recurrent.lower import RecurrentSelfAttention

WIDTH, LENGTH = 8, 6


@torch.no_grad()
def main() -> None:
    """Compare the lecture's three lines with the layer, and check that values do not affect the weights."""
    torch.manual_seed(0)
    below = nn.GRU(WIDTH, WIDTH, batch_first=True)
    layer = RecurrentSelfAttention(WIDTH, 16, score="dot", memory="split")
    states = below(torch.randn(1, LENGTH, WIDTH))[0]
    contexts = []
    hook = layer.attention.register_forward_hook(lambda module, given, output: contexts.append(output[0]))
    with qkv.record(layer) as trace:
        layer(states)
    hook.remove()
    weights = trace.weights("attention")[0]
    key, value = states[0].chunk(2, -1)  # h_j = [k_j; v_j]
    for i in range(LENGTH):
        e_i = key[: i + 1] @ key[i]  # e_ij = f(k_i, k_j), over itself and earlier states
        alpha_i = e_i.softmax(-1)
        c_i = alpha_i @ value[: i + 1]  # the sum is over j
        assert torch.allclose(weights[i, : i + 1], alpha_i, atol=1e-6)
        assert torch.allclose(contexts[0][i], c_i, atol=1e-6)
    # Other values, the same weights: a state's value does not affect where it is found.
    with qkv.record(layer) as trace:
        layer(torch.cat([key, torch.randn_like(value)], -1)[None])
    assert torch.equal(trace.weights("attention")[0], weights)
    whole = RecurrentSelfAttention(WIDTH, 16, score="dot", memory="whole")
    with qkv.record(whole) as trace:
        whole(states)
    assert not torch.allclose(trace.weights("attention")[0], weights), "unsplit, values decide too"
    print("weights of the last state:", [round(float(w), 3) for w in weights[-1]])


if __name__ == "__main__":
    main()
