"""`qkv translate train`, `run` and `score`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from qkv.cli.app import app
from qkv.cli.option_groups import with_option_groups
from qkv.cli.train_options import DataOptions, ModelOptions, TokenizerOptions, TrainingOptions

if TYPE_CHECKING:
    from qkv.translate import Interpreter, Translation
    from qkv.translate.models.recurrent import RNNConfig
    from qkv.translate.models.transformer import TransformerConfig

translate = typer.Typer(help="Train and use a translator with attention.", no_args_is_help=True)
app.add_typer(translate, name="translate")

_Model = Annotated[Path, typer.Argument(help="A folder that `qkv translate train` made.")]
_Beam = Annotated[int, typer.Option(min=1, help="How many hypotheses are followed; 1 is greedy.")]
_Length = Annotated[float, typer.Option(help="0 favours short translations, 1 is neutral.")]
_Coverage = Annotated[float, typer.Option(help="Weight of the penalty for unattended source.")]
_MaxLength = Annotated[int | None, typer.Option(min=1, help="At most so many pieces.")]

#: Options of `train` that may be given with --resume and --demo, which determine all others.
_WITHOUT_CONFIG = ("out", "resume", "demo", "tensorboard")


@translate.command()
@with_option_groups
def train(
    context: typer.Context,
    *,
    out: Annotated[Path, typer.Option(help="The folder that the model goes to.")],
    data: DataOptions,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the training in --out.")
    ] = False,
    model: ModelOptions,
    tokenizer: TokenizerOptions,
    training: TrainingOptions,
    tensorboard: Annotated[Path | None, typer.Option(help="Write curves to this folder.")] = None,
) -> None:
    """Train a translator. Ctrl-C saves; --resume continues exactly from there."""
    from qkv.translate.training import callbacks, setup
    from qkv.translate.training.checkpoint import Checkpoint
    from qkv.translate.training.ranks import joined
    from qkv.translate.training.train import Callback, Interrupted, TrainingConfig

    console = Console()
    if resume or data.demo is not None:
        _refuse_others(context, "--resume" if resume else "--demo")
    model_config: RNNConfig | TransformerConfig
    if resume:
        training_config = TrainingConfig.from_json(Checkpoint.open(out).config["recipe"])
    elif data.demo is not None:
        model_config, tokenizer_config, training_config = setup.DATES
    else:
        model_config, tokenizer_config = model.config(), tokenizer.config()
        training_config = training.config()
    with joined() as ranks:
        console.quiet = not ranks.is_first  # one progress line, however many processes
        display = callbacks.Display(console, training_config)
        callback: Callback = display
        if tensorboard is not None and ranks.is_first:
            callback = callbacks.CallbackList(display, callbacks.TensorBoard(tensorboard))
        if resume:
            session = setup.resume(out, callback, ranks)
        else:
            sources = data.sources(tokenizer.normalization)
            session = setup.begin(
                out, sources, model_config, tokenizer_config, training_config, callback, ranks
            )
        if len(session.skipped):
            console.print(f"left out: {session.skipped}", markup=False, highlight=False)
        try:
            with display:
                session.training.run()
        except Interrupted:
            hint = f"stopped and saved; continue with: qkv translate train --out {out} --resume"
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
        Path | None, typer.Option(help="Draw the alignment to this .svg, .png or .pdf.")
    ] = None,
) -> None:
    """Translate sentences, or standard input line by line as it comes."""
    from qkv.translate import Search, load

    if plot is not None and len(text or []) != 1:
        raise ValueError(f"--plot draws one sentence; got {len(text or [])}")
    search = Search(beam, n_best, length, coverage, max_length)
    interpreter = load(model)
    for sentence in text or sys.stdin:
        translations = interpreter.translate([sentence], search)[0]
        for translation in translations:
            score = f"{translation.score:.4f}\t" if n_best > 1 else ""
            sys.stdout.write(f"{score}{translation.text}\n")
        sys.stdout.flush()
        if plot is not None:
            _draw(interpreter, translations[0], plot)


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
    if len(corpus.skipped):
        console.print(f"left out: {corpus.skipped}", markup=False, highlight=False)
    with console.status("translating"):
        search = Search(beam, 1, length, coverage, max_length)
        translations = interpreter.best([pair.source for pair in corpus.pairs], search)
    result = compare(translations, [pair.target for pair in corpus.pairs], tokenize)
    if out is not None:
        out.write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
    for name, value, signature in (
        ("BLEU", result.bleu, result.bleu_signature),
        ("chrF", result.chrf, result.chrf_signature),
    ):
        console.print(f"{name} {value:.2f}  {signature}", markup=False, highlight=False)
    console.print(f"exact {result.exact:.2f} % of {len(translations):,} sentences", highlight=False)


def _refuse_others(context: typer.Context, chosen: str) -> None:
    """Reject options whose values are determined by a checkpoint or a demonstration."""
    for name in context.params:
        origin = context.get_parameter_source(name)
        if origin is not None and origin.name == "COMMANDLINE" and name not in _WITHOUT_CONFIG:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{chosen} determines data, sizes and recipe; got {option} too")


def _draw(interpreter: Interpreter, translation: Translation, path: Path) -> None:
    from qkv.visualization import plot

    words = interpreter.words(translation)
    plot.save(plot.alignment(words.weights.numpy(), words.source, words.target), path)
