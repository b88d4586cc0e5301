"""A server as the command starts it, and a browser that can reach nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from explored import Open, Server, new_page, served
from playwright.sync_api import Browser, Page

from qkv.explore.dates import Dates


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with served() as server:
        server.ready()
        yield server


@pytest.fixture(scope="session")
def dates(tmp_path_factory: pytest.TempPathFactory) -> Dates:
    """A translator that was trained for a moment: what it writes is wrong, and that is enough."""
    cache = tmp_path_factory.mktemp("cache")
    dates = Dates(cache / "qkv" / "explore" / "dates", pairs=500, epochs=1)
    assert dates.stage == "none"
    dates.start()
    dates.start()  # a second one at once changes nothing
    assert dates.stage == "training"
    for _ in range(1000):
        if dates.stage != "training":
            break
        time.sleep(0.1)
    assert dates.stage == "ready"
    return dates


@pytest.fixture
def open_page(browser: Browser, server: Server) -> Iterator[Open]:
    """Open a room; afterwards, check that nothing else was asked for and nothing went wrong."""
    asked: list[str] = []
    wrong: list[str] = []
    pages: list[Page] = []

    def open_page(path: str, **options: object) -> Page:
        page = new_page(browser, server, asked, wrong, **options)
        pages.append(page)
        page.goto(f"{server.address}{path}")
        return page

    yield open_page
    for page in pages:
        page.context.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith((server.address, "blob:", "data:"))] == []
