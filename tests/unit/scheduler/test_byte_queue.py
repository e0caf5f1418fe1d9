"""A byte queue bounds the bytes that wait in it, and stops its senders without a receiver."""

import threading
import time

import pytest

from slackwater.scheduler.tasks.byte_queue import ByteQueue, ClosedError


def test_a_queue_holds_no_more_bytes_than_its_bound() -> None:
    queue: ByteQueue[int] = ByteQueue(10)
    queue.put(1, 6)
    blocked = threading.Thread(target=queue.put, args=(2, 6))
    blocked.start()
    time.sleep(0.05)
    assert blocked.is_alive()
    items = iter(queue)
    assert next(items) == 1
    blocked.join(timeout=240)
    queue.end()
    assert list(items) == [2]


def test_a_queue_without_a_receiver_stops_its_senders() -> None:
    queue: ByteQueue[int] = ByteQueue(1)
    queue.close()
    with pytest.raises(ClosedError):
        queue.put(1, 1)
