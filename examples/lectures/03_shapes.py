"""Which sizes must agree, which dimension the softmax normalizes, and how the lecture's columns become rows."""

import torch

import qkv

D_Q, D_K, D_V, N_Q, N_K = 4, 4, 3, 2, 5


def main() -> None:
    """Compute the lecture's equations on columns, the same on rows, and check what is refused."""
    torch.manual_seed(0)
    columns = torch.randn(D_Q, N_Q), torch.randn(D_K, N_K), torch.randn(D_V, N_K)
    query, key, value = columns
    scores = query.mT @ key  # A = QᵀK, n_q × n_k
    weights = scores.softmax(1)  # over each row: the keys of one query
    output = value @ weights.mT  # V·Aᵀ, d_v × n_q
    rows = [part.mT for part in columns]
    ours, our_weights = qkv.attention_with_weights(*rows, score=qkv.scores.Dot())
    assert torch.allclose(ours.mT, output, atol=1e-6), "rows say the same as columns"
    assert torch.allclose(our_weights, weights, atol=1e-6)
    print(f"A {tuple(scores.shape)}, output {tuple(output.shape)} in columns, {tuple(ours.shape)} in rows")
    print("rows of A sum to", [round(float(total), 3) for total in weights.sum(1)])
    wrong = scores.softmax(0)
    print("softmax over columns instead: a query's weights sum to", [round(float(t), 2) for t in wrong.sum(1)])
    assert not torch.allclose(wrong.sum(1), torch.ones(N_Q)), "then no query has a distribution"
    for what, sizes in {
        "d_q = d_k": ((N_Q, 7), (N_K, D_K), (N_K, D_V)),
        "n_k = n_v": ((N_Q, D_Q), (N_K, D_K), (N_K + 1, D_V)),
    }.items():
        try:
            qkv.attention(*(torch.randn(size) for size in sizes))
        except qkv.errors.ShapeError as error:
            print(f"{what}: {error}")
        else:
            raise AssertionError(what)
    # Nothing else must agree; with a bilinear score not even the widths of query and key.
    translated = qkv.scores.Bilinear(torch.randn(7, D_K))
    assert qkv.attention(torch.randn(N_Q, 7), rows[1], rows[2], score=translated).shape == (N_Q, D_V)


if __name__ == "__main__":
    main()
