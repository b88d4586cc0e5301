"""The translator against JoeyNMT 2.3.0: the same sizes, the same sentences, measured in turns.

Sentences are Multi30k's where the environment variable QKV_DATA names a folder that holds it, and
made up otherwise. Both models have embeddings of 256, a bidirectional GRU of 256 and vocabularies
of 8,000 words; batches hold 64 sentences.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from qkv.benchmarks import Figure
from qkv.benchmarks.measure import seconds
from qkv.optional_dependencies import require
from qkv.translate.data.batches import Batch, Batching, Example, collate, encode, epoch
from qkv.translate.data.text import Corpus, Pair, SkippedLines, read_parallel
from qkv.translate.data.vocabulary import END, PAD, UNKNOWN, Words
from qkv.translate.decoding.search import Search, search
from qkv.translate.models.recurrent import RNNConfig, Translator

SIZE, WORDS, BATCH, DROPOUT, SMOOTHING, CLIP = 256, 8000, 64, 0.2, 0.1, 1.0
BEAM, STEPS = 5, 20
_ROUND = 12  # batches that one timing goes through


def measure() -> Iterator[Figure]:
    torch.manual_seed(0)
    examples, sizes = _examples()
    ours = Translator(RNNConfig(SIZE, SIZE, dropout=DROPOUT), *sizes)
    theirs = _joey(sizes)
    groups = epoch(examples, Batching(sentences=BATCH), seed=1)[: 4 * _ROUND]
    bucketed = [collate([examples[i] for i in group]) for group in groups]
    order = random.Random(1).sample(range(len(examples)), min(len(examples), 4 * _ROUND * BATCH))
    shuffled = [
        collate([examples[i] for i in order[start : start + BATCH]])
        for start in range(0, len(order), BATCH)
    ]
    # Before training no hypothesis ends early, so both search through the same number of steps.
    work = f"beam-{BEAM} decoding, sentences/s, {STEPS} steps each"
    yield _decoding(ours, theirs, bucketed[0], work, "≥ 3")
    yield from _training(ours, theirs, bucketed, shuffled)
    work = "… after that training, each ending where it will"
    yield _decoding(ours, theirs, bucketed[0], work, "")


def _training(
    ours: Translator, theirs: Any, bucketed: list[Batch], shuffled: list[Batch]
) -> Iterator[Figure]:
    our_trainer, their_trainer = _trainer(ours, _own_loss), _trainer(theirs, _joey_loss)
    work = "training, target tokens/s, each with its own kind of batches"
    speeds = _speeds((our_trainer, bucketed), (their_trainer, shuffled))
    note = f"{speeds[0]:,.0f} and {speeds[1]:,.0f}: sorted by length, and at random as JoeyNMT's"
    yield Figure(work, speeds[0] / speeds[1], "× JoeyNMT's", "≥ 4", note)
    speeds = _speeds((our_trainer, bucketed), (their_trainer, bucketed))
    note = f"{speeds[0]:,.0f} and {speeds[1]:,.0f}"
    yield Figure("… with the same batches, sorted", speeds[0] / speeds[1], "× JoeyNMT's", "", note)


def _decoding(ours: Translator, theirs: Any, batch: Batch, work: str, limit: str) -> Figure:
    joey_search = require("joeynmt.search", "bench-translate").search
    ours.eval(), theirs.eval()
    options = Search(beam=BEAM, max_length=STEPS)
    joey_batch = _joey_batch(batch)
    our_seconds, their_seconds = seconds(
        lambda: search(ours, batch.source, batch.lengths, options),
        lambda: joey_search(
            model=theirs, batch=joey_batch, max_output_length=STEPS, beam_size=BEAM, beam_alpha=1.0
        ),
        least=5.0,
    )
    count = len(batch.source)
    note = f"{count / our_seconds:,.0f} and {count / their_seconds:,.0f}"
    return Figure(work, their_seconds / our_seconds, "× JoeyNMT's", limit, note)


def _speeds(*runs: tuple[Callable[[Batch], None], list[Batch]]) -> list[float]:
    """Target tokens a second of each way to train, over rounds that take turns."""
    counts, rounds = [], []
    for step, batches in runs:
        turns = cycle(batches)

        def go(step: Callable[[Batch], None] = step, turns: Any = turns) -> None:
            for _ in range(_ROUND):
                step(next(turns))

        rounds.append(go)
        counts.append(_ROUND * sum(batch.tokens for batch in batches) / len(batches))
    times = seconds(*rounds, least=0.0, rounds=4)  # all batches are seen the same number of times
    return [count / time for count, time in zip(counts, times, strict=True)]


def _trainer(model: Any, loss: Callable[[Any, Batch], torch.Tensor]) -> Callable[[Batch], None]:
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=isinstance(model, Translator))

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        loss(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    return step


def _own_loss(model: Translator, batch: Batch) -> torch.Tensor:
    return model.loss(batch, SMOOTHING) / batch.tokens


def _joey_loss(model: Any, batch: Batch) -> torch.Tensor:
    """As JoeyNMT's own training step does it."""
    theirs = _joey_batch(batch)
    theirs.sort_by_src_length()
    loss, _, _, _ = model(return_type="loss", **vars(theirs))
    normalized: torch.Tensor = theirs.normalize(loss, normalization="tokens")
    return normalized


def _joey_batch(batch: Batch) -> Any:
    with_begin = torch.cat([batch.inputs[:, :1], batch.labels], dim=1)
    return require("joeynmt.batch", "bench-translate").Batch(
        src=batch.source,
        src_length=batch.lengths,
        src_prompt_mask=None,
        trg=with_begin,
        trg_prompt_mask=None,
        indices=torch.arange(len(with_begin)),
        device=torch.device("cpu"),
        pad_index=PAD,
        eos_index=END,
    )


def _joey(sizes: tuple[int, int]) -> Any:
    """JoeyNMT's recurrent model of the same sizes, with the special tokens where ours are."""
    vocabulary = require("joeynmt.vocabulary", "bench-translate").Vocabulary
    special = SimpleNamespace(
        pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>", sep_token=None,
        lang_tags=[], pad_id=PAD, unk_id=UNKNOWN, bos_id=2, eos_id=END, sep_id=None,
    )  # fmt: skip
    embeddings = {"embedding_dim": SIZE, "scale": False, "dropout": DROPOUT}
    rnn = {
        "type": "recurrent", "rnn_type": "gru", "num_layers": 1, "hidden_size": SIZE,
        "dropout": DROPOUT, "embeddings": embeddings,
    }  # fmt: skip
    description = {
        "encoder": {**rnn, "bidirectional": True},
        "decoder": {
            **rnn, "attention": "bahdanau", "init_hidden": "bridge", "input_feeding": True,
            "hidden_dropout": DROPOUT, "activation": "tanh",
        },
    }  # fmt: skip
    made = [
        _with_specials_in_order(vocabulary, special, [f"w{i}" for i in range(size - 4)])
        for size in sizes
    ]
    model = require("joeynmt.model", "bench-translate").build_model(description, *made)
    model.loss_function = ("crossentropy", SMOOTHING)
    return model


def _with_specials_in_order(vocabulary: Any, special: SimpleNamespace, words: list[str]) -> Any:
    """JoeyNMT puts <unk> first; told that it is a language tag's place, <pad> comes first."""
    swapped = SimpleNamespace(**vars(special))
    swapped.unk_token, swapped.pad_token = special.pad_token, special.unk_token
    swapped.unk_id, swapped.pad_id = special.pad_id, special.unk_id
    made = vocabulary(words, swapped)
    made.unk_index, made.pad_index = special.unk_id, special.pad_id
    return made


def _examples() -> tuple[list[Example], tuple[int, int]]:
    """Sentences in numbers, and the sizes of the vocabularies."""
    folder = Path(os.environ.get("QKV_DATA", "")) / "multi30k"
    if "QKV_DATA" in os.environ and folder.is_dir():
        corpus = read_parallel(folder / "train.en.gz", folder / "train.de.gz")
    else:
        corpus = _made_up()
    sources, targets = zip(*corpus.pairs, strict=True)
    source, target = Words.learn(sources, WORDS), Words.learn(targets, WORDS)
    examples, _ = encode(corpus, source, target, max_length=100)
    return examples, (len(source), len(target))


def _made_up(count: int = 20_000) -> Corpus:
    """Pairs as long as captions are, of words as frequent as words are."""
    draw = random.Random(1)
    words = [f"w{i}" for i in range(12_000)]
    weights = [1.0 / (i + 10) for i in range(len(words))]

    def sentence(length: int) -> str:
        return " ".join(draw.choices(words, weights, k=length))

    pairs = []
    for _ in range(count):
        length = max(4, round(draw.gauss(13.0, 4.0)))
        pairs.append(Pair(sentence(length), sentence(max(4, length + draw.randint(-3, 3)))))
    return Corpus(pairs, list(range(1, count + 1)), SkippedLines())
