"""Options in groups: a command may take dataclasses, whose fields are then its options."""

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
    Every field needs a default.
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
    """The command's parameters, each dataclass replaced by its fields.

    All are keyword-only, so that those with a default may precede those without.
    """
    kind = inspect.Parameter.KEYWORD_ONLY
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if not dataclasses.is_dataclass(hint):
            yield parameter.replace(kind=kind, annotation=hint)
            continue
        field_hints = get_type_hints(hint, include_extras=True)
        for field in dataclasses.fields(hint):
            name, default = field.name, field.default
            yield inspect.Parameter(name, kind, default=default, annotation=field_hints[name])
