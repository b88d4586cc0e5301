"""Damaged files: whatever a reader raises becomes one clear error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

#: What Arrow raises where bytes are not what the format wants; sizes read from them may be absurd.
READ_ERRORS = (
    pa.ArrowInvalid,
    pa.ArrowSerializationError,
    pa.ArrowCapacityError,
    pa.ArrowMemoryError,
)


@contextmanager
def readable(name: str, fragments: Iterable[ds.FileFragment] = ()) -> Iterator[None]:
    """Raise ValueError that names the file and the reason, whatever its reader raises.

    Which of several fragments it was is found by reading them again, one by one.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except (*READ_ERRORS, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{_broken(fragments) or name} cannot be read: {reason}") from error


def _broken(fragments: Iterable[ds.FileFragment]) -> str | None:
    """The name of the first file that cannot be read."""
    for fragment in fragments:
        try:
            for batch in fragment.to_batches():
                batch.validate(full=True)
        except (*READ_ERRORS, OSError):
            return repr(Path(fragment.path).name)
    return None
