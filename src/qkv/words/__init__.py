"""Words and sentences: vectors, and models that were trained on them."""
