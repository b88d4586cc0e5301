"""Mistakes that code written for torch's layers catches by the types that torch raises."""

from __future__ import annotations


class InputError(ValueError, AssertionError, RuntimeError):
    """A size or shape that does not fit; torch raises any of the three."""


class MaskTypeError(TypeError, AssertionError):
    """A mask of a type that is none."""
