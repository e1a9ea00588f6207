"""launch_child.py in a process whose heap is full of old bytes without zeros.

MPICH tells its peers 4 KiB from the place where its network address lies in the heap. The zeros among them are sent
short: with few of them the requests to the launcher are as long as they can get.
"""

import ctypes
import random
import sys
from pathlib import Path

import accdp_comm  # noqa: F401 - its memory must not lie above what is filled here

_COPIES = 20
_SIZES = range(24, 2048, 16)


def fill_heap() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = []
    for size in [*_SIZES] * _COPIES + [4096] * 10 * _COPIES:
        block = libc.malloc(size)
        ctypes.memset(block, 0x5A, size)
        blocks.append(block)
    random.Random(1).shuffle(blocks)
    for block in blocks:
        libc.free(block)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import launch_child

    fill_heap()
    launch_child.main()
