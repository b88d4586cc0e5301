"""Pairs of sentences: reading, tokenization, held-out pairs, batches."""
