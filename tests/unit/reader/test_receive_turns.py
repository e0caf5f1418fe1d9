"""Taking turns costs little: for a thread that waits for a silent stream, and for one alone."""

import threading
import time

from slackwater.reader.query.receive_turns import ReceiveTurn


def test_a_turn_is_one_threads_until_it_leaves_it() -> None:
    first, second = ReceiveTurn(), ReceiveTurn()
    assert first.acquire(0.0)
    assert first.is_held
    taken = threading.Event()

    def take() -> None:
        second.acquire(0.0)
        taken.set()

    thread = threading.Thread(target=take)
    first.charge(10)
    assert first.is_held
    first.charge(10**9)
    first.release()
    assert not first.is_held
    thread.start()
    assert taken.wait(240)
    assert second.is_held
    second.release()


def test_a_thread_that_waits_for_a_silent_stream_goes_on_without_the_turn() -> None:
    silent, busy = ReceiveTurn(), ReceiveTurn()
    assert silent.acquire(0.0)
    begun = time.monotonic()
    assert busy.acquire(100.0)
    assert not busy.is_held
    assert time.monotonic() - begun < 5
    assert not busy.acquire(100.5), "it is not waited for with every portion"
    silent.release()
    assert busy.acquire(101.5)
    assert busy.is_held
    busy.release()
