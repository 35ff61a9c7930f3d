"""Our layer where PyTorch's are expected, and PyTorch's layers under the recorder."""

import copy

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.errors import ArgumentError, CheckpointError, ShapeError, UnsupportedError
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.pytorch import TorchMultiheadAttention

B, Q, K, M, H = 3, 5, 7, 8, 2


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


PADDING = torch.arange(K) >= torch.tensor([[7], [4], [5]])
ADDED = torch.zeros(B, K, dtype=torch.float64).masked_fill(PADDING, -torch.inf)
MASKS: dict[str, dict[str, Tensor | None]] = {
    "none": {},
    "padding": {"key_padding_mask": PADDING},
    "padding added": {"key_padding_mask": torch.zeros(B, K, dtype=torch.float64).masked_fill(PADDING, -torch.inf)},
    "bool": {"attn_mask": torch.ones(Q, K, dtype=torch.bool).triu(2)},
    "both": {"attn_mask": torch.ones(Q, K, dtype=torch.bool).triu(2), "key_padding_mask": PADDING},
    "float": {"attn_mask": torch.linspace(-1, 1, Q * K, dtype=torch.float64).reshape(Q, K)},
    "float per head": {"attn_mask": torch.linspace(-1, 1, B * H * Q * K, dtype=torch.float64).reshape(B * H, Q, K)},
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_it_gives_what_pytorchs_layer_gives(name: str, batch_first: bool) -> None:
    theirs = nn.MultiheadAttention(M, H, batch_first=batch_first).double().eval()
    ours = TorchMultiheadAttention(MultiHeadAttention.from_torch(theirs), batch_first=batch_first)
    query, memory = draw(B, Q, M), draw(B, K, M)
    given = (query, memory, memory) if batch_first else (query.mT.movedim(-1, 0), *[memory.transpose(0, 1)] * 2)
    given = given if batch_first else (query.transpose(0, 1), *given[1:])
    for average in (True, False):
        want = theirs(*given, **MASKS[name], average_attn_weights=average)
        got = ours(*given, **MASKS[name], average_attn_weights=average)
        torch.testing.assert_close(got, want)
    assert ours(*given, need_weights=False)[1] is None


def test_a_single_sequence_needs_no_batch() -> None:
    theirs = nn.MultiheadAttention(M, H).double().eval()
    ours = TorchMultiheadAttention(MultiHeadAttention.from_torch(theirs))
    x, padding = draw(K, M), PADDING[1]
    torch.testing.assert_close(ours(x, x, x, padding), theirs(x, x, x, padding))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_pytorchs_transformer_runs_with_our_attention(kind: str, grad: bool) -> None:
    torch.manual_seed(0)
    cls = nn.TransformerEncoderLayer if kind == "encoder" else nn.TransformerDecoderLayer
    layer = cls(M, H, 16, batch_first=True, dtype=torch.float64).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    x, source = draw(B, K, M), draw(B, Q, M)
    causal = nn.Transformer.generate_square_subsequent_mask(K, dtype=torch.float64)
    given = {"src_mask": causal} if kind == "encoder" else {"memory": source, "tgt_mask": causal}
    given |= {"is_causal": True} if kind == "encoder" else {"tgt_is_causal": True}
    given |= {"src_key_padding_mask" if kind == "encoder" else "tgt_key_padding_mask": ADDED}
    with torch.set_grad_enabled(grad):
        want = layer(x, **given)
        for name in ("self_attn", "multihead_attn"):
            if hasattr(layer, name):
                setattr(layer, name, TorchMultiheadAttention(MultiHeadAttention.from_torch(getattr(layer, name))))
        got = layer(x, **given)
    real = ~PADDING
    torch.testing.assert_close(got[real], want[real])


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # PyTorch's compiler reads it
def test_our_attention_in_the_place_of_theirs_is_compiled() -> None:
    """Alone: the rest of a Transformer is PyTorch's own, which the slow test below compiles for seconds."""
    theirs = nn.MultiheadAttention(M, H, batch_first=True, dtype=torch.float64)
    ours = TorchMultiheadAttention(MultiHeadAttention.from_torch(theirs))
    source, target = draw(B, K, M), draw(B, Q, M)
    given = {"key_padding_mask": PADDING, "need_weights": False}
    found, _ = torch.compile(ours, backend="eager")(target, source, source, **given)
    torch.testing.assert_close(found, theirs(target, source, source, **given)[0])


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # PyTorch's compiler reads it
@pytest.mark.parametrize(
    ("grad", "compiled"),
    [(True, False), (False, False), *(pytest.param(grad, True, marks=pytest.mark.slow) for grad in (True, False))],
)
def test_a_transformer_that_exists_takes_our_attention(grad: bool, compiled: bool) -> None:
    layers = 1 if compiled else 2  # PyTorch's compiler takes seconds for each, of the same code
    theirs = nn.Transformer(M, H, layers, layers, 16, batch_first=True, dtype=torch.float64).eval()
    ours = copy.deepcopy(theirs)
    for module in list(ours.modules()):
        for name, part in list(module.named_children()):
            if isinstance(part, nn.MultiheadAttention):
                setattr(module, name, TorchMultiheadAttention(MultiHeadAttention.from_torch(part)))
    run = torch.compile(ours, backend="eager") if compiled else ours
    source, target = draw(B, K, M), draw(B, Q, M)
    causal = nn.Transformer.generate_square_subsequent_mask(Q, dtype=torch.float64)
    # Each graph takes the compiler seconds: with gradients padded, without them not.
    for padding in [PADDING if grad else None] if compiled else (None, PADDING):
        given = {"tgt_mask": causal, "src_key_padding_mask": padding, "memory_key_padding_mask": padding}
        want = theirs(source, target, **given)  # with gradients, which its fast path does not have
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(run(source, target, **given), want, check_stride=False)


def test_a_stack_of_layers_trains_with_another_score() -> None:
    layer = nn.TransformerEncoderLayer(M, H, 16, batch_first=True)
    layer.self_attn = TorchMultiheadAttention(MultiHeadAttention(M, H, score="gaussian"))
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with qkv.record(stack) as trace:
        stack(torch.randn(B, K, M), src_key_padding_mask=PADDING).sum().backward()
    assert len(trace.layers) == 2
    assert trace.weights(trace.layers[1]).shape == (B, H, K, K)
    assert all(parameter.grad is not None for parameter in stack.parameters())


def test_masks_that_do_not_fit_are_named() -> None:
    ours = TorchMultiheadAttention(MultiHeadAttention(M, H))
    x = torch.randn(B, Q, M)
    with pytest.raises(ShapeError, match=r"key_padding_mask: expected shape \(B, K\); got \(5,\)"):
        ours(x, x, x, key_padding_mask=torch.zeros(5, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"attn_mask: expected shape \(Q, K\) or \(B·H, Q, K\); got \(3, 5, 5\)"):
        ours(x, x, x, attn_mask=torch.zeros(B, Q, Q, dtype=torch.bool))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("widths", [{}, {"kdim": 5, "vdim": 7}], ids=str)
def test_weights_of_pytorchs_layer_are_converted_not_loaded(strict: bool, widths: dict[str, int]) -> None:
    theirs = nn.MultiheadAttention(M, H, batch_first=True, **widths)
    ours = MultiHeadAttention.from_torch(theirs)
    ours.load_state_dict(copy.deepcopy(ours).state_dict())
    for layer in (ours, TorchMultiheadAttention(ours)):
        with pytest.raises(CheckpointError, match=r"state_dict: .* got .*_weight, .*from_torch"):
            layer.load_state_dict(theirs.state_dict(), strict=strict)
        with pytest.raises(CheckpointError, match=r"got 0\..*_weight, .*from_torch"):
            nn.Sequential(layer).load_state_dict(nn.Sequential(theirs).state_dict(), strict=strict)


@pytest.mark.parametrize("name", MASKS)
def test_pytorchs_layer_is_recorded(name: str) -> None:
    theirs = nn.MultiheadAttention(M, H, batch_first=True).double().eval()
    query, memory = draw(B, Q, M), draw(B, K, M)
    with qkv.record(theirs) as trace:
        want = theirs(query, memory, memory, **MASKS[name], average_attn_weights=False)[1]
    torch.testing.assert_close(trace.weights("attention"), want)
    (layer,) = trace.scene(1).layers
    assert (layer.kind, layer.queries, layer.keys) == ("cross", "target", "source")
    torch.testing.assert_close(layer.map().dense(), want[1])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("padded", [True, False])
def test_pytorchs_whole_transformer_is_recorded(padded: bool) -> None:
    """The fast path of the encoder, and its nested tensors, leave no attention to record: it is off meanwhile."""
    torch.manual_seed(0)
    model = nn.Transformer(M, H, 2, 2, 16, batch_first=True).eval()
    x, y = torch.randn(B, K, M), torch.randn(B, Q, M)
    given = {"src_key_padding_mask": ADDED.float(), "memory_key_padding_mask": ADDED.float()} if padded else {}
    given["tgt_mask"] = nn.Transformer.generate_square_subsequent_mask(Q)
    with torch.no_grad():
        want = model(x, y, **given, tgt_is_causal=True)
        with qkv.record(model) as trace:
            got = model(x, y, **given, tgt_is_causal=True)
    assert torch.backends.mha.get_fastpath_enabled()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    kinds = {
        name: (layer.kind, layer.queries, layer.keys)
        for name, layer in zip(trace.layers, trace.scene(0).layers, strict=True)
    }
    assert kinds == {
        "encoder.layers.0.self_attn": ("self", "source", "source"),
        "encoder.layers.1.self_attn": ("self", "source", "source"),
        "decoder.layers.0.self_attn": ("self", "target", "target"),
        "decoder.layers.0.multihead_attn": ("cross", "target", "source"),
        "decoder.layers.1.self_attn": ("self", "target", "target"),
        "decoder.layers.1.multihead_attn": ("cross", "target", "source"),
    }
    hidden = trace.weights("encoder.layers.1.self_attn")[1, :, :, 4:]
    assert bool((hidden == 0).all()) == padded


def test_an_extra_key_is_refused() -> None:
    with (
        pytest.raises(UnsupportedError, match="attention: expected keys that belong to positions"),
        qkv.record(nn.MultiheadAttention(M, H, add_zero_attn=True)),
    ):
        pass


def test_arguments_of_other_libraries_are_named_as_ours() -> None:
    x = torch.randn(1, 2, 3, 4)
    for name, says in {
        "is_causal": r"mask=qkv\.masks\.causal\(\)",
        "attn_mask": "as mask=",
        "scale": r"ScaledDot\(scale=",
        "dropout_p": "dropout=",
        "key_padding_mask": "~key_padding_mask",
        "embed_dim": "MultiHeadAttention",
        "maks": 'Did you mean "mask"',
    }.items():
        for function in (qkv.attention, qkv.attention_with_weights, qkv.attention_with_state):
            with pytest.raises(
                ArgumentError, match=f"{name}: expected an argument of this function; got '{name}'. .*{says}"
            ):
                function(x, x, x, **{name: 1})
    with pytest.raises(ArgumentError, match=r"embed_dim: .* Pass width="):
        MultiHeadAttention(embed_dim=8, heads=2)
    with pytest.raises(TypeError, match="missing"):
        qkv.attention(x, x)
