"""Tensors that are given other memory while operations are under way, as ZeRO and FSDP do with parameters."""

import pytest
import torch
import torch.distributed as dist

N = 1 << 20  # elements: an allocation that goes back to the system when it is freed


def begin_first(rank: int, test: str) -> dist.Work:
    """Begin what keeps all that rank 0 begins next from its turn, until it calls let_go()."""
    if rank == 1:
        dist.distributed_c10d._get_default_store().wait([test])
    return dist.barrier(async_op=True)


def let_go(rank: int, test: str) -> None:
    if rank == 0:
        dist.distributed_c10d._get_default_store().set(test, "")


@pytest.mark.on_ranks(2)
def test_operations_go_on_with_the_memory_they_were_called_for(rank, size):
    first = begin_first(rank, "exchanged")
    full, shard = torch.zeros(size * N), torch.full((N,), rank + 1.0)
    gathered = dist.all_gather_into_tensor(full, shard, async_op=True)
    shard.data = torch.zeros(N)
    total = torch.ones(N)
    kept = total.detach()
    summed = dist.all_reduce(total, async_op=True)
    total.data = torch.empty(0)
    columns = torch.ones(3, N)
    of_columns = columns.detach()
    turned = columns.t()
    summed_too = dist.all_reduce(turned, async_op=True)
    turned.data = torch.zeros(N, 3)
    let_go(rank, "exchanged")
    for work in (first, gathered, summed, summed_too):
        work.wait()
    assert [full[0], full[-1]] == [1, 2] and (kept == size).all() and not shard.any()
    assert (of_columns == size).all() and not turned.any()


@pytest.mark.on_ranks(2)
def test_messages_go_on_with_the_memory_they_were_called_for(rank, size):
    x = torch.full((8 * N,), 3.0)
    other = 1 - rank
    work = dist.isend(x, other) if rank == 0 else dist.irecv(x, other)
    x.data = torch.empty(0)
    mine = [torch.full((8 * N,), 7.0) for _ in range(3)]  # may be where the other memory was
    dist.barrier()
    if rank == 0:
        got = torch.zeros(8 * N)
        dist.recv(got, other)
        work.wait()
        assert (got == 5).all()
    else:
        dist.send(torch.full((8 * N,), 5.0), other)
        work.wait()
    assert all((part == 7).all() for part in mine)


@pytest.mark.parametrize("again", [False, True], ids=["freed", "and taken again"])
@pytest.mark.on_ranks(2, fresh=True)
def test_memory_that_is_freed_before_its_turn_is_told(rank, size, again):
    first = begin_first(rank, "freed")
    x = torch.ones(N)
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        before = x.data_ptr()
        x.untyped_storage().resize_(0)
        if again:
            taken = []  # what was free again may be given once more, and then nothing can be told
            while not taken or x.data_ptr() == before:
                x.untyped_storage().resize_(0)
                taken.append(torch.empty(N))
                x.untyped_storage().resize_(8 * N)
    let_go(rank, "freed")
    first.wait()
    with pytest.raises(RuntimeError, match=f"memory has been freed, moved or shrunk .* expected that of {N} elements"):
        work.wait()
