"""`qkv view`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.app import app
from qkv.cli.names import check_file, check_suffix

if TYPE_CHECKING:
    from qkv.visualization.viewer import View


@app.command(short_help="Write a page of every layer and head of a model.")
def view(
    text: Annotated[str, typer.Argument(metavar="SENTENCE", help="What the model reads.")],
    model: Annotated[
        str, typer.Option(metavar="FOLDER", help="minilm, or the folder of a Hugging Face model.")
    ] = "minilm",
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("view.html"),
) -> None:
    """Read a sentence with a model and write one offline page of all its layers and heads.

    It opens on the most informative head, see `qkv.summary.most_telling`.
    """
    check_suffix(out, "--out", ".html", ".htm")
    if model != "minilm":
        check_file(model, "--model")
        if not (Path(model) / "config.json").is_file():
            raise ValueError(
                f"--model must be minilm or a folder with a config.json; got {model!r}"
            )
    page = _of_minilm(text) if model == "minilm" else _of_folder(text, model)
    page.save(out)
    layers, heads, *_ = page.shape
    typer.echo(f"page: {out}, {layers} layers × {heads} heads")


def _of_minilm(text: str) -> View:
    import torch

    import qkv
    from qkv.words.pretrained import minilm, minilm_tokenizer

    encoding, model = minilm_tokenizer().encode(text), minilm()
    with torch.no_grad(), qkv.record(model) as calls:
        model(torch.tensor([encoding.ids]))
    start = qkv.summary.most_telling(calls.stacked())
    return qkv.view(calls, encoding.tokens, words=encoding.word_ids, start=start, title=text)


def _of_folder(text: str, folder: str) -> View:
    import torch

    import qkv
    from qkv.optional_dependencies import require
    from qkv.words.pieces import load_folder

    transformers = require("transformers", "transformers")
    transformers.utils.logging.disable_progress_bar()
    model, tokenizer = load_folder(folder)
    encoded = tokenizer(text, return_tensors="pt")
    with torch.no_grad(), qkv.record(model) as calls:
        model(**encoded)
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
    words = encoded.word_ids() if tokenizer.is_fast else None
    start = qkv.summary.most_telling(calls.stacked())
    return qkv.view(calls, tokens, words=words, start=start, title=text)
