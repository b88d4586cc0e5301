"""Gaussian widths: choosing the bandwidth

The same samples under Gaussians of several widths. Narrow ones follow the noise, wide ones flatten
the curve. Two ways find one in between: leave-one-out predicts each sample from all others and
takes the width with the least error; gradient descent learns it like any other parameter, through
`qkv.attend`, from the same error. They agree, as they should.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qkv.gallery.parts import Figure, Part, Result, Step, Table, code_of
from qkv.gallery.regression import QUERY, fitted, samples, truth
from qkv.visualization import plot

SOURCE = "Nadaraya-Watson Regression, different widths; Eq. 5"
WIDTHS = (0.05, 0.2, 1.0)


def learn() -> Any:
    import torch

    import qkv
    from qkv.gallery.regression import samples

    x, y = (torch.from_numpy(each)[:, None] for each in samples())
    gaussian = qkv.Gaussian(bandwidth=1.0, learnable=True)
    others = ~torch.eye(len(x), dtype=torch.bool)  # leave each sample itself out
    optimizer = torch.optim.Adam(gaussian.parameters(), lr=0.1)
    for _ in range(90):
        loss = (qkv.attend(x, x, y, similarity=gaussian, mask=others) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return gaussian.bandwidth(x).item()


def parts() -> Iterator[Part]:
    x, y = samples()
    yield Step("learning the width by gradient descent")
    learned = learn()
    rows, panels = [], []
    for name, width in (
        *((f"{width:g}", width) for width in WIDTHS), ("by leave-one-out", "loo"),
        ("learned by gradient", learned),
    ):  # fmt: skip
        row, panel = fitted("gaussian", width, x, y)
        rows.append([name, *row[1:]])
        panels.append(panel)
    yield Result(f"leave-one-out finds {rows[3][1].split()[0]}, gradient descent {learned:.2f}")
    titles = (*(f"width {width:g}" for width in WIDTHS), f"learned, {learned:.2f}")
    drawn = [*panels[:3], panels[4]]
    yield Figure(
        plot.fits(x, y, QUERY, [p._replace(name=t) for p, t in zip(drawn, titles, strict=True)],
                  truth(QUERY)),
        "Narrow, better, wide, learned: fits and weights",
    )  # fmt: skip
    yield Table(["width", "bandwidth", "error", "LOO R²", "neighbours", "answers, 0 to 4"], rows)
    yield code_of(learn)
