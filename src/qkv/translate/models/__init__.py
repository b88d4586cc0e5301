"""Translation models: what both kinds offer to training and decoding, and what they are made of."""
