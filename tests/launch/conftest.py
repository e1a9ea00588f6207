"""The machine with stand-ins of NVIDIA's programs."""

import fcntl
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from stand_in_machine import HERE, ROW, UUIDS, Machine

# Where the tests run under nohup, what they start would ignore it as well.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def machine(tmp_path, tmp_path_factory, request) -> Machine:
    """A machine with two GPUs; a private runtime folder; nothing of MPS runs."""
    # Tests that run beside this one must not come to see what another user has there: Machine.without_others().
    others = os.open(tmp_path_factory.getbasetemp().parent / "machines", os.O_CREAT | os.O_RDWR)
    request.addfinalizer(lambda: os.close(others))
    fcntl.flock(others, fcntl.LOCK_SH)
    # Not below tmp_path: the paths of Unix sockets must be short.
    runtime = Path(tempfile.mkdtemp(prefix="accdp-"))
    request.addfinalizer(lambda: shutil.rmtree(runtime))
    folder = tmp_path / "gpus"
    folder.mkdir()
    (folder / "gpus.csv").write_text("".join(ROW.format(index=i, uuid=uuid) for i, uuid in enumerate(UUIDS)))
    env = {
        "PATH": f"{HERE / 'stand_ins'}{os.pathsep}{os.environ['PATH']}",
        "ACCDP_RUN_MPS_DIR": str(runtime),
        "STAND_IN_GPUS": str(folder),
        "STAND_IN_JOURNAL": str(folder / "journal"),
    }
    return Machine(env, runtime, folder, others)
