"""Pairs of sentences: read, cut into pieces, held out, and put into batches."""
