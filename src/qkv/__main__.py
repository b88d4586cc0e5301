"""`python -m qkv`, and `torchrun -m qkv`."""

from __future__ import annotations

from qkv.cli import main

if __name__ == "__main__":
    main()
