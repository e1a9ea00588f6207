"""Which program starts ranks, and its command line."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from accdp_comm import _core
from accdp_comm.launch import programs
from accdp_comm.launch.hosts import Host


def test_scripts_run_under_this_python(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    line = programs.rank_command([str(script), "--epochs", "2"])
    assert line == [sys.executable, "-u", str(script), "--epochs", "2"]


def test_modules_and_programs_run_too():
    assert programs.rank_command(["pkg.tool", "a"], module=True) == [sys.executable, "-u", "-m", "pkg.tool", "a"]
    assert programs.rank_command(["sh", "-c", "true"]) == ["sh", "-c", "true"]


def test_what_cannot_be_run_is_said(tmp_path):
    with pytest.raises(_core.UsageError, match="nowhere.py: no such file"):
        programs.rank_command([str(tmp_path / "nowhere.py")])
    with pytest.raises(_core.UsageError, match="no-such-program: neither a Python script"):
        programs.rank_command(["no-such-program"])


def test_open_mpi_is_told_that_ranks_share_cores():
    found = programs.mpiexec("mpirun", "openmpi", 4)
    assert found.command == ["mpirun", "-n", "4", "--oversubscribe", "--bind-to", "none", "-x", "ACCDP_RUN_CONTROL"]
    assert found.rank_variable == "OMPI_COMM_WORLD_RANK" and "PRTE_MCA_ras" in found.environment
    assert "--allow-run-as-root" in programs.mpiexec("mpirun", "openmpi", 4, is_root=True).command
    assert "--allow-run-as-root" not in programs.mpiexec("mpiexec", "mpich", 4, is_root=True).command


def test_hosts_are_named_with_their_ranks():
    hosts = [Host("a", 2), Host("b", 1)]
    *command, file = programs.mpiexec("m", "mpich", 3, hosts).command
    assert command == ["m", "-n", "3", "-machinefile"] and Path(file).read_text() == "a:2\nb:1\n"
    assert programs.mpiexec("m", "openmpi", 3, hosts).command[-2:] == ["--host", "a:2,b:1"]
    assert all(programs.mpiexec("m", family, 3, hosts).environment == {} for family in ("mpich", "openmpi"))
    assert programs.mpiexec("m", "mpich", 3, hosts).hands_on and not programs.mpiexec("m", "openmpi", 3, hosts).hands_on
    with pytest.raises(_core.UsageError, match="torchrun starts one node"):
        programs.find_program("torchrun", "mpich", 3, hosts)


def test_without_hosts_an_allocation_of_a_scheduler_is_none(tmp_path):
    """Ranks are started here, and not by programs of the scheduler, which a container may not have."""
    from accdp_comm import mpi_world

    family = mpi_world.load().abi()
    found = programs.mpiexec(programs.find_mpiexec(family), family, 2, is_root=os.geteuid() == 0)
    nodes = {f"SLURM_{name}": "elsewhere-1,elsewhere-2" for name in ("JOB_NODELIST", "NODELIST")}
    counts = {f"SLURM_{name}": "2" for name in ("JOB_ID", "JOBID", "JOB_NUM_NODES", "NNODES")}
    tasks = {"SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_CPUS_PER_NODE": "1(x2)"}
    environment = os.environ | nodes | counts | tasks | found.environment
    # Of MPICH's mpiexec one in 200 dies by SIGPIPE on a busy machine where the programs end at once.
    command = [*found.command, "sh", "-c", "hostname; sleep 0.2"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [socket.gethostname()] * 2, done.stderr


def test_torchrun_starts_programs_as_they_are(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = programs.find_program("torchrun", "mpich", 3, [])
    assert found.command[-3:] == ["--nproc-per-node=3", "--log-dir=/dev/null", "--no-python"]
    assert found.rank_variable == "RANK" and found.environment["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert "OMP_NUM_THREADS" not in programs.find_program("torchrun", "mpich", 3, []).environment


def test_srun_is_taken_inside_slurm(tmp_path, monkeypatch):
    srun = program(tmp_path / "bin", "srun", "slurm 22.05")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert programs.choose_launcher("auto", {}) == "mpiexec"
    assert programs.choose_launcher("auto", {"SLURM_JOB_ID": "7"}) == "srun"
    assert programs.choose_launcher("torchrun", {"SLURM_JOB_ID": "7"}) == "torchrun"
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    found = programs.find_program("srun", "mpich", 3, [Host("a", 2), Host("b", 1)])
    assert found.command[0] == srun and found.rank_variable == "SLURM_PROCID"
    assert {"--ntasks=3", "--mpi=pmi2", "--nodelist=a,a,b", "--nodes=2", "--distribution=arbitrary"} <= set(
        found.command
    )
    assert "--overlap" not in found.command and "--export=ALL" in found.command
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert {"--overlap", "--mpi=pmix"} <= set(programs.find_program("srun", "openmpi", 4, []).command)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert programs.choose_launcher("auto", {"SLURM_JOB_ID": "7"}) == "mpiexec"
    with pytest.raises(_core.UsageError, match="there is no srun in PATH"):
        programs.find_program("srun", "mpich", 4, [])


def test_the_hosts_of_an_allocation_are_those_that_scontrol_says(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert programs.allocated_hosts({}) == []
    scontrol = program(tmp_path / "bin", "scontrol", "a7\nb")
    assert programs.allocated_hosts({"SLURM_JOB_NODELIST": "a7,b"}) == [Host("a7", 0), Host("b", 0)]
    Path(scontrol).write_text("#!/bin/sh\necho no such cluster >&2\nexit 1\n")
    with pytest.raises(_core.UsageError, match=r"scontrol show hostnames a7,b: no such cluster; .* --hosts FILE"):
        programs.allocated_hosts({"SLURM_JOB_NODELIST": "a7,b"})
    Path(scontrol).unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(_core.UsageError, match=r"No such file.*; .* --hosts FILE"):
        programs.allocated_hosts({"SLURM_JOB_NODELIST": "a7,b"})


def program(folder, name: str, says: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\nprintf '%s\\n' '{says}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("says", "family"),
    [
        ("HYDRA build details:", "mpich"),
        ("Intel(R) MPI Library for Linux* OS", "mpich"),
        ("mpirun (Open MPI) 5.0.11", "openmpi"),
        ("srun 22.05", "other"),
    ],
)
def test_flavours_are_told_apart(tmp_path, says, family):
    assert programs.flavour(program(tmp_path / "bin", "mpiexec", says)) == family


def test_mpiexec_of_the_right_family_is_taken(tmp_path, monkeypatch):
    program(tmp_path / "a", "mpiexec", "mpirun (Open MPI) 5")
    right = program(tmp_path / "b", "mpiexec", "HYDRA build details:")
    python = tmp_path / "c" / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}{os.pathsep}/bin")
    assert programs.find_mpiexec("mpich") == right
    beside = program(tmp_path / "c", "mpiexec", "HYDRA build details:")
    assert programs.find_mpiexec("mpich") == beside
    monkeypatch.setenv("PATH", str(tmp_path / "a"))
    (tmp_path / "c" / "mpiexec").unlink()
    with pytest.raises(_core.UsageError, match="accdp was built with mpich, but .*/a/mpiexec belongs to another MPI"):
        programs.find_mpiexec("mpich")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(_core.UsageError, match="no mpiexec beside this Python or in PATH"):
        programs.find_mpiexec("mpich")


def test_an_mpi_of_no_known_family():
    """It may be built with, and its own launcher starts ranks."""
    with pytest.raises(_core.UsageError, match="neither a relative of MPICH nor Open MPI"):
        programs.find_program("mpiexec", "other", 2, [])
