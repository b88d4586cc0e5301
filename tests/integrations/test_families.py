from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from integrations import families

from qkv.integrations.transformers import register

transformers = pytest.importorskip("transformers", reason="pip install transformers")

SHARES = 8  # so that workers can divide the families among them


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Small models make transformers warn and log of things that are no concern here."""
    verbosity, threads = transformers.logging.get_verbosity(), torch.get_num_threads()
    transformers.logging.set_verbosity(logging.CRITICAL)
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity(verbosity)


def told() -> dict[str, str]:
    """What docs/models.md says of each family."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `(.+?)` \| (.+) \|$", page, re.MULTILINE))


@pytest.mark.parametrize("share", range(SHARES))
def test_every_family_is_equal_to_eager_or_refused_with_a_reason(share: int) -> None:
    register()
    names = sorted(told())[share::SHARES]
    outcomes = [families.tried(name) for name in names]
    print(families.table(outcomes))  # noqa: T201 (pytest -s shows it)
    # The page is what was tried, to the word: nothing on it is wrong, and nothing has changed.
    page = told()
    lines = [f"| `{name}` | {page[name]} |" for name in names]
    assert families.table(outcomes).splitlines()[2:] == lines


def test_the_page_has_many_families_and_says_why_some_are_refused() -> None:
    page = told()
    served = [name for name, verdict in page.items() if verdict.startswith("served")]
    refused = {name: verdict for name, verdict in page.items() if name not in served}
    assert len(served) >= 200
    assert {"bert", "gpt2", "llama", "t5", "gemma2", "gpt_oss", "opt", "nllb-moe"} <= set(served)
    assert {"bloom", "mpnet", "longformer", "deberta-v2", "xlnet", "falcon", "mpt"} <= set(refused)
    assert all("itself" in reason or "its own" in reason for reason in refused.values())
    assert set(page) <= set(families.families())
