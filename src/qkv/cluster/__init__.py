"""Beyond one machine: tables and regression on Dask, tensors on torch.distributed."""

from __future__ import annotations

from qkv.cluster.attention import attend as attend
from qkv.cluster.attention import explain as explain
from qkv.cluster.errors import ClusterError as ClusterError
from qkv.cluster.sharding import shard as shard
from qkv.cluster.sharding import unshard as unshard
