"""Translate: a translator with attention, its alignments, and its beam search."""

from __future__ import annotations

import shlex
import threading
from functools import partial
from pathlib import Path
from typing import Any

import torch

from qkv.explore import limits
from qkv.explore.beam_tree import BeamTree
from qkv.explore.desk import Desk
from qkv.explore.encoding import floats
from qkv.explore.fields import Fields
from qkv.explore.workers import Ticket
from qkv.translate import Interpreter, Search, Translation, load
from qkv.translate.data.vocabulary import BEGIN, END
from qkv.translate.decoding.search import Hypothesis, search

SHOWN = "Donnerstag, 14. März 2024"

_MODEL = threading.Lock()  # a model searches for one question at a time


def progress(fields: Fields, desk: Desk, _: Ticket) -> dict[str, Any]:
    """How far the date translator is."""
    return desk.dates.progress()


def train(fields: Fields, desk: Desk, _: Ticket) -> dict[str, Any]:
    """Start its training; other requests are answered meanwhile."""
    desk.dates.start()
    return desk.dates.progress()


def stop(fields: Fields, desk: Desk, _: Ticket) -> dict[str, Any]:
    """Stop a running training."""
    desk.dates.stop()
    return desk.dates.progress()


def run(fields: Fields, desk: Desk, ticket: Ticket) -> dict[str, Any]:
    """The greedy translation and those of a beam, with their alignments."""
    text = fields.text("text", SHOWN, limits.SENTENCE)
    if not text.strip():
        raise ValueError("there is nothing to translate yet: type a date")
    folder = _folder(fields.choice("model", "dates", ["dates", "open"]), desk)
    beam = fields.integer("beam", 4, 1, limits.BEAM)
    interpreter = desk.once(("translator", folder), partial(load, folder))
    pieces = len(interpreter.source.split(text).numbers)
    if pieces > limits.PIECES:
        raise ValueError(
            f"this room translates up to {limits.PIECES} pieces at a time; got {pieces}"
        )
    with _MODEL:
        greedy, _ = _searched(interpreter, text, Search(beam=1))
        ticket.check()
        several, tree = _searched(interpreter, text, Search(beam=beam, n_best=beam))
    return {
        "greedy": greedy[0],
        "beam": several,
        "tree": tree,
        "python": as_python(folder, text, beam),
        "command": as_command(folder, text, beam),
    }


ACTIONS = {"progress": progress, "train": train, "stop": stop, "run": run}


def _folder(model: str, desk: Desk) -> Path:
    if model == "open":
        if desk.opened is None or desk.opened.kind != "translator":
            raise ValueError("no translator was opened: start with `qkv explore --open FOLDER`")
        return Path(desk.opened.source)
    if desk.dates.stage != "ready":
        raise ValueError("the date translator is not trained yet")
    return desk.dates.folder


@torch.inference_mode()
def _searched(
    interpreter: Interpreter, text: str, how: Search
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The translations, and the tree of the search."""
    translations = interpreter.translate([text], how)[0]
    source = torch.tensor([[*interpreter.source.split(_normal(interpreter, text)).numbers, END]])
    lengths = torch.tensor([source.shape[1]])
    memory = interpreter.model.encode(source, lengths)
    tree = BeamTree(how.beam)
    hypotheses = search(interpreter.model, source, lengths, how, tree.watch)[0]
    described = [
        {
            **_described(interpreter, memory, translation, hypothesis),
            "way": tree.way(hypothesis.tokens),
        }
        for translation, hypothesis in zip(translations, hypotheses, strict=True)
    ]
    return described, tree.as_json(how, interpreter.target.surface)


def _normal(interpreter: Interpreter, text: str) -> str:
    from qkv.translate.data.text import normalized

    return normalized(text, interpreter.form)


def _described(
    interpreter: Interpreter, memory: Any, translation: Translation, hypothesis: Hypothesis
) -> dict[str, Any]:
    read = torch.tensor([[BEGIN, *hypothesis.tokens]])
    labels = torch.tensor([*hypothesis.tokens, END])
    features = interpreter.model.forced(memory, read)[0]  # (t, r)
    log_p = interpreter.model.logits(features).log_softmax(-1)
    each = log_p.gather(-1, labels[:, None])[:, 0]
    alignment = translation.alignment
    return {
        "text": translation.text,
        "score": translation.score,
        "log_p": each.tolist(),  # of each token, and the end
        "source": alignment.source,
        "target": alignment.target,
        "weights": floats(alignment.weights),
    }


def as_python(folder: Path, text: str, beam: int) -> str:
    return "\n".join(
        [
            "from qkv.translate import Search, load",
            "",
            f"model = load({str(folder)!r})",
            f"found = model.translate([{text!r}], Search(beam={beam}, n_best={beam}))[0]",
            "for each in found:",
            "    print(each.score, each.text, each.alignment.weights.shape)",
        ]
    )


def as_command(folder: Path, text: str, beam: int) -> str:
    words = ["qkv", "translate", "run", str(folder), "--beam", str(beam), "--n-best", str(beam)]
    return shlex.join([*words, "--", text])
