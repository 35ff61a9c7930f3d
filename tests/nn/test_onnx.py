"""Layers exported by `torch.onnx` compute in ONNX Runtime what they compute here, also for other numbers."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from qkv import masks
from qkv.nn import Attention, FeedForward, MultiHeadAttention, Rotary, TransformerBlock
from qkv.normalizers import Entmax, Hard, Mean, Normalizer, Sigmoid, Softmax, Sparsemax

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")


class Causal(nn.Module):
    """A block of a language model."""

    def __init__(self) -> None:
        super().__init__()
        attention = MultiHeadAttention(8, 2, key_heads=1, positions=Rotary())
        self.block = TransformerBlock(attention, FeedForward(8, 16))

    def forward(self, x: Tensor) -> Tensor:
        """Read a text from left to right."""
        out: Tensor = self.block(x, masks.causal())
        return out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_causal_block_is_exported() -> None:
    torch.manual_seed(0)
    layer, x = Causal().eval(), torch.randn(2, 5, 8)
    program = torch.onnx.export(layer, (x,), dynamo=True, verbose=False)
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    (name,) = (each.name for each in session.get_inputs())
    lost = x.clone()
    lost[0, :2] = torch.nan
    for each in (x, -3 * x, lost):
        (result,) = session.run(None, {name: each.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(result), layer(each), rtol=1e-4, atol=1e-5, equal_nan=True)


class Lookup(nn.Module):
    """Hard attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(normalizer=Hard())

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Look up the value of the best earlier key."""
        out: Tensor = self.attention(query, key, value, mask=masks.causal(-1))
        return out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_hard_attention_is_exported_with_its_ties() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, size, 4) for size in (5, 7, 7))
    program = torch.onnx.export(Lookup(), (query, key, value), dynamo=True, verbose=False)
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    names = [each.name for each in session.get_inputs()]
    tied = key.clone()
    tied[:, 1:] = tied[:, :1]
    for each in (key, tied, -key):
        call = (query, each, value)
        (result,) = session.run(None, {name: x.numpy() for name, x in zip(names, call, strict=True)})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(result), Lookup()(*call))


class Padded(nn.Module):
    """Attention to sequences of several lengths."""

    def __init__(self, normalizer: Normalizer) -> None:
        super().__init__()
        self.attention = Attention(normalizer=normalizer, backend="reference")

    def forward(self, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
        """Attend to the first keys of each item."""
        out: Tensor = self.attention(query, key, value, mask=masks.lengths(lengths))
        return out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "normalizer", [Softmax(), Softmax(0.5), Hard(), Sparsemax(), Entmax(1.3), Sigmoid(), Mean()], ids=repr
)
def test_nan_anywhere_shows_where_it_does_here(normalizer: Normalizer) -> None:
    """The largest number of a row is NaN here; in ONNX Runtime that depends on the place of the NaN."""
    torch.manual_seed(0)
    layer, clean = Padded(normalizer), [torch.randn(2, size, 4) for size in (5, 9, 9)]
    lengths = torch.tensor([1, 6])
    program = torch.onnx.export(layer, (*clean, lengths), dynamo=True, verbose=False)
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    names = [each.name for each in session.get_inputs()]
    for index, item, place in product(range(3), range(2), range(9)):
        call = [x.clone() for x in clean]
        call[index][item, min(place, call[index].shape[1] - 1), place % 4] = torch.nan
        every = (*call, lengths)
        (result,) = session.run(None, {name: x.numpy() for name, x in zip(names, every, strict=True)})
        expected = layer(*every)
        torch.testing.assert_close(torch.from_numpy(result), expected, rtol=1e-4, atol=1e-5, equal_nan=True)
