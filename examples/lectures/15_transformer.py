"""The three attentions of a Transformer at work: which tokens each token can attend to.

Self-attention in the encoder sees the whole source. Masked self-attention in the decoder sees earlier tokens.
Cross-attention takes its queries from the decoder and its keys and values from the encoder, and sees the whole source.
"""

from pathlib import Path

import torch
from examples.mechanisms.drawing import heat, keep, panels, run

import qkv
from qkv.models.transformer import TransformerConfig, TransformerTranslator

ATTENTIONS = {
    "self": "encoder.0.self_attention.attention",
    "masked self": "decoder.0.self_attention.attention",
    "cross": "decoder.0.cross_attention.attention",
}


def main(folder: Path) -> None:
    """Draw the weights of each, in an untrained model, and check the lecture's statements about them."""
    torch.manual_seed(0)
    config = TransformerConfig(size=20, width=32, heads=2, feed_forward=64, encoder_layers=1, decoder_layers=1)
    model = TransformerTranslator(config).eval()
    source, target = torch.randint(4, 20, (1, 7)), torch.randint(4, 20, (1, 5))
    with qkv.record(model) as trace:
        whole = model(source, torch.tensor([7]), target)
    weights = {name: trace.weights(layer)[0, 0] for name, layer in ATTENTIONS.items()}
    figure, axes = panels(3, width=2.6, height=2.5)
    for axis, (name, matrix) in zip(axes, weights.items(), strict=True):
        heat(axis, matrix, name)
        print(f"{name:12} {tuple(matrix.shape)}, largest weight after the query {float(matrix.triu(1).max()):.2f}")
    assert weights["self"].shape == (7, 7)
    assert weights["cross"].shape == (5, 7), "queries of the target, keys of the source"
    assert bool((weights["self"] > 0).all() and (weights["cross"] > 0).all()), "all tokens are seen"
    assert bool((weights["masked self"].triu(1) == 0).all()), "and here only those before"
    # Decoding is autoregressive: step by step gives the same as all at once, because nothing sees ahead.
    state = model.start(source, torch.tensor([7]))
    for place in range(5):
        logits, state = model.step(target[:, place], state)
        assert torch.allclose(logits, whole[:, place], atol=1e-4)
    keep(figure, folder, "15_transformer")


if __name__ == "__main__":
    run(main)
