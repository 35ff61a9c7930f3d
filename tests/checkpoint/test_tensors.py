from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.checkpoint.tensors import pack, unpack
from qkv.errors import CheckpointError

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4)])
def test_every_dtype_and_shape_comes_back(dtype, shape):
    tensor = torch.randint(0, 2, shape).to(dtype)
    data, tied = pack({"x": tensor}, "model")
    back = unpack(data, tied, "model")["x"]
    assert back.dtype == dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)


def test_nan_and_infinity_come_back_bit_for_bit():
    tensor = torch.tensor([float("nan"), float("-inf"), -0.0])
    data, tied = pack({"x": tensor}, "model")
    assert torch.equal(unpack(data, tied, "model")["x"].view(torch.int32), tensor.view(torch.int32))


def test_views_of_one_memory_that_differ_are_stored_apart():
    memory = torch.arange(12.0).reshape(3, 4)
    tensors = {"whole": memory, "transposed": memory.T, "row": memory[1], "again": memory}
    data, tied = pack(tensors, "model")
    assert tied == {"whole": "again"}
    back = unpack(data, tied, "model")
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_tied_names_give_one_tensor_and_are_stored_once():
    weight = torch.ones(1000)
    data, tied = pack({"a": weight, "b": weight, "c": weight}, "model")
    assert len(data) < 5000
    back = unpack(data, tied, "model")
    assert back["a"] is back["b"] is back["c"]


def test_empty_tensors_are_never_tied():
    _, tied = pack({"a": torch.zeros(0), "b": torch.zeros(0)}, "model")
    assert tied == {}


@given(st.permutations(["a", "b", "c", "d"]))
def test_the_bytes_do_not_depend_on_the_order_of_names(names):
    tensors = {name: torch.full((2,), float(ord(name))) for name in names}
    assert pack(tensors, "model")[0] == pack(dict(sorted(tensors.items())), "model")[0]


def test_later_changes_to_a_parameter_do_not_reach_the_bytes():
    parameter = torch.nn.Parameter(torch.zeros(2))
    data, tied = pack({"x": parameter}, "model")
    with torch.no_grad():
        parameter += 1
    assert unpack(data, tied, "model")["x"].tolist() == [0, 0]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, dtype=torch.complex64),
        torch.eye(2).to_sparse(),
        torch.ones(2, device="meta"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(tensor):
    with pytest.raises(CheckpointError, match=r"model: expected dense tensors.*'layer\.x'"):
        pack({"layer.x": tensor}, "model")


@pytest.mark.parametrize("name", ["", "__metadata__"])
def test_names_the_format_cannot_hold_are_refused(name):
    with pytest.raises(CheckpointError, match="names supported by safetensors"):
        pack({name: torch.ones(1)}, "model")


@pytest.mark.parametrize("tied", [{"b": "missing"}, {"a": "a"}])
def test_a_tie_that_leads_nowhere_is_refused(tied):
    data, _ = pack({"a": torch.ones(1)}, "model")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        unpack(data, tied, "model.safetensors")


@given(st.data())
def test_altered_bytes_are_read_or_refused_by_a_typed_error(data):
    good, _ = pack({"a": torch.ones(3), "b": torch.zeros(2, dtype=torch.int64)}, "model")
    place = data.draw(st.integers(0, len(good) - 1))
    bad = good[:place] + data.draw(st.binary(max_size=9)) + good[place + data.draw(st.integers(0, 9)) :]
    with suppress(CheckpointError):
        assert all(tensor.numel() <= 10 for tensor in unpack(bad, {}, "model.safetensors").values())
