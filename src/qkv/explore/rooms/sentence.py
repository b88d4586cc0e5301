"""Sentence: the attention between the pieces of a sentence, by word vectors or inside a model."""

from __future__ import annotations

import shlex
import threading
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import qkv
from qkv.explore import limits
from qkv.explore.desk import Desk
from qkv.explore.encoding import floats
from qkv.explore.fields import Fields
from qkv.explore.workers import Ticket
from qkv.similarity import NAMED
from qkv.visualization.viewer.page import page as standalone
from qkv.words.pieces import load_folder
from qkv.words.pretrained import minilm, minilm_tokenizer
from qkv.words.sentence import by_vectors, words_of

MODELS = ["vectors", "minilm", "open"]
SIMILARITIES = [name for name in NAMED if name != "equal"]
DOG = "When he saw his owner, the dog was happy, so he wagged his tail"
PARTS = 3  # products, and entries of a vector, that are written out

#: A model is loaded once, and hooked by one question at a time.
_MODEL = threading.Lock()


class Read(NamedTuple):
    """A sentence as a model read it."""

    pieces: list[str]
    words: list[int | None]  # the word that each piece belongs to
    weights: Tensor  # (layers, heads, n, n)
    queries: list[Tensor]  # of each layer, (heads, n, d)
    keys: list[Tensor]
    values: list[Tensor]  # none where the model does not say
    scale: float | None  # of dot products; None: another similarity
    notes: list[str]


class Question(NamedTuple):
    text: str
    model: str
    similarity: str
    temperature: float

    @classmethod
    def of(cls, fields: Fields) -> Question:
        return cls(
            fields.text("text", DOG, limits.SENTENCE).strip(),
            fields.choice("model", "vectors", MODELS),
            fields.choice("similarity", "scaled_dot", SIMILARITIES),
            fields.number("temperature", 1.0, 0.01, 100.0),
        )

    def read(self, desk: Desk) -> Read:
        """The sentence, read once for all questions about it."""
        words_of(self.text)  # refuses what holds none
        reader = {"vectors": _vectors, "minilm": _minilm, "open": _opened}[self.model]
        with _MODEL:
            return desk.once(("sentence", self), partial(reader, self, desk))


class Place(NamedTuple):
    """A head; −1 stands for the mean of a layer's heads, a layer of −1 for the rollout."""

    layer: int
    head: int

    @classmethod
    def of(cls, fields: Fields, read: Read) -> Place:
        layers, heads = read.weights.shape[:2]
        layer = fields.integer("layer", layers - 1, -1, 999)
        head = fields.integer("head", -1, -1, 999)
        return cls(min(layer, layers - 1), min(head, heads - 1))


def look(fields: Fields, desk: Desk, ticket: Ticket) -> dict[str, Any]:
    """All weights of all heads, their summaries, and code that computes one of them."""
    question = Question.of(fields)
    read = question.read(desk)
    ticket.check()
    place = Place.of(fields, read)
    layers, heads = read.weights.shape[:2]
    return {
        "pieces": read.pieces,
        "layers": layers,
        "heads": heads,
        "weights": floats(read.weights),
        "entropy": qkv.summary.entropy(read.weights).tolist(),
        "distance": qkv.summary.distance(read.weights).tolist(),
        "rollout": floats(qkv.summary.rollout(read.weights)),
        "notes": read.notes,
        "python": as_python(question, place, desk),
        "command": as_command(question, place, desk),
    }


def cell(fields: Fields, desk: Desk, _: Ticket) -> dict[str, Any]:
    """The steps of one weight: products, scale, softmax, and its term in the answer."""
    read = Question.of(fields).read(desk)
    n = len(read.pieces)
    layer = fields.integer("layer", 0, 0, read.weights.shape[0] - 1)
    head = fields.integer("head", 0, 0, read.weights.shape[1] - 1)
    row, column = fields.integer("row", 0, 0, n - 1), fields.integer("column", 0, 0, n - 1)
    weights = read.weights[layer, head, row].double()  # (n,)
    content: dict[str, Any] = {
        "weight": float(weights[column]),
        "weights": weights.tolist(),
        "scale": read.scale,
        "products": None,
        "answer": None,
    }
    if read.scale is not None:
        query, key = read.queries[layer][head, row].double(), read.keys[layer][head].double()
        products = query * key[column]
        scores = ((key @ query) * read.scale).masked_fill(weights == 0, -torch.inf)
        shifted = (scores - scores.max()).exp()
        content |= {
            "products": [{"q": float(query[i]), "k": float(key[column, i])} for i in range(PARTS)],
            "size": len(query),
            "dot": float(products.sum()),
            "score": float(products.sum() * read.scale),
            "most": float(scores.max()),
            "exponential": float(shifted[column]),
            "total": float(shifted.sum()),
        }
    if read.values:
        value = read.values[layer][head].double()  # (n, d)
        content["value"] = value[column, :PARTS].tolist()
        content["answer"] = (weights @ value)[:PARTS].tolist()
    return content


def view(fields: Fields, desk: Desk, _: Ticket) -> dict[str, Any]:
    """What `qkv.view` draws."""
    return {"data": _view(Question.of(fields), desk).data}


def page(fields: Fields, desk: Desk, _: Ticket) -> dict[str, Any]:
    """The view as a separate page."""
    return {"page": standalone(_view(Question.of(fields), desk).data)}


ACTIONS = {"look": look, "cell": cell, "view": view, "page": page}


def _view(question: Question, desk: Desk) -> qkv.View:
    read = question.read(desk)
    layers = range(len(read.weights))
    return qkv.view(read.weights, read.pieces, layers=layers, words=read.words, title=question.text)


def _vectors(question: Question, desk: Desk) -> Read:
    looking = by_vectors(question.text, question.similarity, question.temperature)
    _check_pieces(looking.words)
    from qkv.words import glove

    x = torch.from_numpy(glove().look_up(looking.words).vectors).double()[None]  # (1, n, d)
    scales = {"scaled_dot": x.shape[-1] ** -0.5, "dot": 1.0}
    scale = scales.get(question.similarity)
    return Read(
        looking.words,
        list(range(len(looking.words))),
        torch.from_numpy(looking.weights)[None, None],
        [x],
        [x],
        [x],
        None if scale is None else scale / question.temperature,
        looking.notes,
    )


def _minilm(question: Question, desk: Desk) -> Read:
    model: Any
    model, tokenizer = desk.once("minilm", lambda: (minilm(), minilm_tokenizer()))
    encoding = tokenizer.encode(question.text)
    _check_pieces(encoding.tokens)
    inputs: list[Tensor] = []
    hooks = [
        layer.self_attn.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
        for layer in model.layers
    ]
    try:
        with torch.no_grad(), qkv.record(model) as calls:
            model(torch.tensor([encoding.ids]))
            weights = calls.stacked()
            queries = [call.query[0] for call in calls]
            keys = [call.key[0] for call in calls]
            values = [
                _values(layer.self_attn, given[0], weights.shape[1])
                for layer, given in zip(model.layers, inputs, strict=True)
            ]
    finally:
        for hook in hooks:
            hook.remove()
    scale = queries[0].shape[-1] ** -0.5
    notes = ["MiniLM: 6 layers × 12 heads; [CLS] and [SEP] mark the ends, ## goes on with a word"]
    words = list(encoding.word_ids)
    return Read(encoding.tokens, words, weights, queries, keys, values, scale, notes)


def _values(attention: Any, given: Tensor, heads: int) -> Tensor:
    """The values of each head, (heads, n, d): the last third of what a layer projects."""
    weight, bias = (each.chunk(3)[2] for each in (attention.in_proj_weight, attention.in_proj_bias))
    values = given @ weight.mT + bias
    per_head: Tensor = values.unflatten(-1, (heads, -1)).transpose(0, 1)
    return per_head


def _opened(question: Question, desk: Desk) -> Read:
    if desk.opened is None or desk.opened.kind != "model":
        raise ValueError("no model was opened: start with `qkv explore --open FOLDER`")
    model, tokenizer = desk.once("opened model", partial(load_folder, desk.opened.source))
    encoded = tokenizer(question.text, return_tensors="pt")
    pieces = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0].tolist())
    _check_pieces(pieces)
    with torch.no_grad(), qkv.record(model) as calls:
        model(**encoded)
        weights = calls.stacked()
        queries, keys = [call.query[0] for call in calls], [call.key[0] for call in calls]
    same = {call.query.shape[1] == call.key.shape[1] for call in calls} == {True}
    scale = queries[0].shape[-1] ** -0.5 if same else None
    words = encoded.word_ids() if tokenizer.is_fast else [None] * len(pieces)
    return Read(pieces, words, weights, queries, keys, [], scale, [desk.opened.name])


def _check_pieces(pieces: list[str]) -> None:
    if len(pieces) > limits.PIECES:
        raise ValueError(
            f"this room shows sentences of up to {limits.PIECES} pieces; this one has {len(pieces)}"
        )


def as_python(question: Question, place: Place, desk: Desk) -> str:
    text = repr(question.text)
    if question.model == "vectors":
        return "\n".join(
            [
                "from qkv.words.sentence import by_vectors",
                "",
                f"looking = by_vectors({text}, {question.similarity!r}, {question.temperature!r})",
                "weights = looking.weights",
                "print(looking.words, weights)",
            ]
        )
    if question.model == "minilm":
        made = [
            "from qkv.words.pretrained import minilm, minilm_tokenizer",
            "",
            f"model, encoding = minilm(), minilm_tokenizer().encode({text})",
            "with torch.no_grad(), qkv.record(model) as calls:",
            "    model(torch.tensor([encoding.ids]))",
        ]
    else:
        folder = desk.opened.source if desk.opened else ""
        made = [
            "from transformers import AutoModel, AutoTokenizer",
            "",
            f"model = AutoModel.from_pretrained({folder!r}).eval()",
            f"encoding = AutoTokenizer.from_pretrained({folder!r})({text}, return_tensors='pt')",
            "with torch.no_grad(), qkv.record(model) as calls:",
            "    model(**encoding)",
        ]
    if place.layer < 0:
        chosen = "qkv.summary.rollout(calls.stacked())"
    elif place.head < 0:
        chosen = f"calls.stacked()[{place.layer}].mean(0)"
    else:
        chosen = f"calls.stacked()[{place.layer}, {place.head}]"
    return "\n".join(["import torch, qkv", *made, f"weights = {chosen}", "print(weights)"])


def as_command(question: Question, place: Place, desk: Desk) -> str:
    words = ["qkv", "sentence", question.text]
    if question.model == "vectors":
        words += ["--similarity", question.similarity, "--temperature", repr(question.temperature)]
        return shlex.join(words)
    folder = desk.opened.source if question.model == "open" and desk.opened else "minilm"
    words += ["--model", folder, "--pieces"]
    if place.layer < 0:
        words.append("--rollout")
    else:
        words += ["--layer", str(place.layer)]
        words += ["--head", str(place.head)] if place.head >= 0 else []
    return shlex.join(words)
