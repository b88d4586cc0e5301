"""Whether the numbers in a tensor may be looked at to decide what to do next."""

from __future__ import annotations

import torch
from torch import Tensor


def may_look(*tensors: Tensor) -> bool:
    """True where a decision may depend on the data.

    It may not while a graph is being traced (the graph must serve other data too), inside torch's
    function transforms, which hide the numbers, and on tensors that have none.
    """
    return not (
        torch.compiler.is_compiling()
        or in_transform()
        or any(tensor.device.type == "meta" for tensor in tensors)
    )


def in_transform() -> bool:
    """True inside vmap, grad, jvp and the like."""
    # The public surface has no such question; the name is checked by a test.
    return bool(torch._C._are_functorch_transforms_active())
