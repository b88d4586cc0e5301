"""Whether the numbers in a tensor may be looked at to decide what to do next."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def can_read_values(*tensors: Tensor) -> bool:
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


def in_forward_mode() -> bool:
    """True where tangents are carried along, as in torch.func.jvp."""
    # The public surface has no such question; the name is checked by a test.
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def takes_plain_formula() -> bool:
    """True in forward mode, and where one transform differentiates what another did.

    Kernels have gradients, but neither tangents nor, inside of transforms, second derivatives.
    """
    if in_forward_mode():
        return True
    if torch.compiler.is_compiling() or not in_transform():
        return False
    from torch._C._functorch import TransformType
    from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

    kinds = [level.key() for level in retrieve_all_functorch_interpreters()]
    return kinds.count(TransformType.Grad) > 1


def sizes_are_known(*sizes: int) -> bool:
    """False where one is a symbol: the graph being traced is to serve other sizes too.

    A decision on a symbol would hold the graph to one side of it, see :func:`surely_equal`.
    """
    if not torch.compiler.is_compiling():
        return True
    from torch.fx.experimental.symbolic_shapes import has_static_value  # imports sympy

    return all(has_static_value(size) for size in sizes)


def surely_equal(size: int, other: int) -> bool:
    """Whether two sizes are equal, as far as that is known without holding a graph to it."""
    if not torch.compiler.is_compiling():
        return size == other
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(size == other)


def is_for_onnx() -> bool:
    """Whether what is traced is to become an ONNX model, which knows torch's operators alone."""
    return torch.compiler.is_compiling() and torch.onnx.is_in_onnx_export()


def is_eager(*tensors: Tensor) -> bool:
    """True where plain tensors are computed at once, and nobody traces, transforms or watches.

    There a computation may write in place and differentiate by hand.
    """
    for tensor in tensors:
        kind = type(tensor)
        if (kind is not Tensor and kind is not nn.Parameter) or tensor.is_meta:
            return False
    # The public surface has no such questions; the names are checked by a test.
    return not (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._is_any_autocast_enabled()
        or forward_ad._current_level >= 0
    )


def is_finite(*tensors: Tensor) -> bool:
    """Whether no tensor holds NaN or inf; False, at times, where their sums overflow."""
    # One cheap pass each; whoever asks has a slower way that is right in any case.
    for tensor in tensors:
        numbers = tensor.detach() if tensor.requires_grad else tensor
        # Sums of half types would overflow where those of answers as usual are large.
        total = numbers.sum(dtype=torch.float32) if tensor.itemsize == 2 else numbers.sum()
        if not math.isfinite(total.item()):
            return False
    return True
