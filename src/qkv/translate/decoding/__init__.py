"""From a model to text: beam search, alignments, and the translator that users call."""
