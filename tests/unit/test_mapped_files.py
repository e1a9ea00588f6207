"""Files that a process has mapped: their names are any bytes."""

import mmap
import os

from accdp_comm import mpi_world


def test_a_name_that_is_no_utf_8(tmp_path):
    name = os.fsencode(tmp_path) + b"/caf\xe9"
    with open(name, "w+b") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096):
            mpi_world._unlink_segments_of_mpich()
