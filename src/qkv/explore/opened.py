"""What `--open` names: a table, a translator, or a Hugging Face model. No other path is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qkv.explore import limits

Kind = Literal["table", "translator", "model"]

_SERVERS = ("postgresql://", "postgres://")
_DATABASES = (".duckdb", ".ddb")
_ROOMS: dict[Kind, str] = {"table": "table", "translator": "translate", "model": "sentence"}


@dataclass(frozen=True)
class Opened:
    """The user's own table or model."""

    source: str  # a path or an address
    kind: Kind
    table: str | None = None  # of a database

    @property
    def name(self) -> str:
        """Its name on the page; an address without its credentials."""
        if self.source.startswith(_SERVERS):
            return self.table or "database"
        return Path(self.source).name

    @property
    def room(self) -> str:
        """The room that shows it."""
        return _ROOMS[self.kind]


def open_what(source: str, table: str | None) -> Opened:
    """Find out what a path or an address is; nothing heavy is loaded yet."""
    if source.startswith(_SERVERS):
        return _database(source, table)
    path = Path(source)
    if not path.exists():
        raise ValueError(f"--open must name a file or folder that exists; got {source!r}")
    if path.suffix.lower() in _DATABASES:
        return _database(source, table)
    if table is not None:
        raise ValueError("--table is for .duckdb files and postgresql:// addresses only")
    config = path / "config.json"
    if not path.is_dir() or not config.is_file():
        return Opened(source, "table")
    size = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    if size > limits.MODEL_BYTES:
        raise ValueError(
            f"--open takes models of up to {limits.MODEL_BYTES >> 30} GB; {path.name} has "
            f"{size / 2**30:.1f} GB"
        )
    try:
        config_json = json.loads(config.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{config} is not JSON: {error}") from None
    ours = isinstance(config_json, dict) and config_json.get("format") == "qkv.translate"
    return Opened(source, "translator" if ours else "model")


def _database(source: str, table: str | None) -> Opened:
    if table is None:
        raise ValueError("--open of a database needs --table, the table to look at")
    return Opened(source, "table", table)
