"""What any torch model attended to, also under fused kernels."""

from __future__ import annotations

from qkv.recording.call import Call as Call
from qkv.recording.call import Calls as Calls
from qkv.recording.call import Missed as Missed
from qkv.recording.call import Top as Top
from qkv.recording.call import WeighedCall as WeighedCall
from qkv.recording.context import record as record
