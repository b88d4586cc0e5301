from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import hypothesis
import pytest
import torch
from playwright.sync_api import Browser, expect, sync_playwright

expect.set_options(timeout=20_000)  # tests share the cores with whatever else runs

# The same cases every time: what passed passes again. The long profile draws others.
hypothesis.settings.register_profile("default", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.register_profile("long", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


if "PYTEST_XDIST_WORKER" in os.environ:
    # The workers share the cores, and so do the processes that they start.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the tests were computed by: code is compiled for one processor or another."""
    from qkv.jit.target import target

    torchs = torch.backends.cpu.get_cpu_capability()
    terminalreporter.write_line(f"compiled for {target().cpu}; torch's own kernels for {torchs}")


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One for all tests of a process: Playwright starts once in each."""
    chromium = shutil.which("chromium")
    if chromium is None:
        missing = "no chromium: pages were not looked at (apt-get install chromium)"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()
