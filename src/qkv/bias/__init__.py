"""Scores that know positions: what is added to the score of a query and a key, by where they stand.

    attend(…, bias=Alibi(slopes))                     one slope for each head
    attend(…, bias=Relative(table))                   a learned number for each distance and head
    attend(…, bias=lambda i, j: -((i - j) / 9) ** 2)  any function of both positions

Positions are aligned to the *end*, as those of masks: query i of n stands at key position
i + (m − n). A bias adds and does not hide, so it is finite; masks hide. Where weights are
proportional to a kernel, it multiplies the kernel by exp(bias).

No bias is ever held for all pairs at once, and what it has learned gets its gradients.
"""

from __future__ import annotations

from qkv.bias.base import BiasLike as BiasLike
from qkv.bias.base import FromFunction as FromFunction
from qkv.bias.base import PositionBias as PositionBias
from qkv.bias.base import Sum as Sum
from qkv.bias.base import as_bias as as_bias
from qkv.bias.relative import Alibi as Alibi
from qkv.bias.relative import Relative as Relative
from qkv.bias.relative import RelativeBias as RelativeBias
from qkv.bias.relative import T5Buckets as T5Buckets
from qkv.bias.relative import alibi_slopes as alibi_slopes
from qkv.bias.shard import ShardBias as ShardBias
