"""Examples in documents and docstrings are tests."""

from __future__ import annotations

from doctest import ELLIPSIS, NORMALIZE_WHITESPACE

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser as MarkdownBlocks
from sybil.parsers.rest import DocTestParser

_doctest = DocTestParser(optionflags=ELLIPSIS | NORMALIZE_WHITESPACE)

_documents = Sybil(parsers=[MarkdownBlocks()], patterns=["*.md"], excludes=[".venv/**"])
_docstrings = Sybil(parsers=[_doctest], path="src", patterns=["*.py"])

pytest_collect_file = (_documents + _docstrings).pytest()
