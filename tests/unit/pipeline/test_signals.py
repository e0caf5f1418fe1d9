"""SIGTERM and Ctrl-C ask the process to drain, whatever the main thread does at that moment."""

import os
import signal
import threading

from slackwater.pipeline.signals import termination_signals


def test_a_signal_within_a_wait_does_not_wait_for_the_lock_that_the_wait_holds() -> None:
    with termination_signals() as signals:
        # What Event.wait() holds while it begins and ends to wait.
        condition: threading.Condition = signals._cond  # type: ignore[attr-defined]
        with condition:
            os.kill(os.getpid(), signal.SIGTERM)
            assert not signals.is_set()
        assert signals.wait(60)
