"""The gallery at every build: thumbnails in the documents, and the whole page beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qkv.gallery import EXAMPLES
from qkv.gallery.page import write
from qkv.gallery.run import Shown, run

_HERE = Path(__file__).parent
_MADE = _HERE / "_gallery"
#: They train for half a minute; a build leaves them to `make demo`.
_TRAINED = ("fixed_state", "dates")


def _build(app: Any) -> None:
    _MADE.mkdir(exist_ok=True)
    shown = [run(name) for name in EXAMPLES if name not in _TRAINED]
    write(shown, _MADE / "page" / "gallery-page")
    for each in shown:
        if each.figures:
            each.figures[0].drawing.savefig(_MADE / f"{each.name}.png", dpi=60)
    (_MADE / "gallery.txt").write_text("\n".join(map(_card, shown)), encoding="utf-8")


def _card(shown: Shown) -> str:
    picture = f"![{shown.title}](/_gallery/{shown.name}.png)\n\n" if shown.figures else ""
    body = f"Skipped: {shown.skipped}" if shown.skipped else f"**{shown.result}**"
    link = f'<a href="gallery-page/index.html#{shown.name}">figures, numbers and code</a>'
    return f"## {shown.title}\n\n{picture}{body}\n\n{shown.caption} ({shown.source}; {link})\n"


def setup(app: Any) -> dict[str, bool]:
    (_MADE / "page").mkdir(parents=True, exist_ok=True)  # Sphinx looks for it before it is written
    app.connect("builder-inited", _build)
    return {"parallel_read_safe": True}
