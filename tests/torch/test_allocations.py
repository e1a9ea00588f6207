"""A short synchronous operation takes no memory from the heap: fewer allocations than torch's "fake" backend makes.

That one moves nothing: what it allocates is torch's way to the backend, and the Work that it returns. torch's flight
recorder is off: from 2.15 on it records what others than "fake" do.
"""

import json
import sys

import jobs
import preload

COUNTER = """
#include <stddef.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
static __thread long count;
long allocations(void) { return count; }
void *malloc(size_t size) { ++count; return __libc_malloc(size); }
void *calloc(size_t n, size_t size) { ++count; return __libc_calloc(n, size); }
void *realloc(void *old, size_t size) { ++count; return __libc_realloc(old, size); }
void *memalign(size_t to, size_t size) { ++count; return __libc_memalign(to, size); }
void *aligned_alloc(size_t to, size_t size) { ++count; return __libc_memalign(to, size); }
int posix_memalign(void **made, size_t to, size_t size) {
  ++count;
  *made = __libc_memalign(to, size);
  return *made ? 0 : 12;
}
"""

SCRIPT = """
import ctypes, json, sys, warnings
import torch, torch.distributed as dist
warnings.simplefilter("ignore")
allocations = ctypes.CDLL(None).allocations
allocations.restype = ctypes.c_long
if sys.argv[1] == "fake":
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
else:
    dist.init_process_group(sys.argv[1])
short, whole, other = torch.ones(2), torch.ones(4), torch.ones(4)
operations = {
    "all_reduce": lambda: dist.all_reduce(short),
    "broadcast": lambda: dist.broadcast(short, 0),
    "reduce": lambda: dist.reduce(short, 0),
    "barrier": lambda: dist.barrier(),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, short),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(short, whole),
}
means = {}
for name, operation in operations.items():
    for _ in range(20):
        operation()
    before = allocations()
    for _ in range(500):
        operation()
    means[name] = (allocations() - before) / 500
if dist.get_rank() == 0:
    print(json.dumps(means))
dist.destroy_process_group()
"""


def test_a_short_operation_allocates_nothing(tmp_path):
    counter = {"LD_PRELOAD": str(preload.library(tmp_path, COUNTER)), "TORCH_FR_BUFFER_SIZE": "0"}
    program = [sys.executable, "-c", SCRIPT]
    ours, torchs = (
        jobs.run([*command, backend], env=counter, timeout=100.0)
        for command, backend in (([*jobs.mpiexec_command(2), *program], "accdp"), (program, "fake"))
    )
    assert ours.returncode == 0 == torchs.returncode, f"{ours}\n{torchs}"
    means, least = (json.loads(result.stdout.splitlines()[-1]) for result in (ours, torchs))
    assert all(count > 1 for count in least.values()), f"nothing was counted: {least}"
    assert not {name: (count, least[name]) for name, count in means.items() if count >= least[name]}
