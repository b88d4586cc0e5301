"""Translation models: their common interface, the two kinds, and their parts."""
