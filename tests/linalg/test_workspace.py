"""Reusable buffers are lent to one caller at a time, and their size is bounded."""

import threading

import pytest
import torch

import qkv
from qkv.linalg import memory_pool
from qkv.linalg.memory_pool import Workspace, borrow_workspace


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    memory_pool._thread_local.__dict__.clear()


def test_the_same_memory_comes_back() -> None:
    with borrow_workspace() as workspace:
        first = workspace.take("weights", (4, 5), torch.float32)
        assert workspace.take("weights", (2, 3), torch.float32).data_ptr() == first.data_ptr()
        assert workspace.take("weights", (2, 3), torch.float64).data_ptr() != first.data_ptr()
        assert workspace.take("products", (2, 3), torch.float32).data_ptr() != first.data_ptr()
    with borrow_workspace() as again:
        assert again.take("weights", (4, 5), torch.float32).data_ptr() == first.data_ptr()


def test_who_asks_meanwhile_gets_other_memory() -> None:
    with borrow_workspace() as workspace:
        mine = workspace.take("weights", (4,), torch.float32)
        with borrow_workspace() as others:
            assert others.take("weights", (4,), torch.float32).data_ptr() != mine.data_ptr()


def test_much_memory_is_not_kept() -> None:
    with borrow_workspace() as workspace:
        workspace.take("weights", (memory_pool.MAX_RETAINED + 1,), torch.uint8)
    with borrow_workspace() as fresh:
        assert fresh.bytes == 0


def test_what_fails_keeps_nothing() -> None:
    def fail() -> None:
        with borrow_workspace() as workspace:
            workspace.take("weights", (4,), torch.float32)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    with borrow_workspace() as fresh:
        assert fresh.bytes == 0


@pytest.mark.kernels
def test_memory_made_in_inference_mode_serves_outside() -> None:
    x = torch.randn(2, 40, 8)
    with torch.inference_mode():
        inside = qkv.attention(x, x, x, backend="rowwise")
    assert torch.equal(qkv.attention(x, x, x, backend="rowwise"), inside)
    leaf = x.clone().requires_grad_()
    qkv.attention(leaf, leaf, leaf, backend="rowwise").sum().backward()
    assert leaf.grad is not None


@pytest.mark.kernels
def test_threads_do_not_share_it() -> None:
    xs = [torch.randn(2, 60, 8) for _ in range(4)]
    expected = [qkv.attention(x, x, x, backend="rowwise") for x in xs]
    wrong: list[int] = []

    def work(place: int) -> None:
        x = xs[place]
        if not all(torch.equal(qkv.attention(x, x, x, backend="rowwise"), expected[place]) for _ in range(20)):
            wrong.append(place)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_room_is_named_by_its_type_too() -> None:
    workspace = Workspace()
    assert workspace.take("a", (3,), torch.float32).dtype == torch.float32
    assert workspace.take("a", (3,), torch.float64).dtype == torch.float64
    assert workspace.bytes == 36
