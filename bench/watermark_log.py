"""A month of one-second epochs in the watermark log: files, cost of a line, time of a look-up.

python -m bench.watermark_log [--days 30] [--idle SHARE]
"""

import argparse
import json
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from slackwater.spark_sink.output.small_files import LocalFiles
from slackwater.spark_sink.output.watermark_lines import LogLine
from slackwater.spark_sink.output.watermark_log import LogWriter, latest_line
from slackwater.timestamp import datetime_to_rfc3339

_START = datetime(2026, 1, 1, tzinfo=UTC)
_EPOCHS_A_DAY = 86_400
_LOOK_UPS = 20


def main() -> None:
    """Write the log day by day on a fast clock, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--idle", type=float, default=0.0, help="share of epochs without records")
    parser.add_argument("--folder", type=Path, help="where; a temporary folder if left out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        files = LocalFiles(Path(folder) / "_watermarks")
        writer = LogWriter(files)
        for day in range(options.days):
            begun_s = time.process_time(), time.perf_counter()
            for second in range(_EPOCHS_A_DAY):
                epoch = day * _EPOCHS_A_DAY + second
                at = _START + timedelta(seconds=epoch)
                is_idle = second < options.idle * _EPOCHS_A_DAY
                fields = {
                    "pipeline": "orders",
                    "epoch": epoch,
                    "low_watermark": datetime_to_rfc3339(at),
                    "records": 0 if is_idle else 42,
                    "transactions": 0 if is_idle else 20,
                    "committed_at": datetime_to_rfc3339(at),
                }
                writer.add(LogLine(at, json.dumps(fields)))
                writer.merge()
            cpu_us = (time.process_time() - begun_s[0]) / _EPOCHS_A_DAY * 1e6
            wall_us = (time.perf_counter() - begun_s[1]) / _EPOCHS_A_DAY * 1e6
            looked_s = time.perf_counter()
            for _ in range(_LOOK_UPS):
                latest_line(files)
            look_up_ms = (time.perf_counter() - looked_s) / _LOOK_UPS * 1e3
            print(
                f"day {day + 1}: {len(files.names())} files, {wall_us:.0f} µs a line"
                f" ({cpu_us:.0f} µs of CPU), {look_up_ms:.1f} ms a look-up",
                flush=True,
            )


if __name__ == "__main__":
    main()
