"""The package as it is installed, not the checkout: what a wheel brings, and that commands work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel was installed, alone."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "tree"
    shutil.copytree(
        TREE / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TREE / name, copy)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(copy)], check=True)
    (wheel,) = folder.glob("qkv-*.whl")
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True
    )
    return folder / "site"


def _qkv(site: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    result = subprocess.run(
        [sys.executable, "-m", "qkv", *words],
        cwd=site.parent, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_commands_work_from_the_wheel(site: Path) -> None:
    assert f"{site}" in _qkv(site, "doctor").replace("\n", "")
    assert "70,648" in _qkv(site, "query", "--demo")
    assert "happy" in _qkv(site, "sentence", "the dog was happy")
    assert "6 layers × 12 heads" in _qkv(site, "view", "the dog was happy")
    assert (site.parent / "view.html").exists()
    _qkv(site, "gallery", "convex")  # its style and script are in the wheel
    assert (site.parent / "build" / "gallery" / "index.html").exists()
    assert "--open" in _qkv(site, "explore", "--help")
    for file in ("explore/static/index.html", "visualization/viewer/static/view.js", "py.typed"):
        assert (site / "qkv" / file).exists()
