"""A Transformer exported to CTranslate2 predicts the same ids there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qkv
from qkv.decode.greedy import greedy
from qkv.errors import UnsupportedError
from qkv.hub.ctranslate import to_ctranslate2
from qkv.models.configs.translator import TransformerConfig
from qkv.models.translator import TransformerTranslator

PIECES = ["<pad>", "<bos>", "<eos>", "<unk>", *(f"t{i}" for i in range(4, 23))]


def made(**options: Any) -> TransformerTranslator:
    torch.manual_seed(4)
    sizes = {"width": 16, "heads": 2, "feed_forward": 24, "encoder_layers": 2, "decoder_layers": 2}
    model = TransformerTranslator(TransformerConfig(size=len(PIECES), **{**sizes, **options})).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    with torch.no_grad():
        # All run to the limit, so that there is something to compare.
        model.output.bias[[0, 1, 2]] = -1e4
    return model


@pytest.mark.parametrize("options", [{}, {"norm_first": False, "tied": False}, {"score": "dot"}])
@pytest.mark.usefixtures("own_threads")
def test_greedy_ids_are_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    model = made(**options)
    to_ctranslate2(model, PIECES, tmp_path / "out", bos=1, eos=2, unk=3, positions=64)
    theirs = ctranslate2.Translator(str(tmp_path / "out"), device="cpu", intra_threads=1)
    source = torch.randint(4, len(PIECES), (6, 7))
    tokens = [[PIECES[i] for i in row] for row in source.tolist()]
    marks = {"bos": 1, "eos": 2, "limit": 9}
    lengths = torch.full((6,), 7)
    ours = [found.ids for found in greedy(model, source, lengths, **marks)]
    found = theirs.translate_batch(tokens, beam_size=1, max_decoding_length=9)
    assert [tuple(map(PIECES.index, one.hypotheses[0])) for one in found] == ours
    assert all(len(ids) == 9 for ids in ours)


@pytest.mark.parametrize("alignment", [(-1, None), (0, None), (1, None), (0, 0), (0, 3), (1, 2)])
@pytest.mark.usefixtures("own_threads")
def test_the_attention_that_aligns_is_returned(alignment: tuple[int, int | None], tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    model = made(heads=4)
    to_ctranslate2(model, PIECES, tmp_path / "out", bos=1, eos=2, unk=3, positions=64, alignment=alignment)
    theirs = ctranslate2.Translator(str(tmp_path / "out"), device="cpu", intra_threads=1)
    source = torch.randint(4, len(PIECES), (1, 7))
    (found,) = theirs.translate_batch(
        [[PIECES[i] for i in source[0].tolist()]], beam_size=1, max_decoding_length=9, return_attention=True
    )
    target = torch.tensor([[1, *map(PIECES.index, found.hypotheses[0])]])
    with torch.no_grad(), qkv.record(model) as trace:
        model(source, torch.tensor([7]), target)
    layer, head = alignment
    weights = trace.weights(f"decoder.{layer % 2}.cross_attention.attention")[0]  # (H, T + 1, S)
    expected = (weights.mean(0) if head is None else weights[head])[:9]
    torch.testing.assert_close(torch.tensor(found.attention[0]), expected, rtol=1e-4, atol=1e-5)


def test_a_score_that_it_does_not_compute_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="to: expected a score that CTranslate2 computes; got additive"):
        to_ctranslate2(made(score="additive"), PIECES, tmp_path, bos=1, eos=2, unk=3, positions=64)
