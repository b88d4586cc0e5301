"""All examples as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from pathlib import Path

import qkv
from qkv.atomic_write import replacing
from qkv.gallery.parts import Code, Figure, Part, Result, Table, Text
from qkv.gallery.run import Shown
from qkv.gallery.svg import as_svg

STATIC = Path(__file__).parent / "static"

#: Figures broader than this, in inches, scroll on a telephone instead of shrinking.
_BROAD = 5.7
#: A figure is shown at so many pixels an inch.
_PIXELS = 112

_FORMULA = (
    'Attention(<span class="is-query">q</span>, D) = Σ<sub>i</sub> '
    '<span class="is-weight">α(<span class="is-query">q</span>, <span class="is-key">k<sub>i</sub>'
    '</span>)</span> v<sub>i</sub> = <span class="is-answer">answer</span>'
)

_PAGE = """<!doctype html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>qkv gallery</title>
<style>{style}</style>
</head>
<body>
<header>
<button class="theme" type="button">dark</button>
<h1>qkv gallery</h1>
<p class="lead">Attention from a look-up in a table to a translator that looks back at its
source, each step computed on this machine. <span class="is-query">Queries</span>,
<span class="is-key">keys</span>, <span class="is-weight">weights</span> and
<span class="is-answer">answers</span> have the same colours everywhere.</p>
<p class="formula">{formula}</p>
</header>
<main>
<nav aria-label="Examples"><ul class="thumbs">
{thumbs}
</ul></nav>
{articles}
</main>
<footer>qkv {version}; {count} examples in {seconds:.0f} s. In a terminal:
<code>qkv gallery NAME</code>.</footer>
<script type="module">{script}</script>
</body>
</html>
"""


def write(all_shown: Sequence[Shown], folder: Path) -> Path:
    """Write `index.html` into the folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    with replacing(path) as half:
        half.write_text(page(all_shown), encoding="utf-8")
    return path


def page(all_shown: Sequence[Shown]) -> str:
    """The page, with a policy that lets nothing run but its own script."""
    style = (STATIC / "gallery.css").read_text(encoding="utf-8")
    script = (STATIC / "gallery.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _PAGE.format(
        # Figures carry style attributes, which have no digest.
        policy=f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        formula=_FORMULA,
        thumbs="\n".join(map(_thumb, all_shown)),
        articles="\n".join(map(_article, all_shown)),
        version=escape(qkv.__version__),
        count=len(all_shown),
        seconds=sum(shown.seconds for shown in all_shown),
    )


def _thumb(shown: Shown) -> str:
    drawn = as_svg(shown.figures[0], f"thumb-{shown.name}") if shown.figures else ""
    picture = f'<span aria-hidden="true">{drawn}</span>' if drawn else ""
    return f'<li><a href="#{shown.name}">{picture}{escape(shown.title)}</a></li>'


def _article(shown: Shown) -> str:
    body = (
        f'<p class="skipped">Skipped: {escape(shown.skipped)}</p>'
        if shown.skipped
        else "\n".join(_part(part, f"{shown.name}-{n}") for n, part in enumerate(shown.parts))
    )
    return (
        f'<article id="{shown.name}">\n<h2>{escape(shown.title)}</h2>\n'
        f'<p class="source">{escape(shown.source)} · qkv gallery {shown.name}</p>\n'
        f'<p class="caption">{escape(shown.caption)}</p>\n{body}\n</article>'
    )


def _part(part: Part, name: str) -> str:
    match part:
        case Result():
            return f'<p class="result">{escape(part.text)}</p>'
        case Text():
            return f"<p>{escape(part.text)}</p>"
        case Figure():
            return _figure(part, name)
        case Table():
            return _table(part)
        case Code():
            return (
                '<div class="code"><button type="button">copy</button>'
                f"<pre>{escape(part.source)}</pre></div>"
            )
        case _:
            return ""


def _figure(part: Figure, name: str) -> str:
    width = part.drawing.get_figwidth()
    kind = ' class="broad"' if width > _BROAD else ""
    svg = as_svg(part, name).replace(
        "<svg ", f'<svg role="img" aria-label="{escape(part.caption)}" ', 1
    )
    svg = svg.replace(f'width="{72 * width:g}pt"', f'width="{_PIXELS * width:.0f}"', 1)
    caption = f"<figcaption>{escape(part.caption)}</figcaption>"
    return f'<figure{kind}><div class="scroll" tabindex="0">{svg}</div>{caption}</figure>'


def _table(part: Table) -> str:
    caption = f"<caption>{escape(part.caption)}</caption>" if part.caption else ""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in part.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in part.rows
    )
    return (
        f'<div class="scroll tabled" tabindex="0"><table>{caption}<thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
