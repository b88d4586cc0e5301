"""Output for terminals whose encoding lacks some characters: the nearest ones replace them."""

from __future__ import annotations

import codecs
import sys
import unicodedata

_SIGNS = {
    "→": "->", "←": "<-", "…": "...", "·": "-", "–": "-", "—": "-", "−": "-", "×": "x", "±": "+-",
    "√": "sqrt ", "≤": "<=", "≥": ">=", "≠": "!=", "∞": "inf", "α": "alpha", "Σ": "sum ", "‖": "||",
    "“": '"', "”": '"', "‘": "'", "’": "'", "ᵀ": "^T", "ᵢ": "_i", "█": "#", "▉": "#", "▊": "#",
    "▋": "#", "▌": "=", "▍": "=", "▎": "-", "▏": "-", "▁": ".", "▂": ".", "▃": ":", "▄": "-",
    "▅": "=", "▆": "+", "▇": "*", "░": ".", "▒": ":", "▓": "+", "─": "-", "━": "-", "│": "|",
    "└": "`", "├": "|", "╸": "-", "╺": "-", "µ": "u", "☾": "", "☀": "",
}  # fmt: skip


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    shown = ""
    for sign in error.object[error.start : error.end]:
        bare = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
        shown += _SIGNS.get(sign, bare or "?")
    return shown, error.end


def speak_plainly() -> None:
    """From now on, replace characters that the output's encoding lacks by similar ones."""
    codecs.register_error("qkv.nearest", _nearest)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a stream that a program put in its place may not
            stream.reconfigure(errors="qkv.nearest")
