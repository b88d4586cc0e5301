"""Who may look at whom. True means *may attend*, everywhere.

A mask is an object, a boolean tensor (True = may attend), a floating tensor (added to the scores;
−inf = may not attend) or a function (query position, key position) -> bool. They combine with
``&`` (both must allow) and ``|`` (either may):

    Causal() & Lengths([7, 5])          a padded batch of a language model
    Window(128, 128) | Blocks(64)       neighbours, and one's own block

Positions are aligned to the *end*: with n queries and m keys, query i stands at key position
i + (m − n), so a decoder's last query sees every key, however few queries are asked at once.
"""

from __future__ import annotations

from qkv.mask.base import Hidden as Hidden
from qkv.mask.base import Mask as Mask
from qkv.mask.base import MaskLike as MaskLike
from qkv.mask.base import Parts as Parts
from qkv.mask.base import Runs as Runs
from qkv.mask.base import Tile as Tile
from qkv.mask.block_table import BlockTable as BlockTable
from qkv.mask.boolean_ops import And as And
from qkv.mask.boolean_ops import Or as Or
from qkv.mask.boolean_ops import as_mask as as_mask
from qkv.mask.boolean_ops import intersection as intersection
from qkv.mask.documents import Documents as Documents
from qkv.mask.function import Function as Function
from qkv.mask.positions import Blocks as Blocks
from qkv.mask.positions import Causal as Causal
from qkv.mask.positions import CausalFromStart as CausalFromStart
from qkv.mask.positions import Dilated as Dilated
from qkv.mask.positions import ExceptSelf as ExceptSelf
from qkv.mask.positions import Lengths as Lengths
from qkv.mask.positions import Window as Window
from qkv.mask.ranking import TopK as TopK
from qkv.mask.shard import NothingVisible as NothingVisible
from qkv.mask.shard import Shard as Shard
from qkv.mask.shard import mask_of_shard as mask_of_shard
from qkv.mask.tensors import Allowed as Allowed
from qkv.mask.tensors import Bias as Bias
