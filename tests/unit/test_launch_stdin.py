"""How `accdp run` hands its standard input to rank 0; that it arrives is tested in tests/launch."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from accdp_comm.launch.guard_link import borrow
from accdp_comm.launch.standard_input import Lender, make_lender


def test_a_machine_may_allow_no_lender(monkeypatch):
    monkeypatch.setattr("accdp_comm.launch.standard_input.is_for_others", lambda: False)
    with mock.patch("socket.socket.bind", side_effect=PermissionError):
        assert make_lender() is None
    make_lender().close()


def test_nobody_else_gets_the_standard_input(tmp_path):
    """Users of other accounts may connect as well: they get nothing, and the lender goes on."""
    lender = Lender()
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(bytes.fromhex(lender.address))
        with mock.patch("os.getuid", return_value=os.getuid() + 1):
            lender.lend()
        assert socket.recv_fds(other, 1, 1)[:2] == (b"", [])
    with ThreadPoolExecutor(1) as pool:
        borrowed = pool.submit(borrow, lender.address)
        lender.lend()
        own = borrowed.result()
    assert os.path.samestat(os.fstat(own), os.fstat(0))
    os.close(own)
    lender.close()
