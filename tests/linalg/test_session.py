"""What is kept is shared within the outermost block and nowhere else."""

import threading

from qkv.linalg.session import decoding_session, session_value


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
