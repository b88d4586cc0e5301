"""`qkv translate train`, `run` and `score`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from qkv.cli.app import app

if TYPE_CHECKING:
    from qkv.translate import Interpreter, Translation

translate = typer.Typer(
    help="Train and use a translator that looks back at its source.", no_args_is_help=True
)
app.add_typer(translate, name="translate")

_Model = Annotated[Path, typer.Argument(help="A folder that `qkv translate train` made.")]
_Beam = Annotated[int, typer.Option(min=1, help="How many hypotheses are followed; 1 is greedy.")]
_Length = Annotated[float, typer.Option(help="0 favours short translations, 1 is neutral.")]
_Coverage = Annotated[float, typer.Option(help="How much it counts to look at all of the source.")]
_MaxLength = Annotated[int | None, typer.Option(min=1, help="At most so many pieces.")]

_BESIDE = ("out", "resume", "demo", "tensorboard")  # may stand beside --resume and --demo


@translate.command()
def train(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The folder that the model goes to.")],
    source: Annotated[Path | None, typer.Option(help="Sentences, one a line; may be .gz.")] = None,
    target: Annotated[Path | None, typer.Option(help="Their translations, line by line.")] = None,
    valid_source: Annotated[Path | None, typer.Option(help="Sentences to validate on.")] = None,
    valid_target: Annotated[Path | None, typer.Option(help="Their translations.")] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="Instead: lines of sentence, tab, translation.")
    ] = None,
    valid_pairs: Annotated[Path | None, typer.Option(help="Such lines to validate on.")] = None,
    demo: Annotated[str | None, typer.Option(help="Instead: made-up data; dates.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the training in --out.")
    ] = False,
    model: Annotated[str, typer.Option(help="recurrent or transformer.")] = "recurrent",
    similarity: Annotated[str | None, typer.Option(help="How to compare, by name.")] = None,
    cell: Annotated[str, typer.Option(help="gru or lstm.")] = "gru",
    readout: Annotated[str, typer.Option(help="maxout or tanh.")] = "maxout",
    embedding: Annotated[int, typer.Option(min=1, help="Size of a piece's vector.")] = 256,
    hidden: Annotated[int, typer.Option(min=1, help="Size of the state.")] = 256,
    tied: Annotated[bool, typer.Option(help="Output layer and embedding are one.")] = True,
    dropout: Annotated[
        float, typer.Option(min=0.0, max=0.95, help="Share of numbers dropped in training.")
    ] = 0.4,
    level: Annotated[str, typer.Option(help="subwords, words or characters.")] = "subwords",
    vocabulary: Annotated[int, typer.Option(min=5, help="At most so many pieces.")] = 8000,
    joint: Annotated[bool, typer.Option(help="One vocabulary for both languages.")] = True,
    normalization: Annotated[str, typer.Option(help="nfc, nfkc or none.")] = "nfc",
    max_length: Annotated[int, typer.Option(min=1, help="Longer pairs are left out.")] = 100,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Target pieces in a batch.")] = 1100,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over all pairs, at most.")] = 18,
    minutes: Annotated[float | None, typer.Option(min=0.0, help="Stop after so long.")] = None,
    learning_rate: Annotated[float, typer.Option(min=0.0, help="Its highest value.")] = 1e-3,
    warmup: Annotated[int, typer.Option(min=0, help="Steps over which the rate rises.")] = 200,
    smoothing: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="Of labels: the share of the other pieces.")
    ] = 0.1,
    clip: Annotated[float, typer.Option(min=0.0, help="Largest norm of a gradient.")] = 1.0,
    patience: Annotated[int, typer.Option(min=1, help="Epochs without progress.")] = 10,
    watch: Annotated[str, typer.Option(help="What progress is: bleu, loss or exact.")] = "bleu",
    tokenize: Annotated[str, typer.Option(help="sacrebleu's tokenizer.")] = "13a",
    seed: Annotated[int, typer.Option(help="Same seed, same model.")] = 1,
    tensorboard: Annotated[Path | None, typer.Option(help="Write curves to this folder.")] = None,
) -> None:
    """Train a translator. Ctrl-C saves; --resume goes on as if nothing had happened."""
    from qkv.translate.data.batches import Batching
    from qkv.translate.data.sources import Sources
    from qkv.translate.models.recurrent import RNNConfig
    from qkv.translate.models.transformer import TransformerConfig
    from qkv.translate.training import callbacks, setup
    from qkv.translate.training.checkpoint import Checkpoint
    from qkv.translate.training.ranks import joined
    from qkv.translate.training.train import Callback, Interrupted, TrainingConfig

    console = Console()
    if resume or demo is not None:
        _refuse_others(context, "--resume" if resume else "--demo")
    # Words are checked by what they choose from.
    words: dict[str, Any] = {"cell": cell, "readout": readout, "watch": watch, "level": level}
    alike: dict[str, Any] = {"similarity": similarity} if similarity else {}
    files: dict[str, Any] = {
        "source": source, "target": target, "valid_source": valid_source,
        "valid_target": valid_target, "pairs": pairs, "valid_pairs": valid_pairs,
        "demo": demo,
    }  # fmt: skip
    told: dict[str, Any] = {name: str(file) for name, file in files.items() if file is not None}
    sizes: RNNConfig | TransformerConfig
    if resume:
        recipe = TrainingConfig.from_json(Checkpoint.open(out).config["recipe"])
    elif demo is not None:
        sizes, spelling, recipe = setup.DATES
    else:
        if model == "recurrent":
            sizes = RNNConfig(
                embedding, hidden, words["cell"], readout=words["readout"], tied=tied,
                dropout=dropout, **alike,
            )  # fmt: skip
        elif model == "transformer":
            sizes = TransformerConfig(hidden, d_ff=2 * hidden, tied=tied, dropout=dropout, **alike)
        else:
            raise ValueError(f"model must be recurrent or transformer; got {model!r}")
        spelling = setup.TokenizerConfig(words["level"], vocabulary, joint, max_length)
        recipe = TrainingConfig(
            epochs, minutes, learning_rate, warmup, smoothing, clip,
            batching=Batching(batch_tokens), watch=words["watch"], tokenize=tokenize,
            patience=patience, seed=seed,
        )  # fmt: skip
    with joined() as ranks:
        console.quiet = not ranks.is_first  # one progress line, however many processes
        display = callbacks.Display(console, recipe)
        watcher: Callback = display
        if tensorboard is not None and ranks.is_first:
            watcher = callbacks.CallbackList(display, callbacks.TensorBoard(tensorboard))
        if resume:
            begun = setup.resume(out, watcher, ranks)
        else:
            sources = Sources(**told, normalization=normalization)  # type: ignore[arg-type]
            begun = setup.begin(out, sources, sizes, spelling, recipe, watcher, ranks)
        if len(begun.refused):
            console.print(f"left out: {begun.refused}", markup=False, highlight=False)
        try:
            with display:
                begun.training.run()
        except Interrupted:
            hint = f"stopped and saved; go on with: qkv translate train --out {out} --resume"
            console.print(hint, markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(130) from None
    console.print(f"the best model is in {out}", markup=False, highlight=False, soft_wrap=True)


@translate.command()
def run(
    model: _Model,
    text: Annotated[
        list[str] | None, typer.Argument(help="Sentences; none: lines of standard input.")
    ] = None,
    beam: _Beam = 5,
    n_best: Annotated[int, typer.Option(min=1, help="Show so many translations, scored.")] = 1,
    length: _Length = 1.0,
    coverage: _Coverage = 0.0,
    max_length: _MaxLength = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw what each word looked at: .svg, .png or .pdf.")
    ] = None,
) -> None:
    """Translate sentences, or standard input line by line as it comes."""
    from qkv.translate import Search, load

    if plot is not None and len(text or []) != 1:
        raise ValueError(f"--plot draws one sentence; got {len(text or [])}")
    how = Search(beam, n_best, length, coverage, max_length)
    interpreter = load(model)
    for sentence in text or sys.stdin:
        found = interpreter.translate([sentence], how)[0]
        for translation in found:
            score = f"{translation.score:.4f}\t" if n_best > 1 else ""
            sys.stdout.write(f"{score}{translation.text}\n")
        sys.stdout.flush()
        if plot is not None:
            _draw(interpreter, found[0], plot)


@translate.command()
def score(
    model: _Model,
    source: Annotated[Path, typer.Option(help="Sentences, one a line.")],
    target: Annotated[Path, typer.Option(help="Reference translations, line by line.")],
    beam: _Beam = 5,
    length: _Length = 1.0,
    coverage: _Coverage = 0.0,
    max_length: _MaxLength = None,
    tokenize: Annotated[
        str, typer.Option(help="sacrebleu's tokenizer; none for text that is tokenised already.")
    ] = "13a",
    out: Annotated[Path | None, typer.Option(help="Write the translations to this file.")] = None,
) -> None:
    """Compare translations with references: BLEU, chrF and their signatures."""
    from qkv.translate import Search, load
    from qkv.translate.data.text import read_parallel
    from qkv.translate.training.metrics import score as compare

    interpreter = load(model)
    corpus = read_parallel(source, target, interpreter.form)
    console = Console(soft_wrap=True)
    if len(corpus.refused):
        console.print(f"left out: {corpus.refused}", markup=False, highlight=False)
    with console.status("translating"):
        how = Search(beam, 1, length, coverage, max_length)
        found = interpreter.best([pair.source for pair in corpus.pairs], how)
    result = compare(found, [pair.target for pair in corpus.pairs], tokenize)
    if out is not None:
        out.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
    for name, value, signature in (
        ("BLEU", result.bleu, result.bleu_signature),
        ("chrF", result.chrf, result.chrf_signature),
    ):
        console.print(f"{name} {value:.2f}  {signature}", markup=False, highlight=False)
    console.print(f"exact {result.exact:.2f} % of {len(found):,} sentences", highlight=False)


def _refuse_others(context: typer.Context, chosen: str) -> None:
    """What a checkpoint or a demonstration brings along cannot be told as well."""
    for name in context.params:
        told = context.get_parameter_source(name)
        if told is not None and told.name == "COMMANDLINE" and name not in _BESIDE:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{chosen} brings its own data, sizes and recipe; got {option} too")


def _draw(interpreter: Interpreter, translation: Translation, path: Path) -> None:
    from qkv.visualization import plot

    words = interpreter.words(translation)
    plot.save(plot.alignment(words.weights.numpy(), words.source, words.target), path)
