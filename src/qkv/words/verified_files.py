"""Weight files of installed packages, verified by their digest."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path


def installed(package: str, file: str, sha256: str, what: str, install: str) -> Path:
    """The path of the file, if it has the expected digest; else an error that says what to do."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{what}: {install}")
    path = Path(spec.origin).parent / file
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != sha256:
        raise ValueError(
            f"{path.name} of {package} must have the SHA-256 {sha256}; got {digest}; "
            f"reinstall it: {install} --force-reinstall"
        )
    return path
