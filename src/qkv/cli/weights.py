"""`qkv weights`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from qkv.cli.app import app


@app.command(short_help="Compare a few tokens, as the explorer does.")
def weights(
    tokens: Annotated[
        str, typer.Argument(metavar="TOKENS", help="Words and places: 'cat:1,0.5;dog:0,1'.")
    ],
    similarity: Annotated[
        str, typer.Option(help="dot, scaled_dot, additive, gaussian, formula, …")
    ] = "scaled_dot",
    formula: Annotated[
        str | None, typer.Option(help="With --similarity formula: '-norm(q - k)'.")
    ] = None,
    bandwidth: Annotated[float, typer.Option(help="Of kernels.")] = 0.5,
    seed: Annotated[int, typer.Option(help="From which learned similarities are drawn.")] = 5,
    temperature: Annotated[float, typer.Option(help="Divides scores.")] = 1.0,
    mask: Annotated[
        str, typer.Option(help="none, causal, window, blocks, topk or painted.")
    ] = "none",
    size: Annotated[int, typer.Option(help="Of window, blocks and topk.")] = 1,
    painted: Annotated[
        str, typer.Option(help="Row by row, 1 where a query may look at a key, else 0.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """Compare a few tokens of two numbers, as the explorer does: weights and their entropy."""
    from qkv.optional_dependencies import require

    require("uvicorn", "explore")
    from qkv.explore.fields import Fields
    from qkv.explore.rooms.similarity import NAMES, Question, weights_of

    fields: dict[str, Any] = {"tokens": tokens, "bandwidth": bandwidth, "seed": seed, "size": size}
    fields |= {"temperature": temperature, "mask": mask, "painted": painted}
    fields |= {} if formula is None else {"formula": formula}
    question = Question.of(Fields(fields))
    if formula is not None:
        similarity = "formula"
    name = Fields({"similarity": similarity}).choice("similarity", "scaled_dot", NAMES)
    _show(question.words, weights_of(question, name).detach(), json)


def _show(words: list[str], weights: Any, json: bool) -> None:
    from qkv.visualization import summary, terminal

    entropy = [float(summary.entropy(weights[row : row + 1])) for row in range(len(words))]
    if json:
        _print_json({"tokens": words, "weights": weights.tolist(), "entropy": entropy})
        return
    console = Console()
    table = terminal.matrix(weights.numpy(), words, words, console.width)
    console.print(table, soft_wrap=True)
    bits_of_words = ", ".join(
        f"{word} {bits:.3g}" for word, bits in zip(words, entropy, strict=True)
    )
    console.print(
        f"bits of entropy: {bits_of_words}", markup=False, highlight=False, soft_wrap=True
    )


def _print_json(content: Any) -> None:
    import json

    print(json.dumps(content))  # noqa: T201
