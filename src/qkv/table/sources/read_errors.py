"""Damaged files: whatever a reader raises becomes one clear error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

#: What Arrow raises where bytes are not what the format wants; sizes read from them may be absurd.
READ_ERRORS = (
    pa.ArrowInvalid,
    pa.ArrowSerializationError,
    pa.ArrowCapacityError,
    pa.ArrowMemoryError,
)


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Raise ValueError that names the file and the reason, whatever its reader raises."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except (*READ_ERRORS, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{name} cannot be read: {reason}") from error
