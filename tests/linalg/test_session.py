"""What is kept is shared within the outermost block and nowhere else; memory in use is never given twice."""

import random
import threading

import torch

from qkv.linalg.session import ReusedMemory, decoding_session, session_value


def test_one_of_each_kind_until_the_outermost_block_ends() -> None:
    with decoding_session():
        first = session_value(list)
        with decoding_session():
            assert session_value(list) is first
            assert session_value(dict) is session_value(dict)
        assert session_value(list) is first
    assert session_value(list) is None
    with decoding_session():
        assert session_value(list) is not first


def test_another_thread_keeps_its_own() -> None:
    found: list[object] = []
    with decoding_session():
        thread = threading.Thread(target=lambda: found.append(session_value(list)))
        thread.start()
        thread.join()
    assert found == [None]


def test_memory_that_anything_lies_in_is_not_given_again() -> None:
    reused = ReusedMemory()
    first = reused.tensor((4, 8))
    view = first[1:, ::2].T.detach()
    place, part = first.data_ptr(), view.data_ptr()
    del first
    second = reused.tensor((4, 8))
    assert second.data_ptr() != place
    view.fill_(1.0)
    second.zero_()
    assert view.sum() == view.numel()
    array = view.numpy()
    del view
    assert reused.tensor((4, 8)).data_ptr() not in (place, part)
    assert array.sum() == array.size
    del array
    assert reused.tensor((2, 16)).data_ptr() == place


def test_a_room_much_larger_than_what_is_asked_for_stays_free() -> None:
    reused = ReusedMemory()
    place = reused.tensor((1000,)).data_ptr()
    small = reused.tensor((100,))
    assert small.data_ptr() != place
    assert reused.tensor((900,)).data_ptr() == place


def test_memory_begins_where_a_line_of_the_cache_does() -> None:
    reused = ReusedMemory()
    taken = [reused.tensor((size,)) for size in (1, 7, 100)]
    assert all(x.data_ptr() % 64 == 0 for x in taken)
    assert torch.equal(reused.tensor((0, 3)), torch.empty(0, 3))


def test_beyond_the_limit_idle_pieces_go_and_those_in_use_stay() -> None:
    reused = ReusedMemory(most=10_000)
    held = [reused.tensor((100,)).fill_(float(number)) for number in range(12)]
    del held[:9]
    fresh = [reused.tensor((size,)).fill_(-1.0) for size in (500, 400, 600, 500)]
    assert [x.shape[0] for x in fresh] == [500, 400, 600, 500]
    assert all(bool((x == -1).all()) for x in fresh)
    assert all(bool((x == number).all()) for x, number in zip(held, (9, 10, 11), strict=True))
    assert reused.tensor((5000,)).shape == (5000,)


def test_much_taking_and_letting_go_never_mixes_two() -> None:
    chance, reused = random.Random(0), ReusedMemory(most=50_000)
    held: list[tuple[torch.Tensor, float]] = []
    for number in range(3000):
        if held and chance.random() < 0.5:
            tensor, filled = held.pop(chance.randrange(len(held)))
            assert bool((tensor == filled).all())
        else:
            held.append((reused.tensor((chance.randrange(1, 2000),)).fill_(float(number)), float(number)))
