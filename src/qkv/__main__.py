"""`python -m qkv`, `torchrun -m qkv`, and the command `qkv`: Ctrl-C ends it without a traceback."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from qkv.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("qkv: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
