"""The gallery: every example yields its parts, and one page shows them offline in a browser."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from qkv.gallery import EXAMPLES, dates, fixed_state
from qkv.gallery.page import write
from qkv.gallery.parts import Code, Figure, Result
from qkv.gallery.run import Shown, check, run


@pytest.fixture(scope="module")
def shown() -> list[Shown]:
    """Every example; translators train for a moment, and what they write is wrong."""
    with pytest.MonkeyPatch.context() as patch:
        for module, pairs in ((dates, 300), (fixed_state, 200)):
            patch.setattr(module, "PAIRS", pairs)
            patch.setattr(module, "EPOCHS", 1)
            patch.setattr(module, "TESTED", 5)
        return [run(name) for name in EXAMPLES]


def test_every_example_cites_its_source_and_yields_result_figure_and_code(
    shown: list[Shown],
) -> None:
    for each in shown:
        assert not each.skipped, each.skipped
        kinds = {type(part) for part in each.parts}
        assert {Result, Figure, Code} <= kinds, each.name
        assert each.title
        assert each.caption
        assert each.source
        for part in each.parts:
            if isinstance(part, Code):
                ast.parse(part.source)
            if isinstance(part, Figure):
                assert part.caption


def test_code_is_what_ran_and_runs_by_itself(shown: list[Shown]) -> None:
    cheap = {"database", "gpa", "convex", "distance", "scaling", "tokens", "multihead"}
    ran = set()
    for each in shown:
        if each.name in cheap:
            for part in each.parts:
                if isinstance(part, Code):
                    exec(compile(part.source, each.name, "exec"), {})
                    ran.add(each.name)
    assert ran == cheap


def test_numbers_are_those_of_the_source_material(shown: list[Shown]) -> None:
    found = {each.name: each.result for each in shown}
    assert found["database"].startswith("John Doe: psychology. Jon Doe: nothing")
    assert found["gpa"].startswith("GPA 3.5 → 70,648")
    assert found["convex"].endswith("= 1.00")
    learned = re.findall(r"0\.\d+", found["widths"])
    assert abs(float(learned[0]) - float(learned[1])) <= 0.02
    assert re.search(r"one norm: weights differ by \de-0[78]", found["distance"])


def test_a_name_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"^an example must be one of database, .*; got 'nope'$"):
        check(["nope"], EXAMPLES)


@pytest.fixture(scope="module")
def folder(shown: list[Shown], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(shown, tmp_path_factory.mktemp("gallery")).parent


def _open(browser: Browser, folder: Path, wrong: list[str], **options: object) -> Page:
    page = browser.new_context(offline=True, **options).new_page()  # type: ignore[arg-type]
    page.set_default_timeout(5000)
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url)
            if not request.url.startswith(("file:", "data:")) else None)  # fmt: skip
    page.goto((folder / "index.html").as_uri())
    return page


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_works_offline(
    browser: Browser, folder: Path, shown: list[Shown], width: int, scheme: str
) -> None:
    wrong: list[str] = []
    size = {"width": width, "height": 800}
    page = _open(browser, folder, wrong, viewport=size, color_scheme=scheme)
    assert page.locator("article").count() == len(EXAMPLES)
    drawn = page.locator("figure svg")
    assert drawn.count() == sum(len(each.figures) for each in shown)
    for place in range(drawn.count()):
        box = drawn.nth(place).bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 60
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.locator(".thumbs a").count() == len(EXAMPLES)
    for link in page.locator(".thumbs a").all():
        target = link.get_attribute("href")
        assert target is not None
        assert page.locator(target).count() == 1
    page.locator(".thumbs a").nth(4).click()
    assert page.url.endswith(f"#{EXAMPLES[4]}")
    page.locator(".theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") != scheme
    assert wrong == []
    page.context.close()


def test_code_copies(browser: Browser, folder: Path) -> None:
    wrong: list[str] = []
    page = _open(browser, folder, wrong, permissions=["clipboard-read", "clipboard-write"])
    code = page.locator(".code").first
    code.locator("button").click()
    code.get_by_text("copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == code.locator("pre").text_content()
    assert wrong == []
    page.context.close()
