"""What both drivers take, and how they name a part of it."""

from __future__ import annotations

from typing import NamedTuple

from qkv.jit.signature import Bool3, Int2, Int32_2, Real, Real1, Real3

WIDTH = 256  # most keys in a tile: that of a usual hidden size stays in the inner caches
LANES = 16  # the width of a tile is a multiple of this, so that loops run in whole vectors
ROWS = 8  # queries in a block

# The rows of `entry`, which says which entry of an operand serves which entry of the batch.
QUERY, KEY, VALUE = range(3)
INTERVAL, ALLOWED, BIAS = range(3)


class Functions(NamedTuple):
    """The addresses of a similarity's tile functions; 0 where there is none.

    - `transform(plain, out, reach)`: out = f(plain), entry by entry, for tokens of either kind;
      `reach[0]` becomes what `scores` and `gradient` get as the sum of that of query and key;
    - `scores(query, key, parameter, out, rows, reach)`: those of a block of queries and a tile;
    - `gradient(query, key, parameter, raw, slopes, rows, reach, dquery, dkey, dparameter)`: adds
      what a block and a tile contribute; `raw` are the scores, and may be written to. 0 where
      scores are steps: then values alone have a gradient.

    A packed query (rows, depth) holds what `transform` gave, if there is one, and the plain tokens
    behind it. Keys are such rows too, (keys, depth), or columns, (depth, width); `score_rows` and
    `differentiate_rows` say which of them the functions take.
    `proportional`: scores are weights, not logits.
    """

    transform: int
    scores: int
    gradient: int
    score_rows: bool
    differentiate_rows: bool
    proportional: bool


class Inputs(NamedTuple):
    """Each operand has its own, smaller batch; `entry` (3, batch) leads there."""

    query: Real3  # (…, n, d)
    key: Real3  # (…, m, d)
    value: Real3  # (…, m, d_v)
    parameter: Real1
    entry: Int2


class Masks(NamedTuple):
    """Who may look at whom; of size 0: there is no such mask; an axis of size 1 is broadcast."""

    start: Int2  # (…, n): the first key that each query may attend to
    stop: Int2  # (…, n): the one behind the last
    allowed: Bool3  # (…, n, m)
    bias: Real3  # (…, n, m): added to the logits
    entry: Int2  # (3, batch)


class Dropout(NamedTuple):
    """Which pairs are dropped is a hash of `row_key` (batch, n) and the key's position."""

    row_key: Int32_2
    threshold: int
    scale: Real  # of what is kept


class Block(NamedTuple):
    """Some queries and a tile of keys: query `i` of batch entry `b` is row `row` of its chunk."""

    b: int
    i: int
    row: int
    rows: int
    j: int
    width: int
