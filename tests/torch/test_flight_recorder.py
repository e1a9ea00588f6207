"""torch's flight recorder, which from 2.15 on records what any backend does."""

import json
import threading
import time

import pytest
import torch
import torch.distributed as dist

has_recorder = hasattr(dist.distributed_c10d, "_maybe_attach_flight_recorder")
pytestmark = pytest.mark.skipif(not has_recorder, reason="this torch's flight recorder records its own backends alone")


def recorded(group: str) -> list[tuple[str, bool]]:
    """Of all that was recorded of groups that are described so: which operation, and whether its call has returned."""
    trace = torch._C._distributed_c10d._dump_fr_trace_json(includeCollectives=True, onlyActive=False, backend="accdp")
    entries = [entry for entry in json.loads(trace)["entries"] if entry["process_group"][1] == group]
    return [(entry["profiling_name"].removeprefix("accdp:"), entry["retired"]) for entry in entries]


@pytest.mark.on_ranks(2, fresh=True)
def test_a_call_that_hangs_is_told_from_those_that_returned(rank, size):
    group = dist.new_group(group_desc="recorded")
    short, long = torch.ones(2), torch.ones(1 << 20)
    dist.all_reduce(short, group=group)
    dist.all_reduce(long, async_op=True, group=group).wait()
    dist.all_gather_into_tensor(torch.empty(4), short, group=group)
    dist.barrier(group=group)
    work = dist.isend(short, 1, group=group) if rank == 0 else dist.irecv(short, 0, group=group)
    work.wait()
    names = ["all_reduce", "all_reduce", "_all_gather_base", "barrier", ("send 0->1", "recv 1<-0")[rank]]
    assert recorded("recorded") == [(name, True) for name in names]

    last = threading.Thread(target=dist.broadcast, args=(short, 1), kwargs={"group": group})
    if rank == 0:
        last.start()
        while len(recorded("recorded")) == len(names):
            time.sleep(0.01)
        time.sleep(0.2)
        assert recorded("recorded")[-1] == ("broadcast", False)
    dist.barrier()
    if rank == 1:
        last.start()
    last.join()
    assert recorded("recorded")[-1] == ("broadcast", True)


@pytest.mark.on_ranks(2, fresh=True)
def test_what_failed_is_not_said_to_be_done(rank, size):
    group = dist.new_group(group_desc="failed")
    dist.all_reduce(torch.ones(2), group=group)
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(torch.ones(2 + rank), group=group)
    assert recorded("failed") == [("all_reduce", True), ("all_reduce", False)]
