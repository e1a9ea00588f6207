"""Sums of 8-bit floats over declared nodes."""

import pytest

from accdp_comm import Communicator, settings

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("algorithm", ["auto", "direct", "recursive_doubling", "ring", "pipeline"])
def test_small_integers_are_exact_wherever_they_are_rounded(comm, topology, algorithm):
    """Short messages and long ones, of which lanes carry parts."""
    with settings.override(topology=topology, allreduce=algorithm):
        made = Communicator(comm, timeout_s=60)
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            for count in (1, 999, 300_001):
                values = [(torch.arange(count) * 7 + other) % 3 - 1 for other in range(made.size)]
                x = values[made.rank].float().to(dtype)
                made.allreduce(x)
                assert torch.equal(x.float(), sum(values).float())
            if algorithm == "recursive_doubling" and topology == "2x1":
                # 448 + 448 is no float8: the sum over nodes travels as float32 and is rounded after the division.
                x = torch.tensor([256.0, 448.0]).to(dtype)
                made.allreduce(x, "avg")
                assert x.tolist() == [256.0, 448.0]
        made.close()
