"""Two processes of one pipeline: the owner is killed or frozen, and the other one takes over."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slackwater.demo.service import Service
from tests.proofs.takeover import wait_for
from tests.support.freezing import Frozen

# For a start or a takeover on a busy machine.
_START_S_MAX: Final = 300
# So far the successor of a frozen owner goes on, before and after the owner wakes up.
_GOES_ON_NS: Final = 5_000_000_000


@dataclass
class KilledPair:
    """One pipeline with two processes.

    Args:
        settings: the pipeline's; it must wait for the lease.
        folder: of the processes' logs.
        environ: what the processes' environment has besides this one's.

    Attributes:
        done: how often which fault was made.
    """

    settings: Mapping[str, Any]
    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._owner, self._standby = (
            Service(self.settings, self.folder / name, {**os.environ, **self.environ})
            for name in ("one", "two")
        )
        self._started: list[Service] = []

    def start(self, start_ns: int) -> None:
        """Start the owner at a time, in nanoseconds, and then the other process."""
        for service in (self._owner, self._standby):
            service.start()
            self._started.append(service)
            if service is self._owner:
                service.wait_for_watermark(start_ns, seconds_max=_START_S_MAX)
        wait_for(self._standby, "standing by", seconds_max=_START_S_MAX)

    def disturb(
        self, kills: int, freezes: int, wait_to_kill: Callable[[int], str], wait: Callable[[], None]
    ) -> None:
        """Kill and freeze in turns.

        Args:
            kills, freezes: how often.
            wait_to_kill: waits for the moment of a kill, by its number, and returns its name.
            wait: waits for the moment of a freeze.
        """
        for number in range(kills + freezes):
            if number % max(1, (kills + freezes) // max(1, freezes)) or freezes == 0:
                self.done[f"killed {wait_to_kill(number)}"] += 1
                self._kill()
            else:
                wait()
                self._freeze()
                self.done["frozen"] += 1
            self._owner, self._standby = self._standby, self._owner
            print(dict(self.done), file=sys.stderr, flush=True)

    def drain(self, end_ns: int) -> None:
        """Let the owner go on to a time, in nanoseconds, and end both processes.

        Raises:
            AssertionError: one does not end as it should.
        """
        self._owner.wait_for_watermark(end_ns, seconds_max=_START_S_MAX)
        for service in (self._standby, self._owner):
            assert service.drain() == 0, service.log.read_text()[-2_000:]

    def kill_all(self) -> None:
        """Kill what still runs."""
        for service in self._started:
            service.kill()

    def _kill(self) -> None:
        """Kill the owner; the other process takes over, and it stands by again."""
        reached_ns = self._owner.low_watermark_ns() or 0
        self._owner.kill()
        self._owner.start()
        self._owner.wait_for_watermark(reached_ns + 1, seconds_max=_START_S_MAX)

    def _freeze(self) -> None:
        """Freeze the owner; wake it up when the other one has gone on."""
        frozen = Frozen(self._owner, self.settings["state"]["url"])
        self._let_standby_go_on()
        frozen.thaw()
        # Awake, it finds that it is not the owner any more; the other one goes on.
        self._let_standby_go_on()

    def _let_standby_go_on(self) -> None:
        reached_ns = self._standby.low_watermark_ns() or 0
        self._standby.wait_for_watermark(reached_ns + _GOES_ON_NS, seconds_max=_START_S_MAX)
