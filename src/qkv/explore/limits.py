"""Limits of the explorer; requests beyond them are rejected with one sentence."""

from __future__ import annotations

JSON_BYTES = 2**16  # of a question
UPLOAD_BYTES = 8 * 2**20  # of a file that is dropped in
TABLE_BYTES = 2**27  # of its rows in memory
TABLE_ROWS = 200_000
TABLES = 8  # that are kept; the one not asked for longest goes

POINTS = 20_000
EDITS = 200  # by hand, in one link
FORMULA = 200  # characters
TOKENS = 12  # of the similarity room
SENTENCE = 400  # characters
PIECES = 64  # of a sentence, as a model reads it
MODEL_BYTES = 2**31  # of a folder given with --open
BEAM = 10
GROUPS = 2_000  # that a table's rows may fall into
KEYS = 4  # columns that a table is asked by at once

THREADS = 2  # that compute
WAITING = 64  # questions under way or waiting
SECONDS = 30.0  # until an answer is given up
