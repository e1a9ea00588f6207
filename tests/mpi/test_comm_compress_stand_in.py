"""bcast_compressed with a codec that only GPUs have, of memory of the host: another one stands in."""

import numpy as np
import pytest

from accdp_comm import Communicator, UsageError, bcast_compressed, nvcomp, settings

NO_ANS = nvcomp.missing_codecs().get("ans", "")


@pytest.mark.skipif(bool(NO_ANS), reason=NO_ANS)
@pytest.mark.parametrize("algorithm", ["chain", "p2p_compressed"])
def test_a_codec_of_gpus_has_a_stand_in(comm, topology, algorithm):
    """Of memory of the host `ans` makes what `fpk` would, and leaves what that does not take."""
    with (
        settings.override(topology=topology, bcast_algorithm=algorithm),
        Communicator(comm, timeout_s=60) as world,
    ):
        for dtype, codec in ((np.float32, "fpk"), (np.int64, "none")):
            for root in range(world.size):
                wanted = (np.arange(50_000) % 7 + root).astype(dtype)
                mine = wanted.copy() if world.rank == root else np.zeros_like(wanted)
                result = bcast_compressed(mine, root, group=world, codec="ans")
                assert np.array_equal(mine, wanted)
                assert result.codec in (codec, "none") and result.codec_place == "host"
                # Ranks that only get it from a mate say "none".
                assert world.allgather(np.array([result.codec == codec])).any()


@pytest.mark.skipif(bool(NO_ANS), reason=NO_ANS)
def test_a_codec_of_gpus_whose_stand_in_one_rank_lacks(comm, topology):
    """All are told before anything is sent, as of any other codec."""
    lacks = comm.size - 1
    with (
        settings.override(topology=topology, codecs_off="fpk" if comm.rank == lacks else ""),
        Communicator(comm, timeout_s=60) as world,
    ):
        if len(set(world.nodes)) == 1:
            pytest.skip("ranks of one node look for themselves")
        where = "here" if world.rank == lacks else rf"on rank {lacks} \(pid .*\)"
        with pytest.raises(
            UsageError, match=rf"codec=ans: fpk, which may stand in, does not work {where}: .*CODECS_OFF"
        ):
            bcast_compressed(np.ones(50_000, np.float32), group=world, codec="ans")
        world.barrier()  # the group goes on
