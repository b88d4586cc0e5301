"""One question to the formula, checked: what every operator is handed."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.bias import BiasLike, PositionBias, Sum, as_bias
from qkv.broadcast import batch_entries
from qkv.dropout import Dropout, draw
from qkv.mask import Causal, Mask, MaskLike, Tile, as_mask
from qkv.memory import chosen_budget
from qkv.similarity import Similarity, SimilarityLike, as_similarity
from qkv.tracing import is_eager, surely_equal

Array: TypeAlias = Tensor | npt.NDArray[np.floating[Any]]

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Checked:
    """What is known of all questions of one signature; none of it depends on the numbers."""

    __slots__ = ("batch", "order", "shortened")

    def __init__(self, batch: tuple[int, ...]) -> None:
        self.batch = batch
        #: The operators worth asking, the quickest first, once the planner has found them.
        self.order: tuple[str, ...] | None = None
        #: The same questions without their mask, to the first so many keys.
        self.shortened: dict[int, Checked] = {}


class Problem(NamedTuple):
    """Queries, keys and values of one dtype on one device, and how they are to be compared."""

    query: Tensor  # (..., n, d_q)
    key: Tensor  # (..., m, d_k)
    value: Tensor  # (..., m, d_v)
    similarity: Similarity
    mask: Mask | None
    bias: Tensor | None  # what the mask adds to the scores, (..., n or 1, m)
    dropout: Dropout | None
    batch: tuple[int, ...]  # the leading axes of query, key and value, broadcast
    wants_total: bool = False  # whether the log of the total weight is asked for too
    position_bias: PositionBias | None = None  # what is added to the scores by position
    checked: Checked | None = None  # what is known of its kind; None where nothing is kept
    asked_again: bool = False  # whether a first answer held NaN or inf, so that speed is no matter

    @property
    def n(self) -> int:
        return self.query.shape[-2]

    @property
    def m(self) -> int:
        return self.key.shape[-2]

    @property
    def pairs(self) -> int:
        return math.prod(self.batch) * self.n * self.m

    @property
    def dim(self) -> int:
        return max(self.query.shape[-1], self.key.shape[-1])

    @property
    def flops(self) -> int:
        """Work of scoring every pair (a softmax counted as five) and pooling the values."""
        return self.pairs * (self.similarity.pair_flops(self.dim) + 5 + 2 * self.value.shape[-1])

    @property
    def is_eager(self) -> bool:
        """Whether nobody traces, transforms or watches what is computed."""
        # Only where that is so is anything kept.
        return self.checked is not None or is_eager(self.query, self.key, self.value)

    @property
    def needs_grad(self) -> bool:
        if not torch.is_grad_enabled():
            return False
        return (
            self.query.requires_grad
            or self.key.requires_grad
            or self.value.requires_grad
            or (self.bias is not None and self.bias.requires_grad)
            or self.learns_positions
            or any(tensor.requires_grad for tensor in self.similarity.tensors())
        )

    @property
    def adds_to_scores(self) -> bool:
        """Whether a mask or a bias adds to the scores."""
        return self.bias is not None or self.position_bias is not None

    @property
    def is_plainly_causal(self) -> bool:
        """Whether each query looks back as torch's kernels have it: aligned to the start."""
        return (
            isinstance(self.mask, Causal)
            and surely_equal(self.n, self.m)
            and self.position_bias is None
        )

    @property
    def learns_positions(self) -> bool:
        """Whether what is added by position wants a gradient."""
        return self.position_bias is not None and self.position_bias.needs_grad(
            self.tile(0, self.n)
        )

    def tile(self, start: int, stop: int) -> Tile:
        """The queries `start` to `stop` as masks see them."""
        return Tile(start, stop, self.n, self.m, self.batch, self.query.device)

    def simplified(self) -> Problem:
        """The same question without a mask, where it limits nothing, or all entries alike."""
        if self.mask is None:
            return self
        stop = self.mask.common_stop(self.n, self.m, self.batch)
        if stop is None:
            return self
        if self.position_bias is not None and stop != self.m:
            return self  # with fewer keys queries would stand elsewhere
        if stop != self.m and self.needs_grad and self._saves_little(self.m - stop):
            return self  # gradients of some keys are copied into those of all
        checked = self.checked
        if checked is not None:
            checked = checked.shortened.setdefault(stop, Checked(checked.batch))
        if stop == self.m:
            return self._replace(mask=None, bias=None, checked=checked)
        key, value = self.key.narrow(-2, 0, stop), self.value.narrow(-2, 0, stop)
        return self._replace(key=key, value=value, mask=None, bias=None, checked=checked)

    def _saves_little(self, keys: int) -> bool:
        """Whether gradients take longer to copy than the pairs of so many keys to look at."""
        return self.n < FEW_QUERIES or math.prod(self.batch) * self.n * keys < FEW_PAIRS

    def narrow(self, axis: int, start: int, stop: int) -> Problem:
        """The entries `start` to `stop` of the leading axis `axis` alone."""

        def part(tensor: Tensor) -> Tensor:
            return batch_entries(tensor, axis, start, stop, self.batch)

        return self._replace(
            similarity=self.similarity.narrow(axis, start, stop, self.batch),
            query=part(self.query),
            key=part(self.key),
            value=part(self.value),
            bias=None if self.bias is None else part(self.bias),
            mask=self.mask and self.mask.narrow(axis, start, stop, self.batch),
            position_bias=None
            if self.position_bias is None
            else self.position_bias.narrow(axis, start, stop, self.batch),
            dropout=self.dropout and self.dropout.narrow(axis, start, stop),
            batch=(*self.batch[:axis], stop - start, *self.batch[axis + 1 :]),
        )


#: What is known of questions that were checked before, by signature.
_CHECKED: dict[Hashable, Checked] = {}
#: For fewer queries, or fewer pairs, leaving out masked keys saves less than their gradients cost
#: to copy.
FEW_QUERIES, FEW_PAIRS = 8, 2**13
#: Beyond so many they are forgotten and checked again.
MOST_CHECKED = 1024


def validate(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    similarity: SimilarityLike,
    mask: MaskLike | None,
    dropout: float = 0.0,
    wants_total: bool = False,
) -> Problem:
    """Check everything a user can get wrong, once a signature, and say it in one sentence."""
    if not query.dtype == key.dtype == value.dtype:
        query, key, value = _by_autocast(query, key, value)
    chosen = as_similarity(similarity)
    chosen_mask = mask if mask is None or isinstance(mask, Mask) else as_mask(mask)
    drops = not isinstance(dropout, float) or dropout != 0.0
    signature = checked = None
    if not drops and is_eager(query, key, value):
        signature = _signature(query, key, value, chosen, chosen_mask, wants_total)
        checked = None if signature is None else _CHECKED.get(signature)
    if checked is not None:
        batch = checked.batch
    else:
        _check_tensors(query, key, value)
        chosen.check(query, key)
        batch = _common_batch(query, key, value)
        if chosen_mask is not None:
            _check_mask(chosen_mask, query, key, batch)
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1; got {dropout}")
        if signature is not None:
            if len(_CHECKED) >= MOST_CHECKED:
                _CHECKED.clear()
            checked = _CHECKED[signature] = Checked(batch)
    drop = draw(dropout, batch, query.shape[-2], query.device) if dropout else None
    limits, by_position = (None, None) if chosen_mask is None else _parted(chosen_mask)
    bias = None if limits is None else limits.bias()
    return Problem(
        query, key, value, chosen, limits, bias, drop, batch, wants_total, by_position, checked
    )


def with_bias(mask: MaskLike | None, bias: BiasLike | None) -> MaskLike | None:
    """The mask, and what is added by position, as one."""
    if bias is None:
        return mask
    return as_bias(bias) if mask is None else as_mask(mask) & as_bias(bias)


def _parted(mask: Mask) -> tuple[Mask | None, PositionBias | None]:
    """What limits, and what is added by position."""
    limits, biases = mask.without_positions()
    each = [bias for bias in biases if isinstance(bias, PositionBias)]
    return limits, (Sum(each) if len(each) > 1 else each[0]) if each else None


def _signature(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    similarity: Similarity,
    mask: Mask | None,
    wants_total: bool,
) -> Hashable | None:
    """All that checks and plans depend on; None where that is not known."""
    own = similarity.signature()
    if own is None:
        return None
    limits = None
    if mask is not None:
        limits = mask.signature()
        if limits is None:
            return None
    gradients = torch.is_grad_enabled() and (
        query.requires_grad, key.requires_grad, value.requires_grad
    )  # fmt: skip
    return (
        query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype,
        query.device, key.device, value.device, own, limits, gradients, wants_total,
        torch.get_num_threads(), chosen_budget(),
    )  # fmt: skip


def _by_autocast(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tensors of several types as autocast, where it is on, would have them, all of one."""
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        if all(x.is_floating_point() for x in (query, key, value)):
            return query.to(dtype), key.to(dtype), value.to(dtype)
    return query, key, value


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.ndim < 2:
            raise ValueError(
                f"{name} must have at least two axes, (..., rows, dimensions); "
                f"got shape {tuple(tensor.shape)}"
            )
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name} must be floating point; got {tensor.dtype}")
        if tensor.dtype != query.dtype:
            raise TypeError(f"{name} must be {query.dtype} to match query; got {tensor.dtype}")
        if tensor.device != query.device:
            raise ValueError(
                f"{name} must be on {query.device} to match query; got {tensor.device}"
            )
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value must have shape (..., {key.shape[-2]}, d_v) to match key; "
            f"got {tuple(value.shape)}"
        )


def _check_mask(mask: Mask, query: Tensor, key: Tensor, batch: tuple[int, ...]) -> None:
    mask.check(batch, query.shape[-2], key.shape[-2])
    for tensor in mask.tensors():
        if tensor.dtype in (torch.bool, *DTYPES) and tensor.device != query.device:
            what = "bias" if mask.adds_by_position else "mask"
            raise ValueError(
                f"{what} must be on {query.device} to match query; got {tensor.device}"
            )


def as_tensors(**arrays: Array) -> tuple[list[Tensor], bool]:
    """The named arrays as tensors, and whether they came as NumPy arrays."""
    if all(isinstance(array, Tensor) for array in arrays.values()):
        return list(arrays.values()), False  # type: ignore[arg-type]
    if all(isinstance(array, np.ndarray) for array in arrays.values()):
        return [_from_numpy(name, array) for name, array in arrays.items()], True
    kinds = ", ".join(f"{name} {type(array).__name__}" for name, array in arrays.items())
    raise TypeError(
        f"{', '.join(arrays)} must be all torch tensors or all NumPy arrays; got {kinds}"
    )


def _from_numpy(name: str, array: Any) -> Tensor:
    if array.dtype not in (np.float64, np.float32, np.float16):
        raise TypeError(f"{name} must be floating point; got {array.dtype}")
    array = np.ascontiguousarray(array)
    # torch knows no negative strides, and NumPy leaves those of axes of one entry as they are.
    plain = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if plain else array.copy())


def _common_batch(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    lead = query.shape[:-2]
    if lead == key.shape[:-2] == value.shape[:-2]:
        return tuple(lead)
    try:
        return tuple(torch.broadcast_shapes(lead, key.shape[:-2], value.shape[:-2]))
    except RuntimeError:
        raise ValueError(
            f"the leading axes of query {tuple(query.shape)}, key {tuple(key.shape)} and value "
            f"{tuple(value.shape)} must broadcast"
        ) from None
