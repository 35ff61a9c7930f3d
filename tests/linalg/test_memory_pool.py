"""Memory comes back to its pool with the last tensor in it, and is never given to two."""

import random
import threading

import numpy as np
import torch

from qkv.linalg.memory_pool import MemoryPool


def test_memory_that_anything_lies_in_is_not_given_again() -> None:
    pool = MemoryPool()
    first = pool.tensor((4, 8))
    view = first[1:, ::2].T.detach()
    place, part = first.data_ptr(), view.data_ptr()
    del first
    second = pool.tensor((4, 8))
    assert second.data_ptr() != place
    view.fill_(1.0)
    second.zero_()
    assert view.sum() == view.numel()
    array = view.numpy()[1:]
    del view
    assert pool.tensor((4, 8)).data_ptr() not in (place, part)
    assert array.sum() == array.size
    again = torch.from_numpy(array)
    del array
    assert pool.tensor((4, 8)).data_ptr() != place
    assert again.sum() == again.numel()
    del again, second
    assert place in {tensor.data_ptr() for tensor in (pool.tensor((2, 16)), *(pool.tensor((4, 8)) for _ in range(3)))}


def test_a_piece_much_larger_than_the_request_stays_free() -> None:
    pool = MemoryPool()
    place = pool.tensor((1000,)).data_ptr()
    small = pool.tensor((100,))
    assert small.data_ptr() != place
    assert pool.tensor((900,)).data_ptr() == place


def test_the_smallest_piece_that_fits_is_taken() -> None:
    pool = MemoryPool()
    tensors = [pool.tensor((size,)) for size in (300, 200, 250)]
    place = tensors[1].data_ptr()
    del tensors
    assert pool.tensor((190,)).data_ptr() == place


def test_memory_begins_where_a_line_of_the_cache_does() -> None:
    pool = MemoryPool()
    taken = [pool.tensor((size,)) for size in (1, 7, 100)]
    assert all(x.data_ptr() % 64 == 0 for x in taken)
    assert torch.equal(pool.tensor((0, 3)), torch.empty(0, 3))


def test_other_types_have_their_size() -> None:
    pool = MemoryPool()
    wide = pool.tensor((5, 2), np.float64)
    assert (wide.dtype, wide.shape, wide.is_contiguous()) == (torch.float64, (5, 2), True)
    place = wide.data_ptr()
    del wide
    assert pool.tensor((20,)).data_ptr() == place


def test_beyond_the_limit_memory_is_not_kept() -> None:
    pool = MemoryPool(most=1000)
    held = [pool.tensor((100,)).fill_(float(number)) for number in range(4)]
    places = [x.data_ptr() for x in held]
    del held[:3]
    assert pool.tensor((100,)).data_ptr() in places
    assert len(pool._idle) == 2
    assert bool((held[0] == 3).all())
    assert pool.tensor((5000,)).shape == (5000,)
    assert len(pool._idle) == 2


def test_tensors_outlive_their_pool() -> None:
    pool = MemoryPool()
    tensor = pool.tensor((50,)).fill_(2.0)
    del pool
    assert tensor.sum() == 100


def test_much_taking_and_letting_go_never_mixes_two() -> None:
    chance, pool = random.Random(0), MemoryPool(most=50_000)
    held: list[tuple[torch.Tensor, float]] = []
    for number in range(3000):
        if held and chance.random() < 0.5:
            tensor, filled = held.pop(chance.randrange(len(held)))
            assert bool((tensor == filled).all())
        else:
            held.append((pool.tensor((chance.randrange(1, 2000),)).fill_(float(number)), float(number)))


def test_threads_may_share_a_pool() -> None:
    pool, wrong = MemoryPool(), []

    def work(own: float) -> None:
        for _ in range(500):
            tensors = [pool.tensor((size,)).fill_(own) for size in (10, 20, 30)]
            wrong.extend(x for x in tensors if not bool((x == own).all()))

    threads = [threading.Thread(target=work, args=(float(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
