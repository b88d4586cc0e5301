"""Visualization of weights: figures, terminal tables, the interactive view, and summaries.

Users import the parts as ``qkv.plot``, ``qkv.summary`` and ``qkv.view``.
"""
