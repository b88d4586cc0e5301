"""What a view is made from, where it goes, and what it says to a mistake."""

from __future__ import annotations

import html
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv

HOSTILE = '</script><img src=x onerror="alert(1)">'


def some(*shape: int) -> torch.Tensor:
    return torch.rand(*shape).softmax(dim=-1)


class Tags(HTMLParser):
    """The tags of a page and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.found.append(tag)

    def handle_data(self, text: str) -> None:
        if self.found[-1:] == ["script"] and text.strip():
            self.scripts.append(text)


@pytest.mark.parametrize("shape", [(5, 5), (3, 5, 5), (1, 3, 5, 5)])
def test_missing_axes_are_of_size_1(shape: tuple[int, ...]) -> None:
    view = qkv.view(some(*shape), list("abcde"))
    assert view.shape == (1, 1, *shape)[-4:]
    assert view.data["keys"] is None


def test_layers_are_not_mistaken_for_a_batch_nor_a_batch_for_layers() -> None:
    weights = some(2, 3, 5, 5)
    assert qkv.view(weights, list("abcde"), layers=range(2)).data["layers"] == ["0", "1"]
    assert qkv.view(weights, list("abcde"), entry=1) == qkv.view(weights[1], list("abcde"))
    attentions = (some(2, 3, 5, 5), weights)  # of two layers, as Hugging Face models give them
    chosen = torch.stack([layer[1] for layer in attentions])
    expected = qkv.view(chosen, list("abcde"), layers=range(2))
    assert qkv.view(attentions, list("abcde"), entry=1) == expected
    assert qkv.view([each.tolist() for each in attentions], list("abcde"), entry=1) == expected


def test_a_recording_is_shown_by_its_layers() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    model = torch.nn.ModuleDict({"one": layer, "two": torch.nn.Sequential(layer)})
    x = torch.randn(3, 5, 8)
    with torch.no_grad(), qkv.record(model) as calls:
        model["two"](model["one"](x))
    shown = qkv.view(calls, list("abcde"), entry=2)
    assert shown == qkv.view(calls.stacked(2), list("abcde"), layers=[c.name for c in calls])
    assert shown.data["layers"] == ["one.self_attn", "one.self_attn"]


def test_tensors_arrays_and_lists_give_the_same_view() -> None:
    weights = some(2, 3).to(torch.bfloat16).requires_grad_()
    views = [
        qkv.view(given, ["a", "b"], ["c", "d", "e"])
        for given in (weights, weights.detach().float().numpy(), weights.tolist())
    ]
    assert views[0] == views[1] == views[2]


def test_the_page_holds_the_module_unchanged_and_the_data_as_data(tmp_path: Path) -> None:
    static = Path(qkv.visualization.viewer.page.STATIC)
    view = qkv.view(some(2, 2), ["a", HOSTILE], title=HOSTILE)
    view.save(tmp_path / "view.html")
    page = (tmp_path / "view.html").read_text(encoding="utf-8")
    tags = Tags(page)
    data, module = tags.scripts
    assert tags.found.count("script") == 2
    assert "img" not in tags.found
    assert json.loads(data) == view.data
    assert module.startswith((static / "view.js").read_text(encoding="utf-8"))
    assert (static / "view.css").read_text(encoding="utf-8") in page
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert list(tmp_path.iterdir()) == [tmp_path / "view.html"]


def test_the_module_neither_evaluates_nor_writes_html() -> None:
    module = (qkv.visualization.viewer.page.STATIC / "view.js").read_text(encoding="utf-8")
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "Function(", "fetch("):
        assert way not in module
    assert "</script" not in module


def test_an_interrupted_save_leaves_the_old_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "view.html"
    path.write_text("old")

    def interrupted(half: Path, *_: object, **__: object) -> None:
        half.write_bytes(b"half")
        raise KeyboardInterrupt

    view = qkv.view(some(2, 2), ["a", "b"])
    monkeypatch.setattr(Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        view.save(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_notebook_without_widgets_gets_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    view = qkv.view(some(2, 2), ["a", HOSTILE], title='"')
    bundle = view._repr_mimebundle_(include=None, exclude=None)
    assert bundle["text/plain"] == "View(shape=(1, 1, 2, 2))"
    tags = Tags(bundle["text/html"])
    assert tags.found == ["iframe"]
    assert 'sandbox="allow-scripts"' in bundle["text/html"]
    assert html.escape(qkv.visualization.viewer.page.page(view.data)) in bundle["text/html"]
    with pytest.raises(
        ImportError, match=r"^anywidget is not installed: pip install '(anywidget.*|qkv\[view\])'$"
    ):
        view.widget()


def test_a_notebook_with_widgets_gets_a_widget() -> None:
    view = qkv.view(some(2, 2), ["a", "b"])
    widget = view.widget()
    static = qkv.visualization.viewer.page.STATIC
    assert widget.data == view.data
    assert str(widget._esm) == (static / "view.js").read_text(encoding="utf-8")
    assert str(widget._css) == (static / "view.css").read_text(encoding="utf-8")
    bundle, _ = view._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    widget.close()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"weights": some(5)}, ValueError, r"shape \(queries, keys\), none 0; got \(5,\)"),
        ({"weights": some(1, 1, 1, 5, 5)}, ValueError, r"shape \(layers, heads, queries, keys\)"),
        ({"weights": some(0, 5)}, ValueError, r"none 0; got \(0, 5\)"),
        ({"weights": np.full((5, 5), -0.25)}, ValueError, r"between 0 and 1; got -0\.25"),
        ({"weights": some(5, 5) * np.inf}, ValueError, r"between 0 and 1; got inf"),
        ({"queries": ["a"]}, ValueError, "queries must name 5 tokens, as weights has; got 1"),
        ({"queries": "abcde"}, TypeError, "queries must be a list of strings; got 'abcde'"),
        ({"queries": [1, 2, 3, 4, 5]}, TypeError, "queries must be a list of strings; got"),
        ({"keys": list("abc")}, ValueError, "keys must name 5 tokens, as weights has; got 3"),
        ({"layers": ["x", "y"]}, ValueError, "layers must have 1 names, as weights has; got 2"),
        ({"heads": []}, ValueError, "heads must have 1 names, as weights has; got 0"),
        ({"weights": some(2, 1, 5, 5)}, ValueError,
         r"shape \(2, 1, 5, 5\) may be of layers or of a batch: give layers= their names, or"),
        ({"entry": 0}, ValueError, r"entry is one of a batch, and weights must have shape \("),
        ({"weights": some(2, 1, 5, 5), "entry": 2}, ValueError, "between 0 and 1; got 2"),
        ({"words": [0]}, ValueError, "words must number 5 tokens; got 1"),
        ({"keys": list("fghij"), "words": [0] * 5}, ValueError, "words serves where"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        qkv.view(**{"weights": some(5, 5), "queries": list("abcde"), **arguments})


def test_a_page_that_no_browser_could_hold_is_refused() -> None:
    weights = np.broadcast_to(np.float32(0), (2**14, 2**13))
    with pytest.raises(
        ValueError, match="a view holds at most 67,108,864 weights; got 134,217,728"
    ):
        qkv.view(weights, [""] * 2**14, [""] * 2**13)


def test_a_view_is_saved_as_html_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a view's name must end in \.html; got 'view.png'"):
        qkv.view(some(2, 2), ["a", "b"]).save(tmp_path / "view.png")


def test_layers_of_a_recording_are_named_by_what_tells_them_apart() -> None:
    layers = [torch.nn.TransformerEncoderLayer(8, 2, batch_first=True) for _ in range(3)]
    model = torch.nn.Sequential(*layers).eval()
    with torch.no_grad(), qkv.record(model) as calls:
        model(torch.randn(1, 5, 8))
    assert [call.name for call in calls] == ["0.self_attn", "1.self_attn", "2.self_attn"]
    assert qkv.view(calls, list("abcde")).data["layers"] == ["0", "1", "2"]
    decoder = torch.nn.TransformerDecoderLayer(8, 2, batch_first=True).eval()
    with torch.no_grad(), qkv.record(decoder) as calls:
        decoder(torch.randn(1, 5, 8), torch.randn(1, 5, 8))
    found = qkv.view(calls, list("abcde")).data["layers"]
    assert found == ["self_attn", "multihead_attn"]


def test_a_view_can_open_on_a_layer_and_a_head() -> None:
    weights = torch.rand(3, 2, 5, 5).softmax(-1)
    words = ["a", "b", "c", "d", "e"]
    found = qkv.view(weights, words, layers=range(3), start=(2, None)).data["start"]
    assert found == {"layer": "2", "head": "mean"}
    assert qkv.view(weights, words, layers=range(3)).data["start"] is None
    with pytest.raises(ValueError, match=r"^start must name a layer from 0 to 2; got 3$"):
        qkv.view(weights, words, layers=range(3), start=(3, 0))
