"""Commands that take negative numbers as words, not as options."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

#: -3, -.5, -1e9, and keys that begin with one: -3.5,software.
_NEGATIVE = re.compile(r"-\.?\d")


class NegativeNumbers(TyperCommand):
    """A command to which ``-3`` is a number. Its options all have names of several letters."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options first, then ``--``, then words in their order: none looks like an option."""
        valued = {
            name
            for option in self.params
            if not getattr(option, "is_flag", True)
            for name in option.opts
        }
        options: list[str] = []
        words: list[str] = []
        rest = iter(args)
        for word in rest:
            if word == "--":
                words.extend(rest)
            elif not word.startswith("-") or word == "-" or _NEGATIVE.match(word):
                words.append(word)
            else:
                options.append(word)
                if word in valued:
                    options.extend(value for value in [next(rest, None)] if value is not None)
        return super().parse_args(ctx, [*options, "--", *words] if words else options)
