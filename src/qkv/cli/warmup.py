"""`qkv warmup`."""

from __future__ import annotations

from importlib.util import find_spec

from rich.console import Console

from qkv.cli.app import app


@app.command()
def warmup() -> None:
    """Compile all kernels ahead, so that no first call has to wait."""
    from qkv.operators.fused import warmup as compile_all

    with Console().status("compiling") as status:
        compile_all(lambda kernel: status.update(f"compiled {kernel}"))
        if find_spec("pyarrow") is not None:
            from qkv.table.kernels import compiled

            compiled()
