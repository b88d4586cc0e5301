"""Options in groups: a parameter of a command may be a dataclass whose fields are options."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each field of the dataclasses that it takes::

        @dataclass(frozen=True)
        class Size:
            width: Annotated[int, typer.Option(help="In pixels.")] = 80
            height: Annotated[int, typer.Option(help="In pixels.")] = 60

        @app.command()
        @with_option_groups
        def show(text: str, size: Size) -> None: ...

    takes ``--width`` and ``--height``. Help lists options in the order of parameters and fields.
    """
    hints = get_type_hints(command, include_extras=True)
    names = inspect.signature(command).parameters
    groups = {name: hints[name] for name in names if dataclasses.is_dataclass(hints[name])}

    def run(**options: Any) -> None:
        for name, group in groups.items():
            fields = dataclasses.fields(group)
            options[name] = group(**{field.name: options.pop(field.name) for field in fields})
        command(**options)

    parameters = list(_flattened(command, hints))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _flattened(command: Callable[..., None], hints: dict[str, Any]) -> Iterator[inspect.Parameter]:
    """The command's parameters, each dataclass replaced by its fields."""
    for parameter in inspect.signature(command).parameters.values():
        hint: Any = hints[parameter.name]
        if not dataclasses.is_dataclass(hint):
            yield _keyword(parameter.name, parameter.default, hint)
            continue
        fields = get_type_hints(hint, include_extras=True)
        for name, field in inspect.signature(hint).parameters.items():
            yield _keyword(name, field.default, fields[name])


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    """Keyword-only, since those with a default may then precede those without."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
