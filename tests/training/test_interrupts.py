import signal
import threading

import pytest

from qkv.training import interrupts
from qkv.training.interrupts import Interrupted, Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_remembered_and_handlers_are_put_back(number):
    # The parent process may ignore a signal, as nohup does.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with Interrupts() as ours:
            assert ours.received is None
            signal.raise_signal(number)
            assert ours.received == number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as ours:
            signal.raise_signal(signal.SIGHUP)
            assert ours.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_first_signal_counts():
    with Interrupts() as ours:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert ours.received == signal.SIGTERM


def test_a_second_press_ends_at_once(monkeypatch):
    monkeypatch.setattr(interrupts, "_SAME_PRESS_SECONDS", -1.0)
    with Interrupts():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_what_is_breakable_is_broken_off():
    with Interrupts() as ours:
        with pytest.raises(Interrupted), ours.breakable():  # noqa: PT012
            signal.raise_signal(signal.SIGINT)
            pytest.fail("went on after the signal")
        with pytest.raises(Interrupted), ours.breakable():
            pytest.fail("began after the signal")
        assert ours.received == signal.SIGINT


def test_outside_what_is_breakable_nothing_is_raised():
    with Interrupts() as ours:
        with ours.breakable():
            pass
        signal.raise_signal(signal.SIGINT)


def test_another_thread_may_train_without_signals():
    received: list[int | None] = []

    def work() -> None:
        with Interrupts() as ours:
            received.append(ours.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert received == [None]
