"""The copy mechanism: scores of the vocabulary and of the source's positions in one softmax, [s; e].

An out-of-vocabulary word can be produced because the source contains it.
"""

import torch

from qkv.nn.copy import CopyHead

VOCABULARY = 10


@torch.no_grad()
def main() -> None:
    """Compare the lecture's equation with the copy head, and with a learned switch."""
    torch.manual_seed(0)
    source = torch.tensor([[4, VOCABULARY, 6, 4]])  # an out-of-vocabulary word second, one word twice
    states, decoder, logits = torch.randn(1, 4, 8), torch.randn(1, 3, 8), torch.randn(1, 3, VOCABULARY)
    head = CopyHead(VOCABULARY, 8, 8, hidden=8, mixing="joint")
    chances = head(logits, decoder, head.remember(states, source, None)).exp()[0]
    e = head.score(decoder, states)[0]  # e_ij
    together = torch.cat([logits[0], e], -1).softmax(-1)  # s' = softmax([s_j; e_ij])
    expected = torch.cat([together[:, :VOCABULARY], torch.zeros(3, 1)], -1)
    for place, word in enumerate(source[0].tolist()):
        expected[:, word] += together[:, VOCABULARY + place]  # every position of a word adds to it
    assert torch.allclose(chances, expected, atol=1e-6)
    print("p(the stranger)", [round(float(p), 3) for p in chances[:, VOCABULARY]])
    switch = CopyHead(VOCABULARY, 8, 8, hidden=8, mixing="mixture")
    mixed = switch(logits, decoder, switch.remember(states, source, None)).exp()[0]
    assert torch.allclose(mixed.sum(-1), torch.ones(3), atol=1e-5), "a distribution either way"
    # With scores only and no vocabulary this is a pointer: example 19.
    print("with a learned switch", [round(float(p), 3) for p in mixed[:, VOCABULARY]])


if __name__ == "__main__":
    main()
