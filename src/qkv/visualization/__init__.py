"""What weights look like: figures, terminal tables, the interactive view, and their summaries.

Users import the parts as ``qkv.plot``, ``qkv.summary`` and ``qkv.view``.
"""
