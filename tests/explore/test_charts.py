"""What all charts can do: tell of a mark by pointer and by keyboard, and be zoomed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from explored import Open, Server, new_page, served
from playwright.sync_api import Browser, Locator, Page, expect

from qkv.explore.dates import Dates

#: What the first mark of each chart says, in the order of the page.
TOLD = {
    "/pooling?count=20": [r"point 0: key \S+, value \S+, weight \S+", r"bandwidth \S+: error \S+"],
    "/similarity?left=dot&row=2": [
        "cat looks at cat: score 1.53, weight 0.324",
        "a key at −2, 2 would score 0.6",
        r"cat looks at cat: score 1, weight \S+",
        r"a key at −2, 2 would score \S+",
    ],
    "/sentence?text=the+dog&beside=sentence": [
        r"the looks at the: 0\.\d+", r"The looks at The: 0\.\d+", r"dog looks at the: 0\.\d+",
    ],
    "/table": [r"gpa 3.5, salary 65,800, .*: weight 0.0149", r"gpa 2: \S+, mean within \S+ to"],
    "/table?by=field": [r"mechanical: 69,156, 90 % interval \S+ to \S+, 26.7", r"\S+, gpa 2: \S+"],
    "/table?source=students&key=name&value=major&similarity=fuzzy&query=Jon+Do": [
        "name John Doe, major psychology, .*: weight",
    ],
}  # fmt: skip


def charts(page: Page) -> list[Locator]:
    page.wait_for_timeout(400)
    return [each for each in page.locator("main canvas[tabindex='0']").all() if each.is_visible()]


def tip(chart: Locator) -> Locator:
    return chart.locator("xpath=..").locator(".tip")


@pytest.mark.parametrize("path", TOLD)
def test_each_chart_tells_of_its_marks_by_keyboard_and_by_pointer(
    open_page: Open, path: str
) -> None:
    page = open_page(path)
    expect(page.get_by_label("As Python")).to_contain_text("qkv")
    found = charts(page)
    assert len(found) == len(TOLD[path])
    for chart, first in zip(found, TOLD[path], strict=True):
        chart.focus()
        page.keyboard.press("ArrowRight")
        expect(tip(chart)).to_have_text(re.compile(first))
        box, own = chart.bounding_box(), tip(chart).bounding_box()
        assert box is not None
        assert own is not None
        assert own["x"] >= box["x"] - 1
        assert own["x"] + own["width"] <= box["x"] + box["width"] + 1
        page.keyboard.press("Escape")
        expect(tip(chart)).to_be_hidden()
    expect(page.locator("p.unseen[role=status]")).to_have_text(re.compile(TOLD[path][-1]))
    chart = found[-1]
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 20)
    expect(tip(chart)).to_be_visible()
    page.mouse.move(2, 2)
    expect(tip(chart)).to_be_hidden()


def test_points_and_bandwidths_are_zoomed(open_page: Open) -> None:
    page = open_page("/pooling")
    points, widths = charts(page)
    points.focus()
    page.keyboard.press("+")
    expect(page).to_have_url(re.compile(r"view=0\.\d+%2C3\.\d+"))
    page.keyboard.press("0")
    expect(page).to_have_url(re.compile(r"^((?!view).)*$"))
    box = points.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    expect(page).to_have_url(re.compile("view="))
    buttons = page.get_by_role("group", name="Zoom: points")
    for _ in range(2):  # farther than all there is shows all there is
        buttons.get_by_role("button", name="Zoom out").click()
    expect(page).to_have_url(re.compile(r"^((?!view).)*$"))
    _drawn(page, widths)
    expect(page).to_have_url(re.compile(r"widths=0\.\d+%2C\d"))
    page.get_by_role("button", name="Undo").click()
    expect(page).to_have_url(re.compile(r"^((?!widths).)*$"))


def test_rows_and_ranges_are_zoomed(open_page: Open) -> None:
    page = open_page("/table")
    rows, curve = charts(page)
    _drawn(page, rows)
    expect(page).to_have_url(re.compile("view="))
    page.get_by_role("group", name="Zoom: weights").get_by_role("button", name="Show all").click()
    expect(page).to_have_url(re.compile(r"^((?!view).)*$"))
    _drawn(page, curve)
    expect(page).to_have_url(re.compile("low=2.*high=3"))
    expect(page.get_by_label("From", exact=True)).to_have_value(re.compile(r"2\.\d+"))


def _drawn(page: Page, chart: Locator) -> None:
    """Draw a range over the middle of a chart."""
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] / 2, steps=3)
    expect(page.locator(".band:not([hidden])")).to_have_count(1)
    page.mouse.up()
    expect(page.locator(".band:not([hidden])")).to_have_count(0)


@pytest.fixture
def translate(browser: Browser, dates: Dates) -> Iterator[Page]:
    wrong: list[str] = []
    with served("--open", str(dates.folder)) as server:
        page = new_page(browser, server, [], wrong)
        page.goto(f"{server.address}/translate?text=14+March+2024")
        expect(page.get_by_label("As Python")).to_contain_text("qkv")
        yield page
        page.context.close()
    assert wrong == []


def test_alignment_and_beam_tell_of_their_marks(translate: Page) -> None:
    alignment, tree = charts(translate)
    tree.focus()
    translate.keyboard.press("ArrowRight")
    expect(tip(tree)).to_have_text(re.compile(r"step 1, .*: \S+ %, log p so far −\S+; goes on"))
    if translate.get_by_role("group", name="What was written").get_by_role("button").count() > 1:
        alignment.focus()
        translate.keyboard.press("ArrowRight")
        expect(tip(alignment)).to_have_text(re.compile("writing .*, it looked at 1: 0"))
        translate.keyboard.press("ArrowDown")
        translate.keyboard.press("Enter")
        expect(translate).to_have_url(re.compile("step=1"))


def test_more_keys_and_groups_by_hand(open_page: Open, server: Server) -> None:
    page = open_page("/table")
    facts = page.locator(".facts")
    expect(facts).to_contain_text("salary 70,648")
    page.get_by_text("More terms").click()
    page.get_by_role("button", name="Add a key").click()
    page.get_by_label("Similarity of key 2").select_option("equal")
    page.get_by_label("Ask key 2 for").fill("civil")
    page.get_by_label("Ask key 2 for").press("Enter")
    body = {"query": "3.5", "bandwidth": 0.1, "where": "field = 'civil'"}
    wanted = server.answer("table/ask", body)["value"]
    expect(facts).to_contain_text(f"salary {round(wanted):,}")
    expect(facts).to_contain_text("field civil")
    expect(page.get_by_role("region", name="Curve")).to_be_hidden()
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(facts).to_contain_text(f"salary {round(wanted):,}")
    page.get_by_role("button", name="Remove key 2").click()
    expect(facts).to_contain_text("salary 70,648")
    page.get_by_label("Older rows weigh less, by").select_option("year")
    expect(page.get_by_label("The plan")).to_contain_text("halves every 1")
    page.get_by_label("An answer for each").select_option("field")
    expect(facts).to_contain_text("groups 4")
    expect(page.locator(".data tbody tr")).to_have_count(4)
    page.keyboard.press("Control+z")
    expect(facts).to_contain_text("effective rows")
