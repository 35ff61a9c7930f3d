"""Layers exported by `torch.onnx` compute in ONNX Runtime what they compute here, also for other numbers."""

import pytest
import torch
from torch import Tensor, nn

from qkv import masks
from qkv.nn import Attention, FeedForward, MultiHeadAttention, Rotary, TransformerBlock
from qkv.normalizers import Hard

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
