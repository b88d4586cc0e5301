"""Similarity: the same tokens compared in two ways, tempered and masked."""

from __future__ import annotations

import re
import shlex
import threading
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

import qkv
from qkv import mask as masks
from qkv.explore import limits
from qkv.explore.desk import Desk
from qkv.explore.encoding import finite, floats
from qkv.explore.fields import Fields
from qkv.explore.formula import Formula, parse
from qkv.explore.workers import Ticket
from qkv.similarity import NAMED, Similarity, learned

#: Kernels take a bandwidth; learned ones are drawn from a seed; a formula is typed.
KERNELS = {
    "gaussian": "Gaussian",
    "laplacian": "Laplacian",
    "boxcar": "Boxcar",
    "triangular": "Triangular",
    "epanechnikov": "Epanechnikov",
}
FIXED = {"dot": "Dot", "scaled_dot": "ScaledDot", "cosine": "Cosine", "euclidean": "Euclidean"}
LEARNED = {
    "additive": "Additive({d}, {d}, {h})",
    "bilinear": "Bilinear({d}, {d})",
    "gated": "Gated({d}, {d})",
}
NAMES = [*FIXED, *LEARNED, *KERNELS, "formula"]
HIDDEN = 8

SIZED = ["window", "blocks", "topk"]
MASKS = ["none", "causal", *SIZED, "painted"]
TOKENS = "cat:1.2,0.3;dog:1,0.6;wolf:0.7,1;tree:-0.4,1.2;rock:-1.1,0.2;sea:-0.6,-1;ship:0.3,-1.2"
_TOKEN = re.compile(r"([^:;,\s][^:;,]{0,15}):(-?[\d.]{1,8}),(-?[\d.]{1,8})")

SIDE, REACH = 41, 2.0  # of the surface: places along each axis, and how far it goes
LARGE, WIDE = 4096, 64  # tokens and dimensions of the plan at scale

_DRAWING = threading.Lock()  # torch has one generator for all threads


class Question(NamedTuple):
    """All that both sides have in common."""

    typed: str  # the tokens
    words: list[str]
    tokens: torch.Tensor  # (n, 2)
    bandwidth: float
    temperature: float
    seed: int
    formula: str
    mask: str
    size: int
    painted: str
    row: int

    @classmethod
    def of(cls, fields: Fields) -> Question:
        typed = fields.text("tokens", TOKENS, 500)
        words, tokens = _tokens(typed)
        return cls(
            typed,
            words,
            tokens,
            fields.number("bandwidth", 0.5, 0.01, 100.0),
            fields.number("temperature", 1.0, 0.01, 100.0),
            fields.integer("seed", 5, 0, 10**6),
            fields.text("formula", "-sum(abs(q - k))", limits.FORMULA),
            fields.choice("mask", "none", MASKS),
            fields.integer("size", 1, 1, limits.TOKENS),
            fields.text("painted", "", limits.TOKENS**2),
            fields.integer("row", 0, 0, len(words) - 1),
        )

    def masked(self) -> Any:
        """The mask, and how it is written."""
        n, size = len(self.words), self.size
        if self.mask == "painted":
            bits = self.painted or "1" * (n * n)
            if len(bits) != n * n or set(bits) - {"0", "1"}:
                raise ValueError(f"painted must have {n * n} digits, 0 or 1; got {bits[:20]!r}")
            rows = [[int(bit) for bit in bits[at : at + n]] for at in range(0, n * n, n)]
            return torch.tensor(rows).bool(), f"torch.tensor({rows}).bool()"
        return {
            "none": (None, "None"),
            "causal": (masks.Causal(), "qkv.mask.Causal()"),
            "window": (masks.Window(size, size), f"qkv.mask.Window({size}, {size})"),
            "blocks": (masks.Blocks(size), f"qkv.mask.Blocks({size})"),
            "topk": (masks.TopK(size), f"qkv.mask.TopK({size})"),
        }[self.mask]


class Side(NamedTuple):
    """One of the two similarities, and the lines that make it."""

    similarity: Similarity | Formula
    lines: list[str]


def compare(fields: Fields, desk: Desk, ticket: Ticket) -> dict[str, Any]:
    """Weights, scores, entropy, surface and plan of both sides."""
    question = Question.of(fields)
    left = fields.choice("left", "scaled_dot", NAMES)
    right = fields.choice("right", "gaussian", NAMES)
    sides = []
    for name in (left, right):
        ticket.check()
        with torch.no_grad():
            sides.append(_side(question, name, desk))
    return {"words": question.words, "sides": sides}


ACTIONS = {"compare": compare}


def weights_of(question: Question, name: str) -> torch.Tensor:
    """The attention between the tokens, (n, n)."""
    similarity, _ = _tempered(_made(question, name), question.temperature)
    mask, _ = question.masked()
    return qkv.weights(question.tokens, question.tokens, similarity=similarity, mask=mask)


def _side(question: Question, name: str, desk: Desk) -> dict[str, Any]:
    side = _made(question, name)
    x, (mask, written) = question.tokens, question.masked()
    similarity, more = _tempered(side, question.temperature)
    weights = weights_of(question, name)
    scores = side.similarity(x, x)
    line = torch.linspace(-REACH, REACH, SIDE, dtype=x.dtype)
    plane = torch.stack(torch.meshgrid(line.flip(0), line, indexing="ij")[::-1], -1)
    surface = side.similarity(x[question.row : question.row + 1], plane.reshape(-1, 2))
    entropy = [
        float(qkv.summary.entropy(weights[row : row + 1])) for row in range(len(question.words))
    ]
    chosen = "tempered" if more else "similarity"
    python = [
        "import torch, qkv",
        "",
        f"x = torch.tensor({x.tolist()}, dtype=torch.float64)",
        *side.lines,
        *more,
        f"mask = {written}",
        f"weights = qkv.weights(x, x, similarity={chosen}, mask=mask)",
        "print(weights, qkv.summary.entropy(weights))",
    ]
    return {
        "name": name,
        "weights": floats(weights),
        "scores": [[finite(each) for each in row] for row in scores.tolist()],
        "entropy": [finite(each) for each in entropy],
        "surface": floats(torch.nan_to_num(surface, neginf=-1e30, posinf=1e30)),
        "plan": str(qkv.explain(x, x, x, similarity=similarity, mask=mask)),
        "large": _large(question, name, mask, desk),
        "python": "\n".join(python),
        "command": _command(question, name),
    }


def _made(question: Question, name: str) -> Side:
    if name == "formula":
        formula = parse(question.formula)
        return Side(formula, formula.as_python())
    if name in LEARNED:
        with _DRAWING, torch.random.fork_rng():
            torch.manual_seed(question.seed)
            similarity = learned(name, 2, 2, HIDDEN)
        assert similarity is not None
        text = LEARNED[name].format(d=2, h=HIDDEN)
        lines = [f"torch.manual_seed({question.seed})", f"similarity = qkv.{text}.double()"]
        return Side(similarity.double(), lines)
    if name in KERNELS:
        kernel = getattr(qkv, KERNELS[name])(question.bandwidth)
        return Side(kernel, [f"similarity = qkv.{KERNELS[name]}({question.bandwidth!r})"])
    return Side(NAMED[name], [f"similarity = qkv.{FIXED[name]}()"])


def _tempered(side: Side, temperature: float) -> tuple[Any, list[str]]:
    """Scores divided by T; those of kernels are logarithms first (Eq. 4 as Eq. 3)."""
    if temperature == 1.0:
        return side.similarity, []
    kernel = getattr(side.similarity, "weighting", "softmax") == "proportional"
    log = ".log()" if kernel else ""

    def tempered(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        scores = side.similarity(query, key)
        return (scores.log() if kernel else scores) / temperature

    line = f"tempered = lambda q, k: similarity(q, k){log} / {temperature!r}"
    return tempered, [line]


def _large(question: Question, name: str, mask: Any, desk: Desk) -> str | None:
    """The number of tokens for the plan; a painted mask cannot be enlarged."""
    if question.mask == "painted":
        return None
    key = ("large", name, question.mask, question.size, question.formula)
    return desk.once(key, partial(_planned, question, name, mask))


@torch.enable_grad()  # as who trains would ask
def _planned(question: Question, name: str, mask: Any) -> str:
    x = torch.randn(LARGE, WIDE, generator=torch.Generator().manual_seed(0))
    similarity: Any = parse(question.formula) if name == "formula" else name
    with _DRAWING, torch.random.fork_rng():
        similarity = learned(name, WIDE, WIDE, WIDE) or similarity
    return str(qkv.explain(x, x, x, similarity=similarity, mask=mask))


def _command(question: Question, name: str) -> str:
    """The command for the weights, and for the plan at scale where there is one."""
    words = ["qkv", "weights", question.typed, f"--similarity={name}"]
    words += [f"--bandwidth={question.bandwidth!r}"] if name in KERNELS else []
    words += [f"--seed={question.seed}"] if name in LEARNED else []
    words += [f"--formula={question.formula}"] if name == "formula" else []
    words += [f"--temperature={question.temperature!r}"] if question.temperature != 1 else []
    if question.mask != "none":
        words.append(f"--mask={question.mask}")
        words += [f"--size={question.size}"] if question.mask in SIZED else []
        words += [f"--painted={question.painted}"] if question.mask == "painted" else []
    return "\n".join([shlex.join(words), *_planned_by(question, name)])


def _planned_by(question: Question, name: str) -> list[str]:
    """`qkv explain` for as many tokens as the plan is made for; it knows no formula."""
    if name == "formula" or question.mask == "painted":
        return []
    words = ["qkv", "explain", f"--queries={LARGE}", f"--keys={LARGE}", f"--dim={WIDE}"]
    words += [f"--value-dim={WIDE}", f"--similarity={name}", f"--hidden={WIDE}"]
    if question.mask != "none":
        words.append(f"--{question.mask}" + (f"={question.size}" if question.mask in SIZED else ""))
    return [shlex.join(words)]


def _tokens(text: str) -> tuple[list[str], torch.Tensor]:
    parts = text.split(";")
    if len(parts) > limits.TOKENS:
        raise ValueError(f"this room compares up to {limits.TOKENS} tokens; got {len(parts)}")
    words, places = [], []
    for part in parts:
        match = _TOKEN.fullmatch(part.strip())
        if match is None or "." * 2 in part:
            raise ValueError(f"tokens must be such as cat:1,0.5;dog:0,1; got {part[:40]!r}")
        words.append(match[1])
        try:
            places.append([float(match[2]), float(match[3])])
        except ValueError:
            raise ValueError(f"a token's place must be two numbers; got {part[:40]!r}") from None
    return words, torch.tensor(np.array(places))
