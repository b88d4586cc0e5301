"""The similarity room: two similarities, temperature, masks and plans."""

from __future__ import annotations

import itertools
import json
import math
import re

import numpy as np
import pytest
import torch
from explored import Open, Server, floats, run_command, run_python
from playwright.sync_api import expect

NAMES = ["dot", "scaled_dot", "cosine", "euclidean", "additive", "bilinear", "gated", "gaussian",
         "laplacian", "boxcar", "triangular", "epanechnikov", "formula"]  # fmt: skip


def compared(server: Server, **body: object) -> list[dict[str, object]]:
    return server.answer("similarity/compare", body)["sides"]


@pytest.mark.parametrize("name", NAMES)
def test_python_and_command_give_the_same_weights(server: Server, name: str) -> None:
    for mask, temperature in (("none", 1), ("window", 0.4), ("topk", 1), ("blocks", 3)):
        side, _ = compared(server, left=name, mask=mask, size=2, temperature=temperature)
        weights = floats(side["weights"]).reshape(7, 7)
        assert weights.sum(1) == pytest.approx(1)
        assert run_python(side["python"])["weights"].detach().numpy() == pytest.approx(
            weights, abs=1e-6
        )
        told = json.loads(run_command(f"{side['command'].splitlines()[0]} --json"))
        assert np.array(told["weights"]) == pytest.approx(weights, abs=1e-6)
        assert told["entropy"] == pytest.approx(side["entropy"], abs=1e-6)


def test_weights_are_the_softmax_of_tempered_scores(server: Server) -> None:
    side, other = compared(server, left="dot", right="laplacian", temperature=0.5)
    scores = np.array(side["scores"])
    wanted = np.exp(scores / 0.5) / np.exp(scores / 0.5).sum(1, keepdims=True)
    assert floats(side["weights"]).reshape(7, 7) == pytest.approx(wanted, abs=1e-6)
    kernel = np.array(other["scores"]) ** 2
    wanted = kernel / kernel.sum(1, keepdims=True)
    assert floats(other["weights"]).reshape(7, 7) == pytest.approx(wanted, abs=1e-6)
    for row in range(7):
        bits = -sum(w * math.log2(w) for w in wanted[row])
        assert other["entropy"][row] == pytest.approx(bits, abs=1e-5)


def test_what_is_painted_away_weighs_nothing_and_the_rest_sums_to_one(server: Server) -> None:
    pairs = itertools.product(range(7), repeat=2)
    painted = "".join("1" if (i * 7 + j) % 3 else "0" for i, j in pairs)
    side, _ = compared(server, mask="painted", painted=painted)
    weights = floats(side["weights"])
    assert [w > 0 for w in weights] == [bit == "1" for bit in painted]
    assert weights.reshape(7, 7).sum(1) == pytest.approx(1)
    told = json.loads(run_command(f"{side['command']} --json"))
    assert np.ravel(told["weights"]) == pytest.approx(weights, abs=1e-6)


def test_the_surface_is_the_score_over_the_plane(server: Server) -> None:
    side, _ = compared(server, left="euclidean", row=2)
    surface = floats(side["surface"]).reshape(41, 41)
    for row, column in ((0, 0), (40, 40), (10, 33)):
        x, y = -2 + 0.1 * column, 2 - 0.1 * row
        assert surface[row, column] == pytest.approx(-((x - 0.7) ** 2 + (y - 1) ** 2), abs=1e-5)


def test_a_mask_changes_the_plan_and_the_command_tells_the_same(server: Server) -> None:
    (side, _), (masked, _) = (
        compared(server, left="additive"),
        compared(server, left="additive", mask="window", size=3),
    )
    assert "mask Window(3, 3)" in masked["large"]
    assert side["large"] != masked["large"]
    topk = compared(server, left="dot", mask="topk", size=3)[0]
    assert "└─ topk:" in topk["large"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the server has, by which costs are estimated
    try:
        for found in (masked, topk, compared(server, left="dot", mask="blocks", size=3)[0]):
            _, explain = found["command"].splitlines()
            folded = run_command(explain)  # to the width of a terminal
            assert folded.split() == found["large"].split()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"tokens": "cat"}, "tokens must be such as cat:1,0.5;dog:0,1; got 'cat'"),
        ({"tokens": ";".join(["a:1,1"] * 13)}, "this room compares up to 12 tokens; got 13"),
        ({"left": "formula", "formula": "os.system(1)"}, "a formula cannot hold '.'"),
        ({"mask": "painted", "painted": "01"}, "painted must have 49 digits, 0 or 1; got '01'"),
        ({"row": 7}, "row must be a whole number between 0 and 6; got 7"),
        ({"temperature": 0}, "temperature must be a number between 0.01 and 100; got 0"),
    ],
)
def test_mistakes_get_one_sentence(server: Server, body: dict[str, object], sentence: str) -> None:
    assert server.ask("similarity/compare", body) == (400, {"error": sentence})


def test_formula_mask_and_temperature_by_hand(open_page: Open) -> None:
    page = open_page("/similarity")
    entropy = page.get_by_role("region", name="Left").locator(".facts")
    expect(entropy).to_contain_text("cat attends with")
    page.get_by_label("Left: how alike").select_option("formula")
    formula = page.get_by_label("Formula", exact=True)
    formula.fill("dot(q, k")
    formula.press("Enter")
    expect(page.locator(".trouble")).to_have_text(
        "The formula should have ')' where it has the end."
    )
    formula.fill("2 * dot(q, k)")
    formula.press("Enter")
    expect(page.locator(".trouble")).to_be_hidden()
    expect(page.get_by_label("As Python")).to_contain_text("(q * k).sum(-1)")
    page.get_by_label("Temperature", exact=True).focus()
    page.keyboard.press("Home")
    expect(entropy).to_contain_text(re.compile(r"cat attends with (0|\d.\d+e-\d) bits"))
    page.keyboard.press("End")
    expect(entropy).to_contain_text("bits of entropy")
    page.get_by_label("Mask", exact=True).select_option("painted")
    first = page.get_by_role("button", name="cat may look at cat")
    first.focus()
    page.keyboard.press("Space")
    expect(first).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    expect(page).to_have_url(re.compile("painted=00111"))
    page.get_by_role("button", name="Undo").click()
    expect(page).to_have_url(re.compile("painted=01111"))
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(first).to_have_attribute("aria-pressed", "false")


def test_tokens_are_dragged_and_asked(open_page: Open) -> None:
    page = open_page("/similarity")
    entropy = page.get_by_role("region", name="Left").locator(".facts")
    expect(entropy).to_contain_text("cat attends with")
    plane = page.get_by_role("region", name="Left").locator("canvas").nth(1)
    plane.scroll_into_view_if_needed()
    box = plane.bounding_box()
    assert box is not None

    def at(x: float, y: float) -> tuple[float, float]:
        return box["x"] + (x + 2) / 4 * box["width"], box["y"] + (2 - y) / 4 * box["height"]

    page.mouse.click(*at(-1.1, 0.2))
    expect(entropy).to_contain_text("rock attends with")
    page.mouse.move(*at(-1.1, 0.2))
    page.mouse.down()
    page.mouse.move(*at(1, 1), steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile("rock%3A(1|0.99|1.01)%2C"))
    page.get_by_label("x of the query").fill("-1.5")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("rock%3A-1.5%2C"))
