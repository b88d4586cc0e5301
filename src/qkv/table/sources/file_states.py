"""A check that files are unchanged since the work was planned, before a worker reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyarrow import fs


class FileStates:
    """Size and time of change of some files."""

    def __init__(self, filesystem: fs.FileSystem, paths: list[str]) -> None:
        self._filesystem = filesystem
        self._known = {path: _state(info) for path, info in _infos(filesystem, paths)}

    def of(self, paths: list[str]) -> FileStates:
        """Those of some of the files."""
        some = FileStates(self._filesystem, [])
        some._known = {path: self._known[path] for path in paths}
        return some

    def check(self) -> None:
        """Raise an error that names the file, unless all are as they were."""
        for path, info in _infos(self._filesystem, list(self._known)):
            name = Path(path).name
            if info.type == fs.FileType.NotFound:
                raise FileNotFoundError(f"there is no file {name!r} (any more)")
            if _state(info) != self._known[path]:
                raise ValueError(f"file {name!r} has changed since the question was planned")


def _infos(filesystem: fs.FileSystem, paths: list[str]) -> list[tuple[str, Any]]:
    return list(zip(paths, filesystem.get_file_info(paths) if paths else [], strict=True))


def _state(info: Any) -> tuple[int | None, int | None]:
    return info.size, info.mtime_ns
