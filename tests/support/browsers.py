"""Chromium without a window, for the page's tests.

As a program, which `make test` runs first, it prints where Chromium is or how to get it.
"""

import shutil
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# How long a page may take to show what it must; a busy machine takes its time.
_WAIT_MS_MAX = 120_000
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def find_chromium() -> str:
    executable = next((path for name in _NAMES if (path := shutil.which(name))), None)
    assert executable, "Chromium is missing; on Debian and Ubuntu: apt-get install chromium"
    return executable


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = find_chromium()
    expect.set_options(timeout=_WAIT_MS_MAX)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=list(_ARGUMENTS))
        yield running
        running.close()


if __name__ == "__main__":
    try:
        print(find_chromium())
    except AssertionError as missing:
        sys.exit(str(missing))
