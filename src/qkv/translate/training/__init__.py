"""Training: setup, the loop, callbacks, checkpoints, metrics, and several processes."""
