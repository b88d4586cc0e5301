"""`qkv sentence`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from qkv.cli.app import app
from qkv.cli.names import check_similarity, check_suffix

if TYPE_CHECKING:
    from qkv.words.sentence import SentenceAttention


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
        str | None,
        typer.Option(help="Look inside this model instead: minilm, or a Hugging Face folder."),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Of the model, from 0.  [the last]")] = None,
    head: Annotated[int | None, typer.Option(help="Of the layer, from 0.  [their mean]")] = None,
    rollout: Annotated[
        bool, typer.Option("--rollout", help="Follow attention through all layers of the model.")
    ] = False,
    pieces: Annotated[
        bool, typer.Option("--pieces", help="Show pieces and marks as the model reads them.")
    ] = False,
    query: Annotated[str | None, typer.Option(help="Show what this word looks at, alone.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw to this file: .svg, .pdf or .png.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write an offline page of every layer and head.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print words and weights as JSON.")] = False,
) -> None:
    """Show what each word of a sentence looks at: by word vectors, or inside a model."""
    _check(similarity, temperature, model, layer, head, {"rollout": rollout, "pieces": pieces})
    check_suffix(plot, "--plot", ".svg", ".pdf", ".png")
    check_suffix(html, "--html", ".html", ".htm")
    from qkv.visualization import terminal

    if model is None:
        attention = _by_vectors(text, similarity, temperature)
    else:
        attention = _inside(text, model, layer, head, rollout, pieces)
    rows = None if query is None else attention.of(query)
    console = Console()
    if json:
        _print_json(attention, rows)
    elif rows is None:
        console.print(
            terminal.matrix(attention.weights, attention.words, attention.words, console.width),
            soft_wrap=True,
        )
    for row in [] if json else rows or []:
        console.print(f"what {attention.words[row]}, word {row + 1}, looks at:", highlight=False)
        console.print(terminal.bars(attention.weights[row], attention.words, console.width))
    for note in [] if json else attention.notes:
        console.print(note, style="dim", highlight=False, markup=False, soft_wrap=True)
    if plot is not None:
        _draw(attention, rows, plot)
        console.print(f"figure: {plot}", style="dim", markup=False, highlight=False, soft_wrap=True)
    if html is not None:
        note = _write(attention, layer, head, text, html)
        console.print(note, style="dim", markup=False, highlight=False, soft_wrap=True)


def _by_vectors(text: str, similarity: str | None, temperature: float | None) -> SentenceAttention:
    from qkv.words.sentence import by_vectors

    return by_vectors(text, similarity, 1.0 if temperature is None else temperature)


def _inside(
    text: str, model: str, layer: int | None, head: int | None, rollout: bool, pieces: bool
) -> SentenceAttention:
    """By MiniLM or the user's own model: words where they are known, else pieces."""
    if model == "minilm" and not pieces:
        if rollout:
            raise ValueError("--rollout goes from piece to piece: add --pieces")
        from qkv.words.sentence import by_minilm

        return by_minilm(text, layer, head)
    from qkv.words.pieces import by_pieces

    return by_pieces(text, None if model == "minilm" else model, layer, head, rollout)


def _print_json(attention: SentenceAttention, rows: list[int] | None) -> None:
    import json

    chosen = range(len(attention.words)) if rows is None else rows
    weights = [attention.weights[row].tolist() for row in chosen]
    queries = [attention.words[row] for row in chosen]
    print(json.dumps({"queries": queries, "keys": attention.words, "weights": weights}))  # noqa: T201


def _check(
    similarity: str | None,
    temperature: float | None,
    model: str | None,
    layer: int | None,
    head: int | None,
    more: dict[str, bool],
) -> None:
    """Raise where options exclude each other, before anything heavy is imported."""
    if model is None:
        _refuse("belongs to --model", layer=layer, head=head)
        _refuse("belongs to --model", **{name: given or None for name, given in more.items()})
        check_similarity(similarity, learned=False)
        return
    if model != "minilm" and not Path(model).is_dir():
        raise ValueError(f"--model must be minilm or a folder; got {model!r}")
    _refuse(
        "belongs to word vectors, not to --model", similarity=similarity, temperature=temperature
    )


def _refuse(why: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"--{name} {why}")


def _draw(attention: SentenceAttention, rows: list[int] | None, path: Path) -> None:
    import qkv

    words = attention.words
    if rows is None:
        figure = qkv.plot.matrix(attention.weights, words, words)
    else:
        figure = qkv.plot.row(attention.weights[rows[0]], words, query=words[rows[0]])
    qkv.plot.save(figure, path)


def _write(
    attention: SentenceAttention, layer: int | None, head: int | None, title: str, path: Path
) -> str:
    """Write a page that opens on the requested layer and head, else on the most informative."""
    import qkv

    layers = range(len(attention.every))
    if layer is None and head is None:
        start: tuple[int, int | None] = qkv.summary.most_telling(attention.every)
        opens = f", opens on layer {start[0]}, head {start[1]}, the most informative"
    else:
        start, opens = (layers[-1] if layer is None else layer, head), ""
    page = qkv.view(attention.every, attention.words, layers=layers, start=start, title=title)
    page.save(path)
    return f"page: {path}{opens if attention.every.size > attention.weights.size else ''}"
