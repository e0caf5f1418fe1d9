"""Taking turns costs nobody much: not who waits for a silent stream, and not who is alone."""

from __future__ import annotations

import threading
import time

from slackwater.reader.query.receive_turns import Turn


def test_a_turn_is_one_threads_until_it_leaves_it() -> None:
    first, second = Turn(), Turn()
    assert first.take(0.0)
    assert first.is_mine
    taken = threading.Event()

    def take() -> None:
        second.take(0.0)
        taken.set()

    thread = threading.Thread(target=take)
    first.used(10)
    assert first.is_mine
    first.used(10**9)
    first.leave()
    assert not first.is_mine
    thread.start()
    assert taken.wait(10)
    assert second.is_mine
    second.leave()


def test_who_waits_for_a_silent_stream_goes_on_without_the_turn() -> None:
    silent, busy = Turn(), Turn()
    assert silent.take(0.0)
    begun = time.monotonic()
    assert busy.take(100.0)
    assert not busy.is_mine
    assert time.monotonic() - begun < 5
    assert not busy.take(100.5), "it is not waited for with every portion"
    silent.leave()
    assert busy.take(101.5)
    assert busy.is_mine
    busy.leave()
