"""A server as the command starts it, and a browser that can reach nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from explored import Open, Server, served
from playwright.sync_api import Browser, Page


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with served() as server:
        server.ready()
        yield server


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


def new_page(
    browser: Browser, server: Server, asked: list[str], wrong: list[str], **options: object
) -> Page:
    context = browser.new_context(
        **{"viewport": {"width": 1200, "height": 900}, "accept_downloads": True, **options}
    )
    page = context.new_page()
    page.set_default_timeout(10_000)

    def only_ours(route: object) -> None:
        ours = route.request.url.startswith((server.address, "blob:", "data:"))
        route.continue_() if ours else route.abort()

    page.route("**/*", only_ours)
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    # What the server refuses, the page says itself; the browser notes it on the console, too.
    page.on(
        "console",
        lambda message: (
            None if message.text.startswith("Failed to load") else wrong.append(message.text)
        ),
    )
    return page
