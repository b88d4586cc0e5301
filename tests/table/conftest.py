"""A PostgreSQL server of our own, for as long as the tests run."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest


def _server_programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


def _missing(reason: str) -> NoReturn:
    """Where checks decide on what lands, nothing that they need may be missing."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a temporary cluster that listens on a socket of its own."""
    programs = _server_programs()
    if programs is None:
        _missing("PostgreSQL is not installed: `make system` installs it")
    as_user: list[str] = []
    # A name short enough for a socket, outside pytest's folders, which only root may enter.
    folder = Path(tempfile.mkdtemp(prefix="qkv-pg-", dir="/tmp"))
    if os.getuid() == 0:  # which PostgreSQL refuses to run as
        try:
            account = pwd.getpwnam("postgres")
        except KeyError:
            _missing("PostgreSQL will not run as root, and there is no user postgres")
        os.chown(folder, account.pw_uid, account.pw_gid)
        as_user = ["runuser", "-u", "postgres", "--"]

    def run(*words: str) -> None:
        subprocess.run([*as_user, *words], check=True, capture_output=True, cwd=folder)

    data = str(folder / "data")
    options = f"-c listen_addresses='' -k {folder} -F"
    try:
        run(str(programs / "initdb"), "-D", data, "-A", "trust", "-U", "qkv", "--no-sync")
        control = str(programs / "pg_ctl")
        run(control, "-D", data, "-o", options, "-w", "-l", str(folder / "log"), "start")
        try:
            yield f"postgresql:///postgres?host={folder}&user=qkv"
        finally:
            run(control, "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
