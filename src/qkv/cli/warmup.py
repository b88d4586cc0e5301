"""`qkv warmup`."""

from __future__ import annotations

from importlib.util import find_spec

from rich.console import Console

from qkv.cli.app import app


@app.command()
def warmup() -> None:
    """Compile all kernels ahead, so that no first call has to wait."""
    from qkv.operators.fused import warmup as compile_fused
    from qkv.operators.sorted import line
    from qkv.translate.warmup import warmup as compile_search

    with Console().status("compiling") as status:
        compile_fused(lambda kernel: status.update(f"compiled {kernel}"))
        line.compile_all()
        compile_search()
        if find_spec("pyarrow") is not None:
            from qkv.table.kernels import compiled

            compiled()
