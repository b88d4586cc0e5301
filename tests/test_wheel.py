"""The package as it is installed, not the checkout: what a wheel brings, and that commands work."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

TREE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new environment, env/, into which the wheel was installed.

    It finds the other packages where the tests have them, and no more: what makes the checkout
    importable there is read for an environment's own folder alone.
    """
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "tree"
    shutil.copytree(
        TREE / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TREE / name, copy)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, copy],
        check=True,
    )
    (wheel,) = folder.glob("qkv-*.whl")
    subprocess.run(
        [*pip, "--python", folder / "env", "install", "--no-deps", "--no-compile", wheel],
        check=True,
    )
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return folder


def _alone(home: Path) -> dict[str, str]:
    """No path of the tests' own; answers fit any width."""
    mine = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**mine, "COLUMNS": "200", "PATH": f"{home / 'env' / 'bin'}:{os.environ['PATH']}"}


#: One process for all commands: most of a command's time is the import of torch.
_ALL = """
import sys
from qkv.__main__ import main
for words in (
    ["doctor"],
    ["query", "--demo"],
    ["sentence", "the dog was happy"],
    ["view", "the dog was happy"],
    ["gallery", "convex", "--no-browser"],
):
    sys.argv = ["qkv", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
"""


def test_commands_work_from_the_wheel(home: Path) -> None:
    result = subprocess.run(
        [home / "env" / "bin" / "python", "-c", _ALL],
        cwd=home, env=_alone(home), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    told = result.stdout
    assert f"{home / 'env'}" in told  # where the doctor found qkv
    assert "70,648" in told
    assert "happy" in told
    assert "6 layers × 12 heads" in told
    assert (home / "view.html").stat().st_size > 10_000
    assert (home / "build" / "gallery" / "index.html").exists()
    (site,) = (home / "env" / "lib").glob("python*/site-packages")
    assert (site / "qkv" / "py.typed").exists()


@pytest.fixture
def address(home: Path) -> Iterator[str]:
    """Where the installed command `qkv explore` serves."""
    words = ["qkv", "explore", "--port", "0", "--no-browser"]
    with subprocess.Popen(words, cwd=home, env=_alone(home), stdout=subprocess.PIPE, text=True,
                          executable=home / "env" / "bin" / "qkv") as served:  # fmt: skip
        assert served.stdout is not None
        told = served.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", told)
        assert found, told
        yield found.group()
        served.send_signal(signal.SIGINT)


def test_the_explorer_serves_from_the_wheel(address: str) -> None:
    with urllib.request.urlopen(address, timeout=20) as page:
        text = page.read().decode()
    assert "<title>" in text
    scripts = re.findall(r'(?:src|href)="/?([^":]+\.(?:js|css))"', text)
    assert scripts
    for script in scripts:
        with urllib.request.urlopen(address + script, timeout=20) as file:
            assert file.status == 200
    with urllib.request.urlopen(f"{address}view/view.js", timeout=20) as file:
        assert b"export function render" in file.read()
