"""The dog sentence: each word takes its turn as the query

"When he saw his owner, the dog was happy, so he wagged his tail". Who guesses the word "happy"
looks at the owner, the dog, the wagging and the tail. With word vectors, which are the same in
every sentence, a word mostly finds itself and what is generally like it. A trained head of MiniLM
has read the sentence: there, "happy" looks at the tail, the wagging and the dog.
"""

from __future__ import annotations

from rich.console import Console

from qkv.terminal import bars, matrix
from qkv.words.sentence import by_minilm, by_vectors

SENTENCE = "When he saw his owner, the dog was happy, so he wagged his tail"
QUERY = "happy"
LAYER, HEAD = 5, 11


def show(console: Console) -> None:
    for looking in (by_vectors(SENTENCE), by_minilm(SENTENCE, LAYER, HEAD)):
        words, row = looking.words, looking.of(QUERY)[0]
        console.print("; ".join(looking.notes), style="bold", highlight=False)
        console.print(matrix(looking.weights, words, words, console.width), soft_wrap=True)
        console.print(f"\nwhat {QUERY} looks at:", highlight=False)
        console.print(bars(looking.weights[row], words, console.width))
        console.print()
