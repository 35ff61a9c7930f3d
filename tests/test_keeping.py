"""What is kept is shared within the outermost block and nowhere else; memory in use is never given twice."""

import threading

import torch

from qkv.keeping import Rooms, keeping, kept


def test_one_of_each_kind_until_the_outermost_block_ends() -> None:
    with keeping():
        first = kept(list)
        with keeping():
            assert kept(list) is first
            assert kept(dict) is kept(dict)
        assert kept(list) is first
    assert kept(list) is None
    with keeping():
        assert kept(list) is not first


def test_another_thread_keeps_its_own() -> None:
    found: list[object] = []
    with keeping():
        thread = threading.Thread(target=lambda: found.append(kept(list)))
        thread.start()
        thread.join()
    assert found == [None]


def test_memory_that_anything_lies_in_is_not_given_again() -> None:
    rooms = Rooms()
    first = rooms.tensor((4, 8))
    view = first[1:, ::2].T.detach()
    place, part = first.data_ptr(), view.data_ptr()
    del first
    second = rooms.tensor((4, 8))
    assert second.data_ptr() != place
    view.fill_(1.0)
    second.zero_()
    assert view.sum() == view.numel()
    array = view.numpy()
    del view
    assert rooms.tensor((4, 8)).data_ptr() not in (place, part)
    assert array.sum() == array.size
    del array
    assert rooms.tensor((2, 16)).data_ptr() == place


def test_a_room_much_larger_than_what_is_asked_for_stays_free() -> None:
    rooms = Rooms()
    place = rooms.tensor((1000,)).data_ptr()
    small = rooms.tensor((100,))
    assert small.data_ptr() != place
    assert rooms.tensor((900,)).data_ptr() == place


def test_memory_begins_where_a_line_of_the_cache_does() -> None:
    rooms = Rooms()
    taken = [rooms.tensor((size,)) for size in (1, 7, 100)]
    assert all(x.data_ptr() % 64 == 0 for x in taken)
    assert torch.equal(rooms.tensor((0, 3)), torch.empty(0, 3))
