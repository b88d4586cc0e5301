"""qkv inside other libraries."""
