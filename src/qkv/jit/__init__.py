"""Compiled code: what is compiled, where it is kept, how it is loaded and run on many threads.

Nothing here knows of attention, and nothing here is imported by Numba's absence: kernels that were
compiled once are loaded without it.
"""

from qkv.jit.function import Device as Device
from qkv.jit.function import device as device
from qkv.jit.function import device_in_order as device_in_order
from qkv.jit.kernels import Callback as Callback
from qkv.jit.kernels import Kernel as Kernel
from qkv.jit.kernels import UnavailableError as UnavailableError
from qkv.jit.kernels import callback as callback
from qkv.jit.kernels import kernel as kernel
from qkv.jit.kernels import kernel_in_order as kernel_in_order
from qkv.jit.scratch import release_memory as release_memory
