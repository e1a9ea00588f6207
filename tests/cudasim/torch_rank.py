"""Every rank of a job of test_torch_device.py: the torch backend on tensors of the simulated device.

argv: the folder of the module sim_torch, and what the way of the data must be called.
"""

import datetime
import json
import os
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import gpu_ops
import torch_captures
import torch_memory
from on_sim import (
    COUNT,
    JITTER,
    SIDE,
    await_all,
    is_same,
    numbers,
    refuses,
    sim_torch,
    summing,
    to_device,
    to_host,
    total,
)


def every_collective(group, rank, size):
    for is_async in (True, False):
        for count in (0, 1, 1000, COUNT):
            x = to_device(numbers(rank, count))
            summing(group, x, is_async).wait()
            assert is_same(x, total(size, count))

            options = c10d.BroadcastOptions()
            options.rootRank, options.rootTensor, options.asyncOp = size - 1, 0, is_async
            x = to_device(numbers(rank, count))
            group.broadcast([x], options).wait()
            assert is_same(x, numbers(size - 1, count))

            options = c10d.ReduceOptions()
            options.rootRank, options.asyncOp = 0, is_async
            x = to_device(numbers(rank, count))
            group.reduce([x], options).wait()
            assert is_same(x, total(size, count) if rank == 0 else numbers(rank, count))

            options = c10d.AllgatherOptions()
            options.asyncOp = is_async
            every = torch.cat([numbers(r, count) for r in range(size)])
            x, out = to_device(numbers(rank, count)), to_device(torch.zeros(size * count))
            group._allgather_base(out, x, options).wait()
            assert is_same(out, every)
            outs = [to_device(torch.zeros(count)) for _ in range(size)]
            group.allgather([outs], [x], options).wait()
            assert all(is_same(one, numbers(r, count)) for r, one in enumerate(outs))

            options = c10d.ReduceScatterOptions()
            options.asyncOp = is_async
            out = to_device(torch.zeros(count))
            group._reduce_scatter_base(out, to_device(every), options).wait()
            assert is_same(out, size * numbers(rank, count))

            options = c10d.AllToAllOptions()
            options.asyncOp = is_async
            x = to_device(torch.cat([numbers(rank + 3 * r, count) for r in range(size)]))
            out = to_device(torch.zeros(size * count))
            group.alltoall_base(out, x, [], [], options).wait()
            assert is_same(out, torch.cat([numbers(r + 3 * rank, count) for r in range(size)]))


def every_reduction(group, rank, size):
    """What the GPU check asks of a GPU."""

    def allreduce(x, op):
        options = c10d.AllreduceOptions()
        options.reduceOp = gpu_ops.OPS[op][1]
        group.allreduce([x], options).wait()
        return x

    def reduce(x, op):
        options = c10d.ReduceOptions()
        options.reduceOp, options.rootRank = gpu_ops.OPS[op][1], size - 1
        group.reduce([x], options).wait()
        return x if rank == size - 1 else None

    def reduce_scatter(x, op):
        options = c10d.ReduceScatterOptions()
        options.reduceOp = gpu_ops.OPS[op][1]
        out = to_device(torch.zeros_like(to_host(x)))
        group.reduce_scatter([out], [[x] * size], options).wait()
        return out

    def expect(holds, what):
        assert holds, what

    calls = {"allreduce": allreduce, "reduce": reduce, "reduce_scatter": reduce_scatter}
    made = sum(gpu_ops.check_type(calls, expect, (rank, size), dtype, to_device, to_host) for dtype in gpu_ops.TYPES)
    assert made == 5 * sum(gpu_ops.has(dtype, op) for dtype in gpu_ops.TYPES for op in gpu_ops.OPS)


def tensors_that_are_not_contiguous(group, rank, size):
    whole = to_device(torch.zeros(6, 8))
    part = whole.as_strided((8, 6), (1, 8))
    part.copy_(to_device(numbers(rank, 48).reshape(8, 6)))
    summing(group, part).wait()
    assert is_same(whole, total(size, 48).reshape(8, 6).t().contiguous())


def wait_holds_the_stream_back_and_not_the_host(group, rank, size):
    """The operation begins after what the current stream holds, and later work of that stream after the operation."""
    for wait in ("wait", "block_current_stream"):
        x, source = to_device(torch.zeros(COUNT)), to_device(numbers(rank))
        sim_torch.hold_stream()
        try:
            x.copy_(source)
            work = summing(group, x)
            getattr(work, wait)()  # returns, while the stream stands still
            assert not work.is_completed()
        finally:
            sim_torch.release_stream()
        assert is_same(x, total(size)), wait
        assert work.is_completed()


def side_streams(group, rank, size):
    """A result that is used on another stream than the call was made on."""
    x = to_device(numbers(rank))
    work = summing(group, x)
    sim_torch.set_stream(SIDE)
    work.wait()
    assert is_same(x, total(size))
    sim_torch.set_stream(0)
    work.wait()


def futures(group, rank, size):
    x = to_device(numbers(rank))
    seen = []
    future = summing(group, x).get_future().then(lambda done: seen.append(is_same(done.value()[0], total(size))))
    future.wait()
    assert seen == [True]


def coalesced(group, rank, size):
    """A batch is there when all its works are: for who waits, and for who uses its future's value on another stream."""
    sim_torch.set_jitter(JITTER * 100)  # so that who looks too early sees it
    for is_future in (False, True):
        group._start_coalescing()
        xs = [to_device(numbers(rank + turn)) for turn in range(5)]
        for x in xs:
            summing(group, x)
        work = group._end_coalescing()
        work.wait()
        if is_future:
            sim_torch.set_stream(SIDE)
            xs = work.get_future().wait()
        for turn, x in enumerate(xs):
            assert is_same(x, sum(numbers(r + turn) for r in range(size))), (turn, is_future)
        sim_torch.set_stream(0)
    sim_torch.set_jitter(JITTER)


def messages(group, rank, size):
    if size == 1:
        return
    there, back = (rank + 1) % size, (rank - 1) % size
    for count in (0, 5, COUNT):
        x, got = to_device(numbers(rank, count)), to_device(torch.zeros(count))
        works = [group.send([x], there, 7), group.recv([got], back, 7)]
        del x
        for work in works:
            work.wait()
        assert is_same(got, numbers(back, count))


def messages_between_host_and_device(group, rank, size):
    if size == 1:
        return
    for count in (6, 2 * COUNT):
        for is_on_device in (True, False):  # the sender's memory; the receiver's is the other kind
            x = numbers(3, count).reshape(2, count // 2)
            if rank == size - 1:
                group.send([to_device(x) if is_on_device else x], 0, 8).wait()
            elif rank == 0:
                got = torch.zeros(count // 2, 2)
                got = (got if is_on_device else to_device(got)).as_strided((2, count // 2), (1, 2))  # not contiguous
                group.recv([got], size - 1, 8).wait()
                assert is_same(got, x)


def host_and_device_in_one_group(group, rank, size):
    works = []
    for turn in range(4):
        x = numbers(rank + turn)
        works.append((turn, x if turn % 2 else to_device(x)))
        works[-1] += (summing(group, works[-1][1]),)
    for turn, x, work in works:
        work.wait()
        wanted = sum(numbers(r + turn) for r in range(size))
        assert torch.equal(x, wanted) if turn % 2 else is_same(x, wanted)
    refuses(
        group, "expected one device", lambda: group._allgather_base(torch.zeros(size * 3), to_device(torch.zeros(3)))
    )
    refuses(
        group,
        "a single tensor per rank",
        lambda: group.allreduce([to_device(torch.zeros(3)), to_device(torch.zeros(3))]),
    )
    refuses(group, "on meta, expected cpu or privateuseone", lambda: summing(group, torch.zeros(3, device="meta")))


def compressed(group, rank, size):
    """Device tensors beside host tensors: through codecs of the device where there are some, else of the host."""
    limit = datetime.timedelta(seconds=30)

    def bcast(tensors, references, codec):
        under_way = group.bcast_stream(
            tensors, references, size - 1, codec, 0, "", 0.0, False, 0, is_async=True, timeout=limit
        )
        return under_way.wait(None)

    x, few = to_device(numbers(rank)), numbers(rank, 3, torch.int64)
    report = bcast([x, few], [], "fpk")
    assert report["logical_bytes"] == 4 * COUNT + 24
    where = ("fpk", "device")
    if os.environ.get("ACCDP_TOPOLOGY") == "2x2" and rank != size - 1:
        # Of ranks that share a node the leader decodes, in the host, for all; on the root's node nobody has to.
        where = ("fpk", "host") if rank == 0 else ("none", "host")
    assert (report["codec"], report["codec_place"]) == where
    assert is_same(x, numbers(size - 1)) and torch.equal(few, numbers(size - 1, 3, torch.int64))
    new = to_device(numbers(size - 1) + 1) if rank == size - 1 else x  # receivers write over their reference
    bcast([new], [x], "auto")
    assert is_same(new, numbers(size - 1) + 1)
    refuses(group, "a reference is on cpu", lambda: bcast([x], [to_host(x)], "auto"))

    def allreduce(x, codec, bound, residual=None):
        under_way = group.allreduce_stream(
            x, [x.numel()], dist.ReduceOp.SUM, codec, 0, bound, False, residual, 0, is_async=True, timeout=limit
        )
        report = under_way.wait(None)
        return report["codec"], report["codec_place"]

    # Ranks of a node that reach each other's devices encode and add up there.
    is_encoded = "ACCDP_TOPOLOGY" in os.environ
    y = to_device(numbers(rank))
    report = allreduce(y, "fpk", 0.0)
    assert not is_encoded or report == ("fpk", "device")
    assert is_same(y, total(size))
    z, left = to_device(numbers(rank) + 0.3), to_device(torch.full((COUNT,), 9.0))
    report = allreduce(z, "qpk", 0.1, left)
    assert not is_encoded or report == ("qpk", "device")
    assert (to_host(z) - total(size) - 0.3 * size).abs().max() <= 0.1 + 1e-4
    assert to_host(left).abs().max() <= 0.1

    group.set_bcast("fpk", 0, 0.0)  # what dist.broadcast does
    options = c10d.BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    group.broadcast([y], options).wait()
    assert is_same(y, total(size))


def deterministic(group, rank, size):
    """The order of ranks, whatever the placement: the bits that host memory gives."""
    group.set_deterministic(True)
    values = torch.randn(COUNT, generator=torch.Generator().manual_seed(rank)) * 10.0 ** (rank % 4)
    x, on_host = to_device(values), values.clone()
    summing(group, x).wait()
    summing(group, on_host).wait()
    assert is_same(x, on_host)
    group.set_deterministic(False)


def float8(group, rank, size):
    """Summed in float32, as on the host; small integers, so that every sum fits."""
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        x = to_device((numbers(rank) % 3 - 1).to(dtype))
        summing(group, x).wait()
        assert torch.equal(to_host(x).float(), sum(numbers(r) % 3 - 1 for r in range(size)))


def errors_surface(group, rank, size):
    """Last: a failure breaks the group. It is told by the work, and by the next call, on every rank."""
    if size == 1:
        return
    await_all("whole", rank, size)  # a failure overtakes what others have yet to end
    x = to_device(numbers(rank))
    if rank == 1:
        for call in ("cudaMemcpyAsync", "cudaLaunchKernelExC"):  # what comes first depends on the way
            sim_torch.fail(call)
    work = summing(group, x)
    refuses(group, "cudaErrorLaunchFailure", work.wait)
    refuses(group, "cudaErrorLaunchFailure", lambda: summing(group, x).wait())
    refuses(group, "cudaErrorLaunchFailure", lambda: summing(group, x, False))


SCENES = [
    every_collective,
    every_reduction,
    tensors_that_are_not_contiguous,
    wait_holds_the_stream_back_and_not_the_host,
    *torch_memory.SCENES,
    side_streams,
    futures,
    coalesced,
    messages,
    messages_between_host_and_device,
    host_and_device_in_one_group,
    *torch_captures.SCENES,
    compressed,
    deterministic,
    float8,
    errors_surface,
]


def main() -> int:
    dist.init_process_group("accdp")
    sim_torch.set_jitter(JITTER)
    rank, size = dist.get_rank(), dist.get_world_size()
    group = c10d._get_default_group()._get_backend(torch.device("cpu"))
    for scene in SCENES:
        if scene is wait_holds_the_stream_back_and_not_the_host and "events" not in sys.argv[2]:
            continue  # elsewhere the host orders the work
        try:
            scene(group, rank, size)
        except BaseException:
            print(f"rank {rank} of {size}: {scene.__name__} failed\n{traceback.format_exc()}", file=sys.stderr)
            return 1
    assert group.device_path.startswith(sys.argv[2]), group.device_path
    # The last scene broke the group, so MPI is not finalised, and mpiexec kills the ranks that are left once one has
    # ended: all say that they passed, and nobody ends before all have.
    print(json.dumps({"passed": rank}))
    await_all("passed", rank, size)
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    sys.exit(status)
