"""Links in documents: every file is there, and every heading that is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TREE = Path(__file__).parents[1]
PAGES = [*sorted((TREE / "docs").glob("*.md")), *sorted(TREE.glob("*.md"))]
LINK = re.compile(r"\]\(([^()\s]+)\)|<(?:img|a) [^>]*?(?:src|href)=\"([^\"]+)\"")


def _text(page: Path) -> str:
    """Without blocks of code, in which brackets are no links."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)


def _anchors(page: Path) -> set[str]:
    """Of headings, as GitHub and the documentation name them."""
    headings = re.findall(r"^#{1,3} (.+)$", _text(page), re.M)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings)
    return {heading.replace(" ", "-") for heading in words}


def wrong_links(page: Path) -> list[str]:
    """Links that lead nowhere; those to other hosts are not followed."""
    wrong = []
    for match in LINK.finditer(_text(page)):
        link = match[1] or match[2]
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link) or link.startswith("gallery-page/"):  # made at build
            continue
        target = page if not path else page.parent / path
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert wrong_links(page) == []


def test_a_wrong_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A heading, said\n[a](page.md#a-heading-said) [b](no.md) [c](#none)\n")
    assert wrong_links(page) == ["no.md", "#none"]


def test_every_page_is_in_the_contents() -> None:
    index = (TREE / "docs" / "index.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^(\w+)$", index, re.M))
    assert {page.stem for page in (TREE / "docs").glob("*.md")} - {"index"} <= told


def test_documents_load_nothing_from_elsewhere() -> None:
    """Search and formulas work with the network off: MathML, and what the theme brings along."""
    settings = (TREE / "docs" / "conf.py").read_text(encoding="utf-8")
    assert 'html_math_renderer = "mathml"' in settings
    assert "http" not in settings
