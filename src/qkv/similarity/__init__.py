"""What "alike" means, one family a file, each a formula you can read."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from qkv.similarity import algebra as algebra
from qkv.similarity.additive import Additive as Additive
from qkv.similarity.base import DotForm as DotForm
from qkv.similarity.base import FromCallable as FromCallable
from qkv.similarity.base import Similarity as Similarity
from qkv.similarity.dot import Bilinear as Bilinear
from qkv.similarity.dot import Cosine as Cosine
from qkv.similarity.dot import Dot as Dot
from qkv.similarity.dot import ScaledDot as ScaledDot
from qkv.similarity.equal import Equal as Equal
from qkv.similarity.gated import Gated as Gated
from qkv.similarity.kernel import Biweight as Biweight
from qkv.similarity.kernel import Boxcar as Boxcar
from qkv.similarity.kernel import CompactKernel as CompactKernel
from qkv.similarity.kernel import Epanechnikov as Epanechnikov
from qkv.similarity.kernel import Euclidean as Euclidean
from qkv.similarity.kernel import Gaussian as Gaussian
from qkv.similarity.kernel import Kernel as Kernel
from qkv.similarity.kernel import Laplacian as Laplacian
from qkv.similarity.kernel import OfDistance as OfDistance
from qkv.similarity.kernel import Triangular as Triangular
from qkv.similarity.kernel import Tricube as Tricube

SimilarityLike: TypeAlias = Similarity | str | Callable[[Tensor, Tensor], Tensor] | None

#: The similarities that need no size to be made, by name.
NAMED: dict[str, Similarity] = {
    "dot": Dot(),
    "scaled_dot": ScaledDot(),
    "cosine": Cosine(),
    "euclidean": Euclidean(),
    "gaussian": Gaussian(),
    "laplacian": Laplacian(),
    "boxcar": Boxcar(),
    "triangular": Triangular(),
    "epanechnikov": Epanechnikov(),
    "biweight": Biweight(),
    "tricube": Tricube(),
    "equal": Equal(),
}


def as_similarity(similarity: SimilarityLike) -> Similarity:
    """The similarity that `similarity` stands for: None, a name, a Similarity or a callable."""
    if similarity is None:
        return NAMED["scaled_dot"]
    if isinstance(similarity, Similarity):
        return similarity
    if isinstance(similarity, str):
        if similarity not in NAMED:
            close = difflib.get_close_matches(similarity, NAMED, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"similarity must be one of {', '.join(NAMED)}; got {similarity!r:.80}{hint}"
            )
        return NAMED[similarity]
    if callable(similarity):
        return FromCallable(similarity)
    raise TypeError(
        "similarity must be a qkv.Similarity, a name or a callable (query, key) -> scores; "
        f"got {type(similarity).__name__}"
    )


def learned(name: str, query_dim: int, key_dim: int, hidden_dim: int) -> Similarity | None:
    """A new similarity with parameters, by name; None where `name` is none of these."""
    if name == "additive":
        return Additive(query_dim, key_dim, hidden_dim)
    if name == "bilinear":
        return Bilinear(query_dim, key_dim)
    if name == "gated":
        return Gated(query_dim, key_dim)
    return None
