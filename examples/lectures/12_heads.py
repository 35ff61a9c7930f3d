"""Several heads: concatenated, or mixed by an output projection; and each head as a bilinear score.

Concat(head_1, …, head_h) W_O is the sum of head_i W_O^i: without W_O the heads stay in separate columns.
"""

import torch

import qkv

WIDTH, HEADS = 32, 4


def main() -> None:
    """Check both ways of combining heads, and how a head's projections define its score."""
    torch.manual_seed(0)
    x = torch.randn(2, 6, WIDTH)
    mixed = qkv.nn.MultiHeadAttention(WIDTH, HEADS, bias=False)
    apart = qkv.nn.MultiHeadAttention(WIDTH, HEADS, bias=False, leave_out=("output",))
    apart.load_state_dict({name: part for name, part in mixed.state_dict().items() if not name.startswith("output")})
    heads = apart(x).unflatten(-1, (HEADS, WIDTH // HEADS))  # Y_1, …, Y_h side by side
    w_o = mixed.output.weight.mT.unflatten(0, (HEADS, WIDTH // HEADS))  # W_O^i
    summed = sum(heads[:, :, i] @ w_o[i] for i in range(HEADS))
    assert torch.allclose(mixed(x), summed, atol=1e-5)
    print(f"heads {tuple(heads.shape)}, joined {tuple(apart(x).shape)}, through W_O {tuple(mixed(x).shape)}")
    # qᵢ·kⱼ = xᵢᵀ (W_q W_kᵀ) xⱼ: each head is a multiplicative attention whose matrix has the rank of the head.
    query, key, value = (part.unflatten(-1, (HEADS, -1)) for part in apart.projections.together(x))
    w_q, w_k = (mixed.projections.part(index)[0].mT.unflatten(1, (HEADS, -1)) for index in (0, 1))
    for i in range(HEADS):
        matrix = w_q[:, i] @ w_k[:, i].mT  # W^a of the recitation, 32 × 32
        bilinear = qkv.scores.Bilinear(matrix, scale=(WIDTH // HEADS) ** -0.5)
        one = qkv.attention(x, x, value[:, :, i], score=bilinear)
        assert torch.allclose(one, heads[:, :, i], atol=1e-5)
        assert int(torch.linalg.matrix_rank(matrix)) == WIDTH // HEADS
    print(f"each head's W is {WIDTH} × {WIDTH} of rank {WIDTH // HEADS}")
    assert query.shape == key.shape == value.shape == heads.shape


if __name__ == "__main__":
    main()
