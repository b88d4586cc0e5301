"""Files of installed packages that others trained."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path


def installed(package: str, file: str, sha256: str, what: str, install: str) -> Path:
    """Where the file is, if it is the one we know; else an error with the cure."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{what}: {install}")
    path = Path(spec.origin).parent / file
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        raise ValueError(
            f"{path.name} of {package} must have the SHA-256 {sha256}; got {found}; "
            f"install it anew: {install} --force-reinstall"
        )
    return path
