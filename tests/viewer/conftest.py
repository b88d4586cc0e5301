"""A real browser with the network off: whatever a page asks for beyond itself fails the test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from shown import Open

import qkv


@pytest.fixture
def open_view(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Save a view and open the file; afterwards, check that nothing was asked for or went wrong."""
    asked: list[str] = []
    wrong: list[str] = []
    pages: list[Page] = []

    def open_view(view: qkv.View, **context: object) -> Page:
        path = tmp_path / f"view-{len(pages)}.html"
        view.save(path)
        page = browser.new_context(
            offline=True, viewport={"width": 1200, "height": 860}, **context
        ).new_page()
        page.set_default_timeout(5000)
        page.route(re.compile("^(?!file:)"), lambda route: route.abort())
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        pages.append(page)
        page.goto(path.as_uri())
        page.get_by_role("grid").wait_for()
        return page

    yield open_view
    for page in pages:
        page.context.close()
    assert wrong == []
    assert asked == [(tmp_path / f"view-{i}.html").as_uri() for i in range(len(pages))]
