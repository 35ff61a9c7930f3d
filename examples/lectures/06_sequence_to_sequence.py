"""The first lecture's decoder with attention, line by line, inside a running translation model."""

import torch

import qkv
from qkv.models.recurrent import RecurrentConfig, RecurrentTranslator


def main() -> None:
    """Take the inputs of one decoder step's attention, and compute the lecture's four lines from them."""
    torch.manual_seed(0)
    config = RecurrentConfig(size=20, score="dot", wiring="luong", embedding=6, hidden=8)
    model = RecurrentTranslator(config).eval()
    source, target = torch.randint(4, 20, (1, 5)), torch.randint(4, 20, (1, 3))
    seen = []
    hook = model.attention.register_forward_hook(lambda module, given, output: seen.append((*given, output)))
    given = []
    model.readout.register_forward_hook(lambda module, inputs, output: given.append(inputs[0]))
    with qkv.record(model) as trace:
        model(source, torch.tensor([5]), target)
    hook.remove()
    states, keys, values, contexts = (part[0].detach() for part in seen[0])
    t = 1
    s_t = states[t]  # the decoder's hidden state: Input 2, the query
    e_t = torch.stack([s_t @ k_i for k_i in keys])  # scores; Input 1, the keys: h_i projected to the width of s_t
    alpha_t = torch.exp(e_t) / torch.exp(e_t).sum()  # softmax
    a_t = sum(alpha * h_i for alpha, h_i in zip(alpha_t, values, strict=True))  # Input 3, the values: h_i
    joined = torch.cat([s_t, a_t])  # [a_t; s_t], here in the other order
    assert torch.allclose(alpha_t, trace.weights("attention")[0, t], atol=1e-6)
    assert torch.allclose(a_t, contexts[t], atol=1e-6)
    assert torch.allclose(joined, given[0][0, t, : len(joined)], atol=1e-6), "what the output layer is given"
    print("e_t    ", [round(float(x), 3) for x in e_t])
    print("alpha_t", [round(float(x), 3) for x in alpha_t], "sum", round(float(alpha_t.sum()), 3))
    print(f"a_t in R^{len(a_t)}, s_t in R^{len(s_t)}, together in R^{len(joined)}: the encoder reads both ways")


if __name__ == "__main__":
    main()
