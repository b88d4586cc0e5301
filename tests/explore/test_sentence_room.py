"""The sentence room: weights of all heads, and one weight unfolded."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from explored import Open, Server, floats, run_command, run_python, served
from playwright.sync_api import expect

TEXT = "the dog wagged his tail"


def looked(server: Server, **body: object) -> tuple[dict[str, object], np.ndarray]:
    said = server.answer("sentence/look", {"text": TEXT, **body})
    n = len(said["pieces"])
    return said, floats(said["weights"]).reshape(said["layers"], said["heads"], n, n)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "vectors", "similarity": "cosine", "temperature": 0.2},
        {"model": "minilm", "layer": 3, "head": 7},
        {"model": "minilm", "layer": 2, "head": -1},
        {"model": "minilm", "layer": -1},
    ],
)
def test_python_and_command_give_the_same_weights(server: Server, body: dict[str, object]) -> None:
    said, weights = looked(server, **body)
    if body.get("layer") == -1:
        wanted = floats(said["rollout"]).reshape(weights.shape[-2:])
    else:
        own = weights[min(body.get("layer", 0), len(weights) - 1)]
        wanted = own.mean(0) if body.get("head") == -1 else own[body.get("head", 0)]
    found = np.asarray(run_python(said["python"])["weights"])
    assert found == pytest.approx(wanted, abs=1e-6)
    told = json.loads(run_command(f"{said['command']} --json"))
    assert told["keys"] == said["pieces"]
    assert np.array(told["weights"]) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("model", ["vectors", "minilm"])
def test_a_weight_unfolds_into_its_numbers(server: Server, model: str) -> None:
    said, weights = looked(server, model=model)
    layer, head = (2, 5) if model == "minilm" else (0, 0)
    body = {"text": TEXT, "model": model, "layer": layer, "head": head, "row": 3, "column": 1}
    cell = server.answer("sentence/cell", body)
    assert cell["weight"] == pytest.approx(weights[layer, head, 3, 1], abs=1e-6)
    assert cell["score"] == pytest.approx(cell["dot"] * cell["scale"])
    exponential = math.exp(cell["score"] - cell["most"])
    assert exponential / cell["total"] == pytest.approx(cell["weight"], abs=1e-6)
    columns = range(len(said["pieces"]))
    others = [server.answer("sentence/cell", {**body, "column": k}) for k in columns]
    summed = sum(each["weight"] * np.array(each["value"]) for each in others)
    assert cell["answer"] == pytest.approx(summed, abs=1e-6)
    total = sum(math.exp(each["score"] - cell["most"]) for each in others)
    assert total == pytest.approx(cell["total"])


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"text": ""}, "sentence must hold at least one word; got ''"),
        ({"text": "?!"}, "sentence must hold at least one word; got '?!'"),
        ({"text": "xqzzv"}, "sentence must hold a word that has a vector; got 'xqzzv'"),
        ({"text": "a " * 70, "model": "vectors"},
         "this room shows sentences of up to 64 pieces; this one has 70"),
        ({"text": "a" * 401}, "text must have at most 400 characters; got 401"),
        ({"model": "open"}, "no model was opened: start with `qkv explore --open FOLDER`"),
    ],
)  # fmt: skip
def test_mistakes_get_one_sentence(server: Server, body: dict[str, object], sentence: str) -> None:
    assert server.ask("sentence/look", body) == (400, {"error": sentence})


def test_typing_the_wall_and_a_cell(open_page: Open) -> None:
    page = open_page("/sentence?model=minilm&text=the+dog+barked")
    head = page.get_by_role("button", name="Layer 2, head 3:")
    head.click()
    expect(head).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("heading", name="layer 2, head 3")).to_be_visible()
    page.get_by_label("Query", exact=True).select_option(label="3: dog")
    page.get_by_label("Key", exact=True).select_option(label="2: the")
    unfolded = page.get_by_role("group", name="How the weight comes about")
    expect(unfolded).to_contain_text("dog looks at the with")
    expect(unfolded).to_contain_text("29 more")
    expect(unfolded).to_contain_text("softmax: e^(")
    expect(unfolded).to_contain_text("weighted sum:")
    matrix = page.get_by_role("region", name="Enlarged").locator("canvas")
    matrix.scroll_into_view_if_needed()
    box = matrix.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 24, box["y"] + box["height"] - 8)
    expect(unfolded).to_contain_text("[SEP] looks at [SEP] with")
    page.get_by_label("Beside it").select_option("sentence")
    page.get_by_label("Sentence beside").fill("a cat slept")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Beside", exact=True)).to_be_visible()
    page.get_by_label("Sentence", exact=True).fill("cats sleep")
    expect(page.get_by_label("Query", exact=True).locator("option")).to_have_count(4)
    page.keyboard.press("Tab")
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(page.get_by_label("Sentence", exact=True)).to_have_value("cats sleep")
    expect(page.get_by_label("Sentence beside")).to_have_value("a cat slept")


def test_the_view_is_the_view(open_page: Open) -> None:
    page = open_page("/sentence?model=minilm&text=the+dog+barked")
    page.get_by_role("button", name="Open in the view").click()
    page.get_by_role("grid").wait_for()
    assert page.locator(".qkv-keys .qkv-token").count() == 5
    page.get_by_label("Merge words").check()
    assert page.locator(".qkv-keys .qkv-token").count() == 5


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Hugging Face model in a folder, with random weights."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("model") / "tiny-bert"
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "wag", "##ged"]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    sizes = {"hidden_size": 20, "num_attention_heads": 5, "intermediate_size": 7}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(words), num_hidden_layers=3, **sizes)
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore")
def test_a_model_folder_is_opened(bert: Path) -> None:
    with served("--open", str(bert)) as server:
        assert server.send("GET", "/")[2]["location"] == "/sentence"
        said, weights = looked(server, model="open", text="the dog wagged", layer=1, head=4)
        assert said["pieces"] == ["[CLS]", "the", "dog", "wag", "##ged", "[SEP]"]
        assert weights.shape == (3, 5, 6, 6)
        found = run_python(said["python"])["weights"].numpy()
        assert found == pytest.approx(weights[1, 4], abs=1e-6)
        told = json.loads(run_command(f"{said['command']} --json"))
        assert told["keys"] == said["pieces"]
        assert np.array(told["weights"]) == pytest.approx(weights[1, 4], abs=1e-6)
        body = {"model": "open", "text": "the dog wagged", "layer": 1, "head": 4, "row": 2}
        cell = server.answer("sentence/cell", body)
        assert cell["exponential"] / cell["total"] == pytest.approx(cell["weight"], abs=1e-6)
        assert cell["answer"] is None
