"""The leaves of an autograd graph: what some results were computed from."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def leaves_behind(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The leaves that some results were computed from, in an order that their graph decides."""
    pending = [out.grad_fn for out in outputs if out.grad_fn is not None]
    seen, leaves = set(pending), []
    while pending:
        node = pending.pop()
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
    return leaves
