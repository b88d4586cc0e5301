"""The pooling room: what it answers, and what one sees and does there."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from explored import Open, Server, doubles, floats, run_command, run_python
from playwright.sync_api import Page, expect

KERNELS = ["gaussian", "boxcar", "triangular", "epanechnikov", "laplacian", "biweight", "tricube"]


def kernel(name: str, u: float) -> float:
    return {
        "gaussian": math.exp(-u * u / 2),
        "boxcar": float(u <= 1),
        "triangular": max(0.0, 1 - u),
        "epanechnikov": max(0.0, 1 - u * u),
        "laplacian": math.exp(-u),
        "biweight": max(0.0, 1 - u * u) ** 2,
        "tricube": max(0.0, 1 - u**3) ** 3,
    }[name]


@pytest.mark.parametrize("name", KERNELS)
def test_the_answer_is_the_weighted_mean(server: Server, name: str) -> None:
    body = {"kernel": name, "bandwidth": 0.4, "query": 1.7, "count": 37, "seed": 11}
    points = server.answer("pooling/points", body)
    x, y = doubles(points["x"]), doubles(points["y"])
    said = server.answer("pooling/ask", body)
    raw = [kernel(name, abs(1.7 - each) / 0.4) for each in x]
    weights = [each / sum(raw) for each in raw]
    assert said["answer"] == pytest.approx(sum(w * v for w, v in zip(weights, y, strict=True)))
    assert floats(said["weights"]) == pytest.approx(weights, abs=1e-6)
    assert said["neighbours"] == pytest.approx(1 / sum(w * w for w in weights))
    assert said["low"] < said["answer"] < said["high"]
    assert [term["weight"] for term in said["terms"]] == pytest.approx(sorted(weights)[:-5:-1])


def test_from_hard_look_up_to_plain_mean(server: Server) -> None:
    points = server.answer("pooling/points", {})
    x, y = doubles(points["x"]), doubles(points["y"])
    hard = server.answer("pooling/ask", {"bandwidth": 1e-6, "query": 2.0})
    assert hard["answer"] == pytest.approx(y[np.abs(x - 2).argmin()])
    assert hard["neighbours"] == pytest.approx(1)
    plain = server.answer("pooling/ask", {"bandwidth": 1e9, "query": 2.0})
    assert plain["answer"] == pytest.approx(y.mean())
    assert plain["neighbours"] == pytest.approx(100)


def test_edits_are_made_in_order(server: Server) -> None:
    before = server.answer("pooling/points", {"count": 5})
    x, y = doubles(before["x"]).tolist(), doubles(before["y"]).tolist()
    after = server.answer("pooling/points", {"count": 5, "edits": "a:9,-1.5;m:0,7,8;d:1;a:1,2"})
    assert doubles(after["x"]).tolist() == [7, *x[2:], 9, 1]
    assert doubles(after["y"]).tolist() == [8, *y[2:], -1.5, 2]


def test_the_choice_has_the_least_error(server: Server) -> None:
    body = {"kernel": "epanechnikov", "count": 60}
    points = server.answer("pooling/points", body)
    x, y = doubles(points["x"]), doubles(points["y"])
    said = server.answer("pooling/choose", body)

    def error(width: float) -> float:
        total = 0.0
        for i in range(len(x)):
            raw = [kernel("epanechnikov", abs(x[i] - each) / width) for each in x]
            raw[i] = 0.0
            total += (y[i] - sum(w * v for w, v in zip(raw, y, strict=True)) / sum(raw)) ** 2
        return math.sqrt(total / len(x))

    least = error(said["choice"])
    assert least == pytest.approx(min(said["errors"]), rel=1e-3)
    assert least <= min(error(said["choice"] * factor) for factor in (0.9, 1.1)) + 1e-9


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kernel": "tricube", "degree": 1, "bandwidth": 0.7, "query": 3.25, "level": 0.5},
        {"edits": "a:1,2;m:3,0.5,-1;d:0", "count": 20, "noise": 0.5, "seed": 8},
    ],
)
def test_as_python_gives_the_same(server: Server, body: dict[str, object]) -> None:
    said = server.answer("pooling/ask", body)
    names = run_python(said["python"])
    assert names["answer"] == pytest.approx(said["answer"])
    assert (names["low"], names["high"]) == pytest.approx((said["low"], said["high"]))
    assert names["weights"] == pytest.approx(floats(said["weights"]), abs=1e-6)


def figures(page: Page) -> str:
    return page.locator(".facts").inner_text()


def test_the_command_gives_the_same_on_what_is_exported(open_page: Open, tmp_path: Path) -> None:
    page = open_page("/pooling?kernel=triangular&query=1.5&edits=a:1,9&bandwidth=0.5")
    expect(page.locator(".facts .is-answer").first).to_have_text(re.compile(r"^\d"))
    with page.expect_download() as event:
        page.get_by_role("button", name="CSV", exact=True).click()
    event.value.save_as(tmp_path / "points.csv")
    command = page.get_by_label("As command").inner_text()
    printed = run_command(command, tmp_path)
    answer = page.locator(".facts .is-answer").first.inner_text()
    assert f" {answer} " in printed.replace("│", " ")


def test_the_query_follows_the_pointer_and_the_keys(open_page: Open) -> None:
    page = open_page("/pooling")
    chart = page.locator("canvas.figure")
    expect(page.locator(".facts .is-query")).to_have_text("2.5")
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 30)
    expect(page.locator(".facts .is-query")).to_have_text(re.compile(r"^(0\.[3-9]|1\.[0-2])"))
    at = float(page.locator(".facts .is-query").inner_text())
    slider = page.get_by_label("Query: move the pointer")
    slider.focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".facts .is-query")).not_to_have_text(str(at))
    assert float(page.locator(".facts .is-query").inner_text()) > at


def test_bandwidth_by_keyboard_choose_for_me_undo_back_and_reload(open_page: Open) -> None:
    page = open_page("/pooling")
    expect(page.locator(".facts")).to_contain_text("a soft look-up")
    page.get_by_label("Bandwidth", exact=True).focus()
    page.keyboard.press("End")
    expect(page.locator(".facts")).to_contain_text("the plain mean of all")
    page.keyboard.press("Home")
    expect(page.locator(".facts")).to_contain_text("a hard look-up")
    page.get_by_role("button", name="Choose for me").click()
    expect(page).to_have_url(re.compile(r"bandwidth=0\.34"))
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".facts")).to_contain_text("a hard look-up")
    page.go_back()
    expect(page).to_have_url(re.compile(r"bandwidth=0\.34"))
    page.get_by_label("Kernel", exact=True).select_option("boxcar")
    expect(page.get_by_role("button", name="Use boxcar")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("As Python")).to_contain_text('"boxcar", bandwidth=0.34')
    address, seen = page.url, figures(page)
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator(".facts .is-answer").first).not_to_be_empty()
    assert figures(page) == seen


def take_hold_of(page: Page, mark: str, x: float, y: float) -> None:
    """Press on a mark, once the chart has drawn it there: its tip tells."""
    tip = page.locator("canvas.figure").locator("xpath=..").locator(".tip")
    for wiggle in range(100):
        page.mouse.move(x + wiggle % 2, y)
        if tip.is_visible() and mark in tip.inner_text():
            break
        page.wait_for_timeout(50)
    page.mouse.down()


def test_points_are_dragged_added_and_deleted(open_page: Open) -> None:
    page = open_page("/pooling?count=20&noise=0")
    expect(page.locator(".facts .is-weight")).to_be_visible()
    point = page.get_by_label("Point", exact=True)
    point.fill("3")
    y = page.get_by_label("y", exact=True)
    y.fill("50")
    page.get_by_role("button", name="Move").click()
    expect(page).to_have_url(re.compile(r"m%3A3"))
    expect(page.locator(".facts")).to_contain_text("of 20")
    page.get_by_role("button", name="Add").click()
    expect(page.locator(".facts")).to_contain_text("of 21")
    page.get_by_role("button", name="Delete").click()
    expect(page.locator(".facts")).to_contain_text("of 20")
    for _ in range(3):
        page.keyboard.press("Control+z")
    expect(page).to_have_url(re.compile(r"^(?!.*edits)"))
    expect(page.locator(".facts")).to_contain_text("of 20")
    page.locator("canvas.figure").scroll_into_view_if_needed()
    box = page.locator("canvas.figure").bounding_box()
    assert box is not None
    page.mouse.dblclick(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.75)
    expect(page.locator(".facts")).to_contain_text("of 21")
    take_hold_of(page, "point 20:", box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.75)
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.2, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"m%3A20%2C"))


def test_an_own_file_and_bad_ones(open_page: Open) -> None:
    page = open_page("/pooling")
    expect(page.locator(".facts .is-answer").first).not_to_be_empty()
    drop = page.locator("input[type=file]")
    trouble = page.locator(".trouble")

    def give(name: str, content: bytes) -> None:
        drop.set_input_files({"name": name, "mimeType": "text/csv", "buffer": content})

    give("empty.csv", b"")
    expect(trouble).to_have_text("The file is empty: there is nothing to look at in it.")
    give("huge.csv", b"x" * (8 * 2**20 + 1))
    expect(trouble).to_contain_text("The file huge.csv has 8.0 MB, and up to 8 MB are taken here")
    give("text.csv", b"a,b\nx,y\nz,w\n")
    expect(trouble).to_contain_text("must have two columns of numbers")
    give("photo.csv", b"\x89PNG\0\0\1")
    expect(trouble).to_have_text("The file is neither CSV nor Parquet.")
    hostile = '<img src=x onerror="alert(1)">'
    rows = "".join(f"{i},{2 * i}\n" for i in range(30))
    give(
        f"{hostile}.csv",
        f'"{hostile.replace(chr(34), chr(34) * 2)}","b""\'<script>"\n{rows}'.encode(),
    )
    expect(page.locator(".facts")).to_contain_text("of 30")
    assert page.locator("img").count() == 0
    assert page.get_by_label("Keys", exact=True).input_value() == hostile
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator(".facts")).to_contain_text("of 30")


def test_guess_and_surprise(open_page: Open) -> None:
    page = open_page("/pooling")
    page.get_by_role("button", name="the finest detail").click()
    expect(page.locator(".because")).to_contain_text("Not quite: a flat line, the mean of all.")
    expect(page.locator(".facts")).to_contain_text("the plain mean of all")
    page.get_by_role("button", name="Surprise: one wild point").click()
    expect(page.locator(".facts")).to_contain_text("of 101")
