"""The translate room: training in the background, translations, alignments and the beam."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from explored import Server, floats, learning, new_page, run_command, run_python, served
from playwright.sync_api import Browser, expect

from qkv.explore.dates import Dates

TEXT = "14 March 2024"


@pytest.fixture(scope="module")
def translator(dates: Dates) -> Iterator[Server]:
    with served("--open", str(dates.folder)) as server:
        yield server


def test_training_ends_with_a_folder_and_a_curve(dates: Dates) -> None:
    progress = dates.progress()
    assert progress["losses"]
    assert 0 <= progress["exact"] <= 100
    assert [each.name for each in dates.folder.parent.iterdir()] == ["dates"]


def test_python_and_command_give_the_same(translator: Server) -> None:
    assert translator.send("GET", "/")[2]["location"] == "/translate"
    said = translator.answer("translate/run", {"model": "open", "text": TEXT, "beam": 3})
    found = run_python(said["python"])["found"]
    assert [each["text"] for each in said["beam"]] == [each.text for each in found]
    assert [each["score"] for each in said["beam"]] == pytest.approx([each.score for each in found])
    for each, own in zip(said["beam"], found, strict=True):
        assert floats(each["weights"]) == pytest.approx(own.alignment.weights.flatten(), abs=1e-6)
    lines = [line.split("\t") for line in run_command(said["command"]).splitlines()]
    assert [text for _, text in lines] == [each["text"] for each in said["beam"]]


def test_scores_are_those_of_the_tokens(translator: Server) -> None:
    said = translator.answer("translate/run", {"model": "open", "text": TEXT, "beam": 4})
    for each in [said["greedy"], *said["beam"]]:
        length = len(each["log_p"])
        assert length == len(each["target"]) + 1
        assert each["score"] == pytest.approx(sum(each["log_p"]) / ((5 + length) / 6), abs=1e-3)
        weights = floats(each["weights"]).reshape(len(each["target"]), len(each["source"]))
        assert weights.sum(1) == pytest.approx(1, abs=1e-4)
    scores = [each["score"] for each in said["beam"]]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] >= said["greedy"]["score"] - 1e-6


def test_the_tree_holds_every_translation_found(translator: Server) -> None:
    said = translator.answer("translate/run", {"model": "open", "text": TEXT, "beam": 4})
    tree = said["tree"]
    for each in said["beam"]:
        nodes = [tree[i] for i in each["way"]]
        assert [node["text"] for node in nodes] == [*each["target"], "⏎"]
        assert [node["log_p"] for node in nodes] == pytest.approx(each["log_p"], abs=1e-4)
        assert [node["fate"] for node in nodes] == ["kept"] * len(each["target"]) + ["ended"]
        assert nodes[-1]["score"] == pytest.approx(each["score"], abs=1e-6)
    assert {node["fate"] for node in tree} == {"kept", "ended", "pruned"}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"text": "  "}, "there is nothing to translate yet: type a date"),
        ({"text": "x" * 65}, "this room translates up to 64 pieces at a time; got 65"),
        ({"beam": 99}, "beam must be a whole number between 1 and 10; got 99"),
    ],
)
def test_mistakes_get_one_sentence(
    translator: Server, body: dict[str, object], sentence: str
) -> None:
    assert translator.ask("translate/run", {"model": "open", **body}) == (400, {"error": sentence})


def test_typing_tokens_and_the_beam(browser: Browser, translator: Server) -> None:
    wrong: list[str] = []
    page = new_page(browser, translator, [], wrong)
    page.goto(f"{translator.address}/translate")
    written = page.get_by_role("group", name="What was written")
    text = page.get_by_label("Text", exact=True)
    text.fill("July 4, 1976")
    expect(page.get_by_role("group", name="What was read")).to_contain_text("J")
    expect(page.locator(".data tbody tr")).to_have_count(4)
    page.get_by_role("combobox", name="Beam").select_option("8")
    expect(page.locator(".data tbody tr")).to_have_count(8)
    page.get_by_role("button", name="Look at 2").click()
    if written.get_by_role("button").count() > 1:
        written.get_by_role("button").nth(1).click()
        expect(written.get_by_role("button").nth(1)).to_have_attribute("aria-pressed", "true")
    expect(page).to_have_url(re.compile("beam=8&rank=1"))
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(page.get_by_role("button", name="Look at 2")).to_have_attribute("aria-pressed", "true")
    page.context.close()
    assert wrong == []


def test_training_shows_a_curve_and_does_not_stop_answers(browser: Browser, tmp_path: Path) -> None:
    with learning(tmp_path / "kept" / "dates") as server:
        server.ready()
        wrong: list[str] = []
        page = new_page(browser, server, [], wrong)
        page.goto(f"{server.address}/translate")
        expect(page.get_by_role("region", name="Training")).to_contain_text("not trained yet")
        page.get_by_role("button", name="Train it now").click()
        expect(
            page.get_by_role("img", name=re.compile("Loss while training: .* steps"))
        ).to_be_visible(timeout=40_000)
        taken = []
        for number in range(20):
            start = time.perf_counter()
            server.answer("pooling/ask", {"query": number / 5})
            taken.append(time.perf_counter() - start)
        assert sorted(taken)[10] < 0.5
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("region", name="Training")).to_contain_text("Try once more")
        page.context.close()
        assert wrong == []
        assert server.answer("translate/progress", {})["stage"] == "failed"
        assert list((tmp_path / "kept").iterdir()) == []


def test_without_a_translator_the_room_says_so(server: Server) -> None:
    status, said = server.ask("translate/run", {"model": "open"})
    assert (status, said["error"]) == (
        400, "no translator was opened: start with `qkv explore --open FOLDER`",
    )  # fmt: skip
