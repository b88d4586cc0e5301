"""Damaged files: what a reader says of them in words of its own becomes one sentence of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

#: What Arrow raises where bytes are not what the format wants; sizes read from them may be absurd.
REFUSALS = (pa.ArrowInvalid, pa.ArrowSerializationError, pa.ArrowCapacityError, pa.ArrowMemoryError)


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Say of a file that it cannot be read, and why, whatever its reader calls that."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except (*REFUSALS, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{name} cannot be read: {reason}") from error
