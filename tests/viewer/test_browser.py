"""The view, looked at in a browser: values, moves, pickers, and what must not happen."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from playwright.sync_api import Browser, Page, expect
from shown import Open, exact, merged, without

import qkv

TOKENS = ["[CLS]", "the", "dog", "wag", "##ged", "its", "tail", "[SEP]"]
WORDS = [None, 0, 1, 2, 2, 3, 4, None]
GROUPS = [[0], [1], [2], [3, 4], [5], [6], [7]]
HOSTILE = '</script><img src=x onerror="alert(1)">'


def weights_of(*batch: int, n: int = 8, m: int = 8) -> npt.NDArray[np.float64]:
    query, key = 2 * torch.randn(*batch, n, 16), torch.randn(*batch, m, 16)
    return qkv.weights(query, key).double().numpy()


def sentence() -> tuple[npt.NDArray[np.float64], qkv.View]:
    weights = weights_of(3, 2)
    view = qkv.view(weights, TOKENS, layers=["low", "middle", "high"], words=WORDS)
    return weights, view


def pair(page: Page) -> tuple[str, str, str]:
    query, key = page.locator(".qkv-pair bdi").all_text_contents()
    return query, key, page.locator(".qkv-value").inner_text()


def corner(page: Page) -> tuple[float, float]:
    box = page.get_by_role("grid").bounding_box()
    assert box is not None
    return box["x"] + box["width"], box["y"] + box["height"]


def press(page: Page, *keys: str) -> None:
    page.get_by_role("grid").focus()
    for key in keys:
        page.keyboard.press(key)


def number(text: str) -> float:
    return float(text.removeprefix("≈ "))


def table(page: Page) -> dict[str, str]:
    page.locator("tbody tr").first.wait_for()  # it is filled once the browser says it is open
    rows = page.locator("tbody tr").all()
    return {row.locator("th").inner_text(): row.locator("td").last.inner_text() for row in rows}


def test_hovering_shows_the_weight_of_the_pair_it_names(open_view: Open) -> None:
    queries, keys = [f"q{i}" for i in range(11)], [f"k{i}" for i in range(7)]
    weights = weights_of(n=11, m=7)
    page = open_view(qkv.view(weights, queries, keys))
    right, bottom = corner(page)
    seen = set()
    for row in range(11):
        for column in range(7):
            page.mouse.move(right - 8 - 34 * column, bottom - 8 - 34 * row)
            query, key, value = pair(page)
            assert value == exact(weights[queries.index(query), keys.index(key)])
            seen.add((query, key))
    assert len(seen) == 77  # every cell, 34 pixels each
    assert pair(page)[:2] == ("q0", "k0")


def test_the_heat_map_is_darker_where_the_weight_is_greater(open_view: Open) -> None:
    page = open_view(qkv.view([[0.0, 0.2], [0.6, 1.0]], ["a", "b"]))
    canvas = page.locator(".qkv-map canvas")
    image = canvas.evaluate(
        "c => [...c.getContext('2d').getImageData(c.width - 69, c.height - 69, 69, 69).data]"
    )
    cells = np.array(image).reshape(69, 69, 4)[8::34, 8::34, :3].sum(axis=-1)[:2, :2]
    (none, least), (most, one) = cells
    assert one < most < least < none == 3 * 255


def test_arrows_move_and_a_screen_reader_is_told(open_view: Open) -> None:
    weights, view = sentence()
    page = open_view(view)
    press(page, "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowUp")
    assert pair(page) == ("the", "wag", exact(weights[0, 0, 1, 3]))
    grid = page.get_by_role("grid")
    spoken = page.locator(f"#{grid.get_attribute('aria-activedescendant')}")
    assert spoken.text_content() == f"the looks at wag: {exact(weights[0, 0, 1, 3])}"
    assert spoken.get_attribute("aria-rowindex") == "2"
    assert spoken.get_attribute("aria-colindex") == "4"
    before = grid.get_attribute("aria-activedescendant")
    press(page, "End")
    assert grid.get_attribute("aria-activedescendant") != before
    assert pair(page)[:2] == ("the", "[SEP]")
    press(page, "ArrowRight", "PageDown", "ArrowDown", "Home")
    assert pair(page)[:2] == ("[SEP]", "[CLS]")
    press(page, "Control+Home")
    assert pair(page)[:2] == ("[CLS]", "[CLS]")
    press(page, "Control+End")
    assert pair(page)[:2] == ("[SEP]", "[SEP]")


def test_pickers_show_each_head_of_each_layer_and_their_mean(open_view: Open) -> None:
    weights, view = sentence()
    page = open_view(view)
    press(page, "ArrowDown")
    for layer, name in enumerate(["low", "middle", "high"]):
        page.get_by_label("Layer", exact=True).select_option(name)
        for head in range(2):
            page.get_by_label("Head", exact=True).select_option(str(head))
            assert pair(page)[2] == exact(weights[layer, head, 1, 0])
            expect(page.locator(".qkv-note")).to_have_text(f"layer {name}, head {head}")
    page.get_by_label("Head", exact=True).select_option("mean of all")
    assert number(pair(page)[2]) == pytest.approx(weights[2, :, 1, 0].mean(), rel=0.05)
    assert pair(page)[2].startswith("≈ ")


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("hide", ["nothing", "first token", "special tokens"])
def test_merged_words_and_hidden_keys(open_view: Open, merge: bool, hide: str) -> None:
    weights, view = sentence()
    page = open_view(view)
    page.get_by_label("Hide").select_option(hide)
    page.get_by_label("Merge words").set_checked(merge)
    page.get_by_text("Data table").click()
    expected, names = weights[0, 0], TOKENS
    if merge:
        expected = merged(expected, GROUPS)
        names = ["[CLS]", "the", "dog", "wagged", "its", "tail", "[SEP]"]
    hidden = {"nothing": [], "first token": [0], "special tokens": [0, len(names) - 1]}[hide]
    if hidden:
        expected = without(expected, hidden)
    for q in range(len(names)):
        page.get_by_label("Query", exact=True).select_option(index=q)
        found = table(page)
        assert list(found) == names
        for k, text in enumerate(found.values()):
            if k in hidden:
                assert text == "hidden"
            elif not merge and not hidden:
                assert text == exact(expected[q, k])
            else:  # two digits, of numbers that are off by 1 % at most
                assert number(text) == pytest.approx(expected[q, k], rel=0.06, abs=2e-6)


def test_the_table_follows_the_grid(open_view: Open) -> None:
    weights, view = sentence()
    page = open_view(view)
    page.get_by_text("Data table").click()
    press(page, "ArrowDown", "ArrowDown")
    expect(page.locator("caption")).to_have_text("What dog looks at, layer low, head 0")
    expect(page.get_by_role("columnheader")).to_have_text(["position", "key", "weight"])
    assert list(table(page).values()) == [exact(weight) for weight in weights[0, 0, 2]]


def test_lines_go_to_the_keys_the_query_looks_at(open_view: Open) -> None:
    view = qkv.view([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], ["a", "b", "c"])
    page = open_view(view)
    lines = page.locator(".qkv-lines path")
    widths = [float(line.get_attribute("stroke-width") or 0) for line in lines.all()]
    assert len(widths) == 2
    assert widths[0] > widths[1]  # the strongest first
    page.locator(".qkv-queries .qkv-token").nth(1).hover()
    expect(lines).to_have_count(1)
    expect(page.get_by_role("img")).to_have_attribute("aria-label", "Lines from b to a 1.000")
    page.locator(".qkv-queries .qkv-token").nth(2).click()
    expect(lines).to_have_count(0)
    expect(page.locator(".qkv-note")).to_have_text("pinned")


def test_a_click_pins_and_escape_lets_go(open_view: Open) -> None:
    page = open_view(sentence()[1])
    right, bottom = corner(page)
    page.mouse.click(right - 8, bottom - 8)
    page.mouse.move(right - 80, bottom - 80)
    assert pair(page)[:2] == ("[SEP]", "[SEP]")
    expect(page.locator(".qkv-note")).to_contain_text("pinned")
    press(page, "Escape")
    page.mouse.move(right - 8, bottom - 44)
    assert pair(page)[:2] == ("tail", "[SEP]")


def test_a_token_is_found(open_view: Open) -> None:
    page = open_view(sentence()[1])
    find = page.get_by_label("Find")
    find.fill("G")
    expect(page.get_by_role("status")).to_have_text("3 found")
    seen = []
    for _ in range(4):
        find.press("Enter")
        seen.append(pair(page)[0])
    assert seen == ["dog", "wag", "##ged", "dog"]
    expect(page.get_by_role("status")).to_have_text("1 of 3")
    find.fill("zebra")
    expect(page.get_by_role("status")).to_have_text("0 found")
    find.press("Enter")
    assert pair(page)[0] == "dog"


def test_a_key_is_found_where_keys_are_other_tokens(open_view: Open) -> None:
    page = open_view(qkv.view(weights_of(n=2, m=3), ["le", "chien"], ["the", "dog", "lemon"]))
    find = page.get_by_label("Find")
    find.fill("le")
    expect(page.get_by_role("status")).to_have_text("2 found")
    find.press("Enter")
    find.press("Enter")
    assert pair(page)[:2] == ("le", "lemon")


def test_zooming_into_512_tokens(open_view: Open) -> None:
    x = torch.randn(512, 16)
    weights = qkv.weights(x, x, mask=qkv.mask.Causal()).double().numpy()
    tokens = [f"t{i}" for i in range(512)]
    page = open_view(qkv.view(weights, tokens))
    grid = page.get_by_role("grid")
    fits = "e => e.scrollWidth <= e.clientWidth && e.scrollHeight <= e.clientHeight"
    assert grid.evaluate(fits)
    page.get_by_label("Find").fill("t300")
    page.get_by_label("Find").press("Enter")
    for _ in range(7):
        page.get_by_label("Zoom in").click()
    assert not grid.evaluate(fits)
    assert grid.evaluate("element => element.scrollTop") > 0
    # The cell that was found stands in the middle of the window, where a pointer finds it too.
    press(page, *["ArrowRight"] * 3)
    assert pair(page) == ("t300", "t3", exact(weights[300, 3]))
    press(page, "End")
    assert pair(page) == ("t300", "t511", "0")
    right, bottom = corner(page)
    page.mouse.move(right - 30, bottom - 200)
    query, key, value = pair(page)
    assert int(key[1:]) > 500
    assert value == exact(weights[int(query[1:]), int(key[1:])])
    press(page, "0")
    assert grid.evaluate(fits)
    press(page, "+", "+", "-")
    assert not grid.evaluate(fits)
    page.get_by_label("Show all").click()
    assert grid.evaluate(fits)


def test_hostile_tokens_are_text(open_view: Open) -> None:
    tokens = [HOSTILE, "<b>bold</b>", "&lt;", "\u2028", "${alert(1)}", "a\nb\x00", "", "\ud800"]
    view = qkv.view(
        weights_of(2, 2), tokens, layers=[HOSTILE, HOSTILE], heads=[HOSTILE, "h"],
        words=[0, 1, 2, 3, 4, 5, 6, None], title=HOSTILE,
    )  # fmt: skip
    page = open_view(view)
    page.get_by_text("Data table").click()
    page.get_by_label("Merge words").check()
    page.get_by_label("Find").fill("<img")
    press(page, *["ArrowDown"] * 8)
    assert page.locator("img, b, iframe, object").count() == 0
    assert page.locator("script").count() == 2
    assert page.title() == HOSTILE
    expect(page.get_by_role("heading")).to_have_text(HOSTILE)
    assert page.locator(".qkv-keys .qkv-token").first.text_content() == HOSTILE
    assert page.locator(".qkv-keys .qkv-token").nth(5).text_content() == "a↵b\ufffd"


def test_the_policy_lets_nothing_else_run(open_view: Open) -> None:
    page = open_view(sentence()[1])
    policy = page.locator("meta[http-equiv]").get_attribute("content") or ""
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


@pytest.mark.parametrize("tokens", [["日本語", "👩‍👩‍👧", "שלום", "a" * 300], ["x", "x", "x", "x"]])
def test_any_script_and_length_is_shown(open_view: Open, tokens: list[str]) -> None:
    page = open_view(qkv.view(weights_of(n=4, m=4), tokens))
    press(page, "ArrowDown", "ArrowRight", "ArrowRight")
    assert pair(page)[:2] == (tokens[1], tokens[2])
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_faint_weight_differs_from_none_and_nan_shows(open_view: Open) -> None:
    page = open_view(qkv.view([[0.0, 1e-9, float("nan"), 1.0]], ["q"], list("abcd")))
    page.get_by_text("Data table").click()
    assert list(table(page).values()) == ["0", "< 0.000001", "NaN", "1.000"]


CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_either_theme(open_view: Open, scheme: str) -> None:
    page = open_view(sentence()[1], color_scheme=scheme)
    page.get_by_text("Data table").click()
    contrasts = page.evaluate(CONTRAST)
    assert len(contrasts) > 8
    assert {name: ratio for name, ratio in contrasts.items() if ratio < 4.5} == {}


def test_the_theme_follows_the_system_until_it_is_chosen(open_view: Open) -> None:
    page = open_view(sentence()[1], color_scheme="dark")
    ground = "() => getComputedStyle(document.querySelector('.qkv-view')).backgroundColor"
    dark = page.evaluate(ground)
    button = page.get_by_role("button", name="Dark")
    assert button.get_attribute("aria-pressed") == "true"
    page.emulate_media(color_scheme="light")
    expect(button).to_have_attribute("aria-pressed", "false")  # the browser tells in its own time
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    button.click()
    assert page.evaluate(ground) == dark
    page.emulate_media(color_scheme="dark")
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ground) == dark


def test_the_focus_goes_through_everything_in_order(open_view: Open) -> None:
    page = open_view(sentence()[1])
    page.get_by_text("Data table").click()
    page.locator("body").click(position={"x": 1, "y": 1})
    name = "e => e.getAttribute('aria-label') ?? e.labels?.[0]?.textContent ?? e.textContent"
    names = []
    for _ in range(14):
        page.keyboard.press("Tab")
        focused = page.evaluate_handle("document.activeElement").as_element()
        assert focused is not None
        names.append(re.match("[A-Z][a-z]+", focused.evaluate(name))[0])
    assert names == [
        "Layer", "Head", "Hide", "Merge", "Colours", "Zoom", "Zoom", "Show", "Dark", "Find",
        "Attention", "Layer", "Data", "Query",  # of all small heads, the one that is chosen
    ]  # fmt: skip


def test_a_narrow_window_puts_the_lines_below(open_view: Open) -> None:
    page = open_view(sentence()[1])
    page.set_viewport_size({"width": 400, "height": 800})
    lines, grid = page.locator(".qkv-lines").bounding_box(), page.get_by_role("grid").bounding_box()
    assert lines is not None
    assert grid is not None
    assert lines["y"] >= grid["y"] + grid["height"]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_click_on_a_small_head_shows_it(open_view: Open) -> None:
    weights, view = sentence()
    page = open_view(view)
    heads = page.get_by_role("radiogroup", name="All heads").get_by_role("radio")
    assert heads.count() == 3 * 2
    expect(page.get_by_role("radio", checked=True)).to_have_attribute(
        "aria-label", "Layer low, head 0"
    )
    page.get_by_label("Layer middle, head 1").click()
    assert pair(page)[2] == exact(weights[1, 1, 0, 0])
    expect(page.get_by_label("Layer", exact=True)).to_have_value("1")
    expect(page.get_by_label("Head", exact=True)).to_have_value("1")
    for key in ("ArrowDown", "ArrowLeft", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.get_by_label("Layer high, head 0")).to_be_focused()
    expect(page.locator(".qkv-note")).to_have_text("layer high, head 0")
    page.get_by_label("Head", exact=True).select_option("mean of all")
    expect(page.get_by_role("radio", checked=True)).to_have_count(0)


def test_a_small_head_is_darkest_where_its_greatest_weight_is(open_view: Open) -> None:
    weights = np.full((2, 60, 60), 1e-3)
    weights[0, 10, 50] = weights[1, 50, 10] = 0.9
    page = open_view(qkv.view(weights, [str(i) for i in range(60)]))
    read = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    high = wide = 44
    for head, place in enumerate([(10, 50), (50, 10)]):
        pixels = page.locator(".qkv-thumb canvas").nth(head).evaluate(read)
        shade = np.array(pixels).reshape(high, wide, 4)[..., :3].sum(-1)
        darkest = np.unravel_index(shade.argmin(), shade.shape)
        assert darkest == (place[0] * high // 60, place[1] * wide // 60)
    assert page.locator(".qkv-thumbs").is_visible()
    alone = open_view(qkv.view(weights[0], [str(i) for i in range(60)]))
    assert not alone.locator(".qkv-thumbs").is_visible()


def test_small_heads_stand_in_the_right_third(open_view: Open) -> None:
    page = open_view(sentence()[1])
    box = page.locator(".qkv-thumbs").bounding_box()
    lines = page.locator(".qkv-lines").bounding_box()
    assert box is not None
    assert lines is not None
    assert box["x"] >= lines["x"] + lines["width"]
    assert abs(box["y"] - lines["y"]) < 5


def test_options_are_folded_where_it_is_narrow(open_view: Open) -> None:
    page = open_view(sentence()[1])
    assert not page.get_by_role("button", name="Options").is_visible()
    assert page.get_by_label("Find").is_visible()
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.get_by_label("Layer", exact=True).is_visible()
    assert not page.get_by_label("Find").is_visible()
    grid = page.get_by_role("grid").bounding_box()
    assert grid is not None
    assert grid["y"] < 250  # the picture is what one sees first
    page.get_by_role("button", name="Options").click()
    assert page.get_by_label("Find").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_frame_shows_the_same_page(browser: Browser, tmp_path: Path) -> None:
    weights, view = sentence()
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><p>before</p>{view._repr_html_()}", encoding="utf-8")
    page = browser.new_context(offline=True).new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.goto(path.as_uri())
    frame = page.frame_locator("iframe")
    frame.get_by_role("grid").press("ArrowDown")
    expect(frame.locator(".qkv-value")).to_have_text(exact(weights[0, 0, 1, 0]))
    assert wrong == []
    page.context.close()


def test_the_same_module_serves_widgets_and_pages(browser: Browser) -> None:
    weights, view = sentence()
    static = qkv.visualization.viewer.page.STATIC
    page = browser.new_context().new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    files = {
        "http://qkv.test/": ("text/html", b"<div id=a></div><div id=b></div>"),
        "http://qkv.test/view.js": ("text/javascript", (static / "view.js").read_bytes()),
    }
    page.route("**/*", lambda route: route.fulfill(
        content_type=files[route.request.url][0], body=files[route.request.url][1],
    ))  # fmt: skip
    page.goto("http://qkv.test/")
    left = page.evaluate(
        """async (data) => {
            const module = await import("/view.js");
            const [a, b] = [document.getElementById("a"), document.getElementById("b")];
            a.hidden = true; // as in a notebook's closed tab
            const remove = module.render(a, data);
            a.hidden = false;
            await new Promise(requestAnimationFrame);
            await new Promise(requestAnimationFrame);
            const wide = a.querySelector(".qkv-map").offsetWidth;
            module.default.render({ model: { get: (name) => ({ data })[name] }, el: b });
            const both = document.querySelectorAll(".qkv-view").length;
            remove();
            return [both, wide > 200, a.childElementCount];
        }""",
        view.data,
    )
    assert left == [2, True, 0]
    assert pair(page)[2] == exact(weights[0, 0, 0, 0])
    assert wrong == []
    page.context.close()
