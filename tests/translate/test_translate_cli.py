"""`qkv translate`: trained, used, scored, interrupted, and what it says to a mistake."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy import write_pairs

from qkv.cli import main

COMMAND = [sys.executable, "-c", "from qkv.cli import main; main()", "translate"]
SMALL = [
    "--level", "characters", "--embedding", "16", "--hidden", "32", "--no-tied", "--dropout", "0",
    "--batch-tokens", "150", "--learning-rate", "0.01", "--warmup", "20", "--smoothing", "0",
    "--watch", "exact",
]  # fmt: skip


def qkv(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], input=stdin, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reverse")
    write_pairs(folder, count=800)
    with (folder / "train.tsv").open("a") as stream:
        stream.write("a line without its other side\n")
    result = qkv(
        "train", "--pairs", str(folder / "train.tsv"), "--valid-pairs", str(folder / "valid.tsv"),
        "--out", str(folder / "model"), "--epochs", "6", *SMALL,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "left out: 1 without a tab (line 801)" in result.stdout
    assert "epoch 6: loss " in result.stdout
    assert " → " in result.stdout
    assert "the best model is in " in result.stdout
    return folder


def test_a_sentence_or_lines_as_they_come(trained: Path) -> None:
    model = str(trained / "model")
    assert qkv("run", model, "abc", "--beam", "5").stdout == "cba\n"
    assert qkv("run", model, stdin="abc\nde\n").stdout == "cba\ned\n"
    best = qkv("run", model, "abc", "--n-best", "3", "--coverage", "0.1").stdout.splitlines()
    scores = [float(line.split("\t")[0]) for line in best]
    assert len(best) == 3
    assert best[0].endswith("\tcba")
    assert scores == sorted(scores, reverse=True)


def test_an_alignment_is_drawn(trained: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "align.svg"
    assert qkv("run", str(trained / "model"), "abc", "--plot", str(drawn)).stdout == "cba\n"
    assert "<svg" in drawn.read_text(encoding="utf-8")


def test_lines_are_answered_one_by_one(trained: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", str(trained / "model")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for text in ("abc", "ed"):
        process.stdin.write(text + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == text[::-1] + "\n"  # before the next one was asked
    process.communicate()
    assert process.returncode == 0


def test_score_prints_its_signatures(trained: Path) -> None:
    (trained / "t.en").write_text("abc\nde\n")
    (trained / "t.de").write_text("cba\ned\n")
    files = "--source", str(trained / "t.en"), "--target", str(trained / "t.de")
    result = qkv("score", str(trained / "model"), *files, "--tokenize", "char")
    assert result.returncode == 0, result.stderr
    assert "tok:char" in result.stdout
    assert "chrF 100.00  nrefs:1" in result.stdout
    assert "exact 100.00 % of 2 sentences" in result.stdout


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    write_pairs(tmp_path, count=3000)
    model = str(tmp_path / "model")
    files = "--pairs", str(tmp_path / "train.tsv"), "--valid-pairs", str(tmp_path / "valid.tsv")
    process = subprocess.Popen(
        [*COMMAND, "train", *files, "--out", model, "--epochs", "40", *SMALL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "model" / "config.json").exists():  # written after the first epoch
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    said = " ".join(printed.split())
    assert f"stopped and saved; continue with: qkv translate train --out {model} --resume" in said
    assert "Traceback" not in errors
    config = (tmp_path / "model" / "config.json").read_text()
    (tmp_path / "model" / "config.json").write_text(config.replace('"epochs": 40', '"epochs": 3'))
    assert qkv("train", "--out", model, "--resume").returncode == 0


def test_curves_for_tensorboard(tmp_path: Path) -> None:
    write_pairs(tmp_path, count=60)
    result = qkv(
        "train", "--pairs", str(tmp_path / "train.tsv"), "--out", str(tmp_path / "model"),
        "--epochs", "1", "--tensorboard", str(tmp_path / "curves"), *SMALL,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert list((tmp_path / "curves").glob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["train", "--out", "m"], "training needs source and target, or pairs, or demo"),
        (["train", "--out", "m", "--demo", "times"], "demo must be dates; got 'times'"),
        (["train", "--out", "m", "--pairs", "nowhere.tsv"], "nowhere.tsv"),
        (["train", "--out", "m", "--pairs", "x", "--model", "cnn"], "must be recurrent or trans"),
        (["train", "--out", "nowhere", "--resume"], "nowhere holds no checkpoint"),
        (["train", "--out", "m", "--demo", "dates", "--hidden", "9"], "recipe; got --hidden too"),
        (["train", "--out", "m", "--resume", "--max-length", "9"], "recipe; got --max-length too"),
        (["run", "nowhere", "a"], "nowhere holds no checkpoint"),
        (["run", "nowhere", "a", "b", "--plot", "a.svg"], "--plot draws one sentence; got 2"),
        (["run", "nowhere", "a", "--beam", "2", "--n-best", "3"], "n_best must be between 1 and"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_2(
    words: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["qkv", "translate", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert text in printed.err
    assert printed.err.startswith("qkv: ")
    assert printed.err.count("\n") == 1
