"""What all rooms have in common: exports, the tour, accessibility, both themes and widths."""

from __future__ import annotations

import csv
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from explored import Open, Server, new_page, served
from PIL import Image
from playwright.sync_api import Browser, Page, expect

import qkv.explore
from qkv.explore.dates import Dates
from qkv.explore.tour import STEPS

BUILD = Path(__file__).parents[2] / "build" / "explore"

#: Each room, and a sign that it has answered.
ROOMS = {
    "pooling": "effective neighbours",
    "similarity": "bits of entropy",
    "sentence": "looks at",
    "table": "effective rows",
    "translate": "probability:",
}


@pytest.fixture(scope="module")
def whole(dates: Dates) -> Iterator[Server]:
    """A server whose date translator is there already."""
    with served(XDG_CACHE_HOME=str(dates.folder.parents[2])) as server:
        server.ready()
        yield server


@pytest.fixture
def open_whole(browser: Browser, whole: Server) -> Iterator[Open]:
    asked: list[str] = []
    wrong: list[str] = []
    pages: list[Page] = []

    def open_whole(path: str, **options: object) -> Page:
        pages.append(new_page(browser, whole, asked, wrong, **options))
        pages[-1].goto(f"{whole.address}{path}")
        return pages[-1]

    yield open_whole
    for page in pages:
        page.context.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith((whole.address, "blob:", "data:"))] == []


def settled(page: Page, room: str) -> None:
    expect(page.locator("main")).to_contain_text(ROOMS[room])
    expect(page.get_by_label("As Python")).to_contain_text("qkv")
    page.wait_for_timeout(250)


@pytest.mark.parametrize("room", ROOMS)
def test_everything_can_be_exported_and_opened_again(
    open_whole: Open, browser: Browser, tmp_path: Path, room: str
) -> None:
    page = open_whole(f"/{room}")
    settled(page, room)
    saved = {}
    for kind in ("PNG", "SVG", "CSV", "HTML"):
        with page.expect_download() as event:
            page.get_by_role("button", name=kind, exact=True).click()
        saved[kind] = tmp_path / event.value.suggested_filename
        event.value.save_as(saved[kind])
    with Image.open(saved["PNG"]) as image:
        colours = image.convert("RGB").getcolors(2**24)
        assert min(image.size) > 150
        assert colours is not None
        assert len(colours) > 20
    with saved["CSV"].open(newline="", encoding="utf-8") as stream:
        head, *rows = csv.reader(stream)
    assert len(rows) > 3
    assert {len(row) for row in rows} == {len(head)}
    weights = [float(row[head.index("weight")]) for row in rows]
    assert all(0 <= weight <= 1.000001 for weight in weights)
    code = page.get_by_label("As Python").inner_text()

    wrong: list[str] = []
    asked: list[str] = []
    context = browser.new_context(offline=True)
    alone = context.new_page()
    alone.on("console", lambda message: wrong.append(message.text))
    alone.on("pageerror", lambda error: wrong.append(str(error)))
    alone.on("request", lambda request: asked.append(request.url))
    alone.goto(saved["SVG"].as_uri())
    assert alone.locator("svg > *").count() > 10
    assert alone.locator("script").count() == 0
    asked.clear()
    alone.goto(saved["HTML"].as_uri())
    if room == "sentence":  # the view itself
        alone.get_by_role("grid").wait_for()
        assert alone.locator(".qkv-keys .qkv-token").count() == 14
    else:
        assert alone.locator("script").count() == 0
        assert alone.locator("svg").count() >= 2
        assert alone.locator("pre").first.inner_text().strip() == code.strip()
        assert alone.locator("tbody tr").count() == min(len(rows), 2000)
        assert alone.locator("thead th").all_inner_texts() == head
    policy = alone.locator("meta[http-equiv]").get_attribute("content") or ""
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert asked == [saved["HTML"].as_uri()]
    assert wrong == []
    context.close()


def test_the_tour_goes_through_all_rooms(open_whole: Open) -> None:
    page = open_whole("/pooling")
    page.get_by_role("link", name="Take the tour, 10 steps").click()
    for number, step in enumerate(STEPS, start=1):
        tour = page.get_by_role("region", name="Tour")
        expect(tour).to_contain_text(f"{number} of 10: {step['title']}")
        settled(page, step["address"][1:].partition("?")[0])
        expect(page.locator(".trouble")).to_be_hidden()
        assert f"tour={number}" in page.url
        if number < 10:
            tour.get_by_role("link", name="Next").click()
    page.go_back()
    expect(page.get_by_role("region", name="Tour")).to_contain_text("9 of 10")
    page.get_by_role("link", name="Leave the tour").click()
    expect(page.get_by_role("region", name="Tour")).to_have_count(0)
    assert len({step["address"].partition("?")[0] for step in STEPS}) == 5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("room", ROOMS)
def test_axe_finds_nothing_and_it_fits(open_whole: Open, room: str, theme: str) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    page = open_whole(f"/{room}", color_scheme=theme, reduced_motion="reduce", bypass_csp=True)
    settled(page, room)
    result = Axe().run(page)
    assert result.violations_count == 0, result.generate_report()
    page.screenshot(path=BUILD / f"{room}-{theme}-1280.png", full_page=True)
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_timeout(250)
    result = Axe().run(page)
    assert result.violations_count == 0, result.generate_report()
    page.screenshot(path=BUILD / f"{room}-{theme}-360.png", full_page=True)
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("room", ROOMS)
def test_the_keyboard_reaches_everything_and_focus_shows(open_whole: Open, room: str) -> None:
    page = open_whole(f"/{room}")
    settled(page, room)
    wanted = page.evaluate(
        """() => [...document.querySelectorAll("a[href], button, input, select, textarea")].filter(
        (e) => !e.disabled && e.tabIndex >= 0 && e.checkVisibility()).length"""
    )
    page.evaluate("() => document.body.focus()")
    reached = set()
    for _ in range(wanted + 60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                """() => { const e = document.activeElement;
            window.seen ??= new Map(); if (!seen.has(e)) seen.set(e, seen.size);
            return [seen.get(e), e.matches("a[href], button, input, select, textarea"),
                    getComputedStyle(e).outlineStyle !== "none" || e.type === "file"].join() }"""
            )
        )
    controls = [each for each in reached if ",true," in each]
    assert len(controls) >= wanted
    assert all(each.endswith("true") for each in controls)


def test_the_rooms_are_linked_and_history_works(open_whole: Open) -> None:
    page = open_whole("/pooling?kernel=boxcar")
    settled(page, "pooling")
    page.get_by_role("link", name="Table").click()
    settled(page, "table")
    page.get_by_role("link", name="Similarity").click()
    settled(page, "similarity")
    page.go_back()
    settled(page, "table")
    page.go_back()
    settled(page, "pooling")
    expect(page.get_by_label("Kernel", exact=True)).to_have_value("boxcar")
    page.go_forward()
    settled(page, "table")
    expect(page.get_by_role("link", name="Table")).to_have_attribute("aria-current", "page")


def test_nothing_jumps_while_one_plays(open_whole: Open) -> None:
    page = open_whole("/pooling")
    settled(page, "pooling")
    page.evaluate(
        """() => { window.shift = 0; new PerformanceObserver((list) => {
        for (const each of list.getEntries()) window.shift += each.value;
        }).observe({ type: "layout-shift", buffered: false }); }"""
    )
    box = page.locator("canvas.figure").bounding_box()
    assert box is not None
    for step in range(20):
        page.mouse.move(box["x"] + 60 + step * 20, box["y"] + 100)
    page.get_by_label("Bandwidth", exact=True).focus()
    for key in ("End", "Home", "ArrowRight"):
        page.keyboard.press(key)
    page.wait_for_timeout(400)
    assert page.evaluate("() => window.shift") < 0.01


def test_the_theme_is_chosen_and_kept(open_whole: Open) -> None:
    page = open_whole("/pooling")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(ground) != light
    page.reload()
    expect(page.get_by_role("button", name="Dark")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate(ground) != light


def test_stale_answers_are_dropped_and_the_pointer_never_waits(open_whole: Open) -> None:
    page = open_whole("/pooling")
    settled(page, "pooling")
    held: list[object] = []
    page.route("**/api/pooling/ask", lambda route: held.append(route))
    page.get_by_label("Kernel", exact=True).select_option("boxcar")  # is held up on its way
    while not held:
        page.wait_for_timeout(20)  # routes are told while Playwright waits
    page.unroute("**/api/pooling/ask")
    page.get_by_label("Kernel", exact=True).select_option("laplacian")
    expect(page.get_by_label("As Python")).to_contain_text('"laplacian"')
    for route in held:
        route.abort()
    page.wait_for_timeout(300)
    expect(page.get_by_label("As Python")).to_contain_text('"laplacian"')
    assert held
    expect(page.locator(".trouble")).to_be_hidden()


def test_a_server_that_is_gone_is_told(browser: Browser) -> None:
    with served() as server:
        server.ready()
        page = new_page(browser, server, [], [])
        page.goto(f"{server.address}/pooling")
        settled(page, "pooling")
    page.get_by_label("Kernel", exact=True).select_option("boxcar")
    expect(page.locator(".trouble")).to_contain_text("The explorer does not answer")
    page.context.close()


def test_the_first_page_does_not_wait_for_torch() -> None:
    start = time.perf_counter()
    with served() as server:
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        status, content, _ = server.send("GET", "/pooling")
        taken = time.perf_counter() - start
        assert "libtorch" not in maps
        assert (status, b"main.js" in content) == (200, True)
    assert taken < 2 * max(1, os.getloadavg()[0])  # other tests share the cores


def test_scripts_use_nothing_that_the_policy_forbids() -> None:
    folder = Path(qkv.explore.__file__).parent / "static"
    scripts = list(folder.rglob("*.js"))
    assert len(scripts) > 10
    for path in scripts:
        text = path.read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacent", "eval(", "Function(", ".write("):
            assert word not in text, (path, word)
        assert not re.search(r"https?://(?!www\.w3\.org)", text), path
