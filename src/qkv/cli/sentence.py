"""`qkv sentence`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from qkv.cli.app import app
from qkv.cli.names import check_similarity, check_suffix

if TYPE_CHECKING:
    from qkv.words.sentence import Looking


@app.command(short_help="Show what each word of a sentence looks at.")
def sentence(
    text: Annotated[str, typer.Argument(metavar="SENTENCE", help="Words that look at each other.")],
    similarity: Annotated[
        str | None, typer.Option(help="How word vectors are compared, by name.  [scaled_dot]")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Below 1 the most similar stands out more.  [1]")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Look inside this model instead: minilm.")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Of the model, 0 to 5.  [the last]")] = None,
    head: Annotated[int | None, typer.Option(help="Of the layer, 0 to 11.  [their mean]")] = None,
    query: Annotated[str | None, typer.Option(help="Show what this word looks at, alone.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw to this file: .svg, .pdf or .png.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page to explore, offline.")] = None,
) -> None:
    """Show what each word of a sentence looks at: by word vectors, or inside a model."""
    _check(similarity, temperature, model, layer, head)
    check_suffix(plot, "--plot", ".svg", ".pdf", ".png")
    check_suffix(html, "--html", ".html", ".htm")
    from qkv import terminal

    looking = _looking(text, similarity, temperature, model, layer, head)
    rows = None if query is None else looking.of(query)
    console = Console()
    if rows is None:
        console.print(
            terminal.matrix(looking.weights, looking.words, looking.words, console.width),
            soft_wrap=True,
        )
    for row in rows or []:
        console.print(f"what {looking.words[row]}, word {row + 1}, looks at:", highlight=False)
        console.print(terminal.bars(looking.weights[row], looking.words, console.width))
    for note in looking.notes:
        console.print(note, style="dim", highlight=False, markup=False, soft_wrap=True)
    if plot is not None:
        _draw(looking, rows, plot)
        console.print(f"figure: {plot}", style="dim", markup=False, highlight=False, soft_wrap=True)
    if html is not None:
        _write(looking, layer, head, text, html)
        console.print(f"page: {html}", style="dim", markup=False, highlight=False, soft_wrap=True)


def _looking(
    text: str,
    similarity: str | None,
    temperature: float | None,
    model: str | None,
    layer: int | None,
    head: int | None,
) -> Looking:
    from qkv.words.sentence import by_minilm, by_vectors

    if model is None:
        return by_vectors(text, similarity, 1.0 if temperature is None else temperature)
    return by_minilm(text, layer, head)


def _check(
    similarity: str | None,
    temperature: float | None,
    model: str | None,
    layer: int | None,
    head: int | None,
) -> None:
    """Options that do not fit each other, before anything heavy is imported."""
    if model is None:
        _refuse("belongs to --model minilm", layer=layer, head=head)
        check_similarity(similarity, learned=False)
        return
    if model != "minilm":
        raise ValueError(f"--model must be minilm; got {model!r}")
    _refuse(
        "belongs to word vectors, not to --model", similarity=similarity, temperature=temperature
    )


def _refuse(why: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"--{name} {why}")


def _draw(looking: Looking, rows: list[int] | None, path: Path) -> None:
    import qkv

    words = looking.words
    if rows is None:
        figure = qkv.plot.matrix(looking.weights, words, words)
    else:
        figure = qkv.plot.row(looking.weights[rows[0]], words, query=words[rows[0]])
    qkv.plot.save(figure, path)


def _write(looking: Looking, layer: int | None, head: int | None, title: str, path: Path) -> None:
    import qkv

    if looking.every.size == looking.weights.size:
        page = qkv.view(looking.weights, looking.words, title=title)
    else:
        layers = range(len(looking.every)) if layer is None else [layer]
        heads = None if head is None else [str(head)]
        page = qkv.view(
            looking.every, looking.words, layers=layers, heads=heads, title=title,
            start=(len(looking.every) - 1, None),  # what the terminal showed
        )  # fmt: skip
    page.save(path)
