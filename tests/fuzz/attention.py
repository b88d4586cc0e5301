"""Attention against the float64 formula: every operator that serves, answers, totals, gradients.

How far an answer may be off is found out, not set: inputs and scores are moved by the last digit of
their type, and the reference says how far its own answers move then.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from fuzz.questions import Asked, draw
from fuzz.reference import Question, reply
from torch import Tensor

import qkv
from qkv.operators import banded, sdpa, streamed, topk
from qkv.plan import OPERATORS

NAMES = ("query", "key", "value")


def check(seed: int) -> int:
    """Ask the question of a seed in every way; the number of answers that were compared."""
    asked = draw(seed)
    before = torch.get_num_threads()
    torch.set_num_threads(asked.threads)
    try:
        with _tiles(asked.tile_bytes):
            return _Comparison(asked, seed).everything()
    except Exception as error:
        error.add_note(f"seed {seed}: {asked}")
        raise
    finally:
        torch.set_num_threads(before)


@contextmanager
def _tiles(size: int | None) -> Iterator[None]:
    """Small problems fit into one tile, where tiling is not put to the test."""
    if size is None:
        yield
        return
    modules = (streamed, sdpa, topk)
    kept = [module.TILE_BYTES for module in modules]
    block = banded.BLOCK
    try:
        for module in modules:
            module.TILE_BYTES = size
        banded.BLOCK = 4
        yield
    finally:
        for module, bytes_ in zip(modules, kept, strict=True):
            module.TILE_BYTES = bytes_
        banded.BLOCK = block


class _Comparison:
    def __init__(self, asked: Asked, seed: int) -> None:
        self.asked, self.question = asked, asked.question
        self.eps = torch.finfo(asked.query.dtype).eps
        self.random = torch.Generator().manual_seed(seed)
        tensors = {name: getattr(asked, name) for name in NAMES}
        for name, place, number in asked.poison:
            tensors[name] = tensors[name].clone()
            tensors[name][place] = number
        self.tensors = tensors
        # What is hidden must not matter: the reference has 0 in its place.
        self.clean = {
            name: x.double().nan_to_num(0.0, 0.0, 0.0) if asked.poison else x.double()
            for name, x in tensors.items()
        }
        self.touched, self.shows = self._reach()
        self.undecided = torch.zeros_like(self.touched)
        batch, n = self.question.allowed.shape[:-2], asked.query.shape[-2]
        self.upstream = torch.randn(
            *batch, n, asked.value.shape[-1], generator=self.random, dtype=torch.float64
        )
        self.parameters = (
            list(asked.similarity.parameters())
            if isinstance(asked.similarity, torch.nn.Module)
            else []
        )

    def _reach(self) -> tuple[Tensor, Tensor]:
        """Queries that something not finite may reach, and those in which NaN must show."""
        allowed = self.question.allowed
        key, value, query = (self.tensors[name] for name in ("key", "value", "query"))
        bad = ~(key.isfinite().all(-1) & value.isfinite().all(-1))  # (…, m)
        sees = allowed.any(-1)
        touched = (allowed & bad.unsqueeze(-2)).any(-1) | (sees & ~query.isfinite().all(-1))
        shows = (allowed & key.isnan().any(-1).unsqueeze(-2)).any(-1)
        shows = shows | (sees & query.isnan().any(-1))
        if self.question.kind.name == "equal" or self.question.top is not None:
            shows = torch.zeros_like(shows)  # NaN equals nothing; where it ranks is not said
        return touched | self._overflows(), shows

    def _overflows(self) -> Tensor:
        """Queries for which a callable, handed tokens of a half type, leaves what that can hold."""
        formula, allowed = self.asked.similarity, self.question.allowed
        if isinstance(formula, str | qkv.Similarity) or self.eps < 1e-4:
            return torch.zeros(allowed.shape[:-1], dtype=torch.bool)
        with torch.no_grad():
            scores = formula(self.tensors["query"], self.tensors["key"])
        return (allowed & ~scores.isfinite()).any(-1)

    def everything(self) -> int:
        answer, total, grads = self._reference()
        self.touched = self.touched | self.undecided
        # How far it moves with the last digits, and how far off the plain formula is itself.
        moved = [self._reference(noisy=True) for _ in range(3)] + [self._naive()]
        count, value_size = 0, max(self.clean["value"].abs().flatten().tolist(), default=0.0)
        for name in (None, *OPERATORS):
            wants_grad = not self.touched.any() and bool(self.tensors["query"].isfinite().all())
            # Where nobody asks, the gradient of a key that is no number is 0 times its slope.
            wants_grad = wants_grad and not (self.asked.poison and not self.asked.query.shape[-2])
            found = self._ask(name, wants_grad)
            if found is None:
                continue
            answers = [x[0] for x in moved]
            self._compare(f"{name} answer", found[0], answer, answers, value_size)
            if wants_grad:
                for i, grad in enumerate(found[1]):
                    which = NAMES[i] if i < 3 else f"parameter {i - 3}"
                    what = f"{name} gradient of {which}"
                    # Weights are made again of scores and totals, known to their last digits.
                    size = self.largest_score * grads[i].abs().sum().item() + self.saturated
                    self._close(what, grad, grads[i], [x[2][i] for x in moved], size)
            with torch.no_grad():
                forward = self._ask(name, False)
                partial = self._partial(name)
            if forward is not None:
                self._compare(f"{name} answer alone", forward[0], answer, answers, value_size)
            if partial is not None:
                self._compare(f"{name} partial", partial.answer, answer, answers, value_size)
                totals = partial.log_total.unsqueeze(-1)
                others = [x[1].unsqueeze(-1) for x in moved]
                self._compare(f"{name} total", totals, total.unsqueeze(-1), others, 1.0)
            count += 1
        if self.asked.with_numpy and self.asked.query.dtype not in (torch.bfloat16,):
            self._compare("numpy answer", self._numpy(), answer, [x[0] for x in moved], value_size)
        qkv.explain(**self.tensors, **self._options())
        return count

    def _options(self) -> dict[str, Any]:
        asked = self.asked
        return {"similarity": asked.similarity, "mask": asked.mask, "bias": asked.bias}

    def _reference(self, noisy: bool = False) -> tuple[Tensor, Tensor, list[Tensor]]:
        tokens, noise = dict(self.clean), None
        if noisy:
            for name in NAMES if self.question.kind.name != "equal" else ("value",):
                tokens[name] = tokens[name] * self._noise(tokens[name].shape)
            noise = self._noise(self.question.allowed.shape)
        return self._by_formula(self.question, tokens, noise)

    def _naive(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The plain formula in the question's own type, float32 at least."""
        question = self.question
        dtype = torch.promote_types(self.asked.query.dtype, torch.float32)
        similarity = copy.deepcopy(question.similarity)
        if isinstance(similarity, torch.nn.Module):
            similarity = similarity.to(dtype)
        added = None if question.added is None else question.added.to(dtype)
        narrow = replace(question, similarity=similarity, added=added)
        tokens = {name: x.to(dtype) for name, x in self.clean.items()}
        answer, total, grads = self._by_formula(narrow, tokens, None)
        return answer.double(), total.double(), [grad.double() for grad in grads]

    def _by_formula(
        self, question: Question, tokens: dict[str, Tensor], noise: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        leaves = [tokens[name].detach().requires_grad_() for name in NAMES]
        learned = question.similarity
        parameters = learned.parameters() if isinstance(learned, torch.nn.Module) else ()
        answer = reply(question, *leaves, noise=noise)
        # Where tanh is all but 1, its slope is the difference of two numbers near 1.
        saturates = question.kind.name in ("additive", "capped", "gated", "gated-scaled")
        size = max(tokens["value"].detach().abs().flatten().tolist(), default=0.0)
        self.saturated = size * self.upstream.abs().sum().item() if saturates else 0.0
        if question.kind.name in ("cosine", "sum-of-dots") and leaves[0].shape[-1] == 1:
            # One number over its size is 1 or -1: the slope, 0, is a difference of two of 1 / |x|.
            lengths = torch.cat([x.detach().abs().flatten() for x in leaves[:2]])
            apart = [x for x in lengths.double().tolist() if x > 0]
            self.saturated += size * self.upstream.abs().sum().item() / min(apart, default=1.0)
        if question is self.question and noise is None and answer.margin is not None:
            # Which keys are the best is left to the last digits.
            self.undecided = (answer.margin <= 16 * self.eps).expand(self.touched.shape)
        finite = answer.scores.detach()[answer.scores.isfinite()]
        self.largest_score = finite.abs().max().item() if finite.numel() else 0.0
        batch = question.allowed.shape[:-1]
        found = answer.answer.expand(*batch, -1)
        loss = (found * self.upstream.to(found.dtype)).sum()
        if noise is not None and found.numel() and answer.scores.numel():
            # A pair's share in a gradient is the difference of two products, known to so much.
            known = self.upstream.abs().sum(-1).max() * tokens["value"].abs().max()
            # Of float64 the noise itself is often rounded to nothing.
            signs = torch.randint(0, 2, noise.shape, generator=self.random) * 2 - 1
            sizes = 0.5 + torch.rand(noise.shape, generator=self.random)  # so that no two cancel
            pulls = answer.weights.detach() * (self.eps * signs * sizes) * known
            loss = loss + torch.where(answer.scores.isfinite(), answer.scores, 0.0).mul(pulls).sum()
        grads = torch.autograd.grad(
            loss,
            [*leaves, *parameters],
            allow_unused=True,
            materialize_grads=True,
        )
        return found.detach(), answer.log_total.detach().expand(batch), list(grads)

    def _noise(self, shape: torch.Size) -> Tensor:
        steps = torch.randn(shape, generator=self.random)
        return 1 + self.eps * steps.double()

    def _ask(self, operator: str | None, wants_grad: bool) -> tuple[Tensor, list[Tensor]] | None:
        tokens = [self.tensors[name].detach().requires_grad_(wants_grad) for name in NAMES]
        try:
            answer = qkv.attend(*tokens, **self._options(), operator=operator)
            if not wants_grad:
                return answer.detach(), []
            loss = (answer * self.upstream.to(answer.dtype)).sum()
            wanted = [*tokens, *self.parameters]
            grads = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
        except (ValueError, MemoryError) as error:
            if operator is None or f"operator {operator!r}" not in str(error):
                raise
            return None
        return answer.detach(), list(grads)

    def _partial(self, operator: str | None) -> Any:
        try:
            return qkv.attend_partial(**self.tensors, **self._options(), operator=operator)
        except (ValueError, MemoryError) as error:
            if operator is None or f"operator {operator!r}" not in str(error):
                raise
            return None

    def _numpy(self) -> Tensor:
        """The same by NumPy, of arrays that lie backwards in memory."""
        arrays = {}
        for name, x in self.tensors.items():
            own = x.detach().numpy()
            backwards = own[..., ::-1, ::-1].copy()
            arrays[name] = backwards[..., ::-1, ::-1]
        with torch.no_grad():
            return torch.as_tensor(qkv.attend(**arrays, **self._options()))

    def _compare(
        self, what: str, found: Tensor, wanted: Tensor, moved: list[Tensor], size: float
    ) -> None:
        """What nothing reaches is as if nothing were there; what NaN reaches shows it."""
        if self.asked.poison and found.shape[-1]:
            hides = self.shows & found.isfinite().all(-1)
            assert not hides.any(), f"{what} hides NaN in {int(hides.sum())} queries"
        if self.touched.any():
            whole = ~self.touched
            found, wanted = found[whole], wanted[whole]
            moved = [x[whole] for x in moved]
        self._close(what, found, wanted, moved, size)

    def _close(
        self, what: str, found: Tensor, wanted: Tensor, moved: list[Tensor], size: float = 0.0
    ) -> None:
        """Whether two agree as far as the type tells; `size` is that of what was added up."""
        assert found.shape == wanted.shape, f"{what} has shape {tuple(found.shape)}"
        if not found.numel():
            return
        found = found.double()
        infinite = wanted.isinf()
        same = (found == wanted) | ~infinite
        assert same.all(), f"{what} is not infinite where it should be"
        found, wanted = found[~infinite], wanted[~infinite]
        assert found.isfinite().all(), f"{what} is not finite: {found[~found.isfinite()][:3]}"
        if not found.numel():
            return
        drift = max((each[~infinite] - wanted).abs().max().item() for each in moved)
        limit = 64 * drift + 64 * self.eps * (wanted.abs().max().item() + size + self.eps)
        worst = (found - wanted).abs().max().item()
        assert not worst > limit, f"{what} is off by {worst:.3g}, where {limit:.3g} may be"
