"""Which rendezvous is taken, decided from the environment alone; and what `import torch` loads of us."""

import importlib
import os
import socket
import subprocess
import sys
from datetime import timedelta

import pytest

from accdp_comm import _core
from accdp_comm._core import UsageError
from accdp_comm.launcher import LAUNCHER_VARIABLES, Launcher, find_launcher, rank_variable, refuse_srun_without_mpi

pytest.importorskip("torch")

import torch.distributed as dist

from accdp_comm import mpi_world, rendezvous, steps, worlds

TORCHS = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    others = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "TORCHELASTIC_RUN_ID")
    for name in (*TORCHS, *LAUNCHER_VARIABLES, *others):
        monkeypatch.delenv(name, raising=False)


def taken(url: str = "env://") -> str:
    """Return which way env:// goes."""
    way = rendezvous.env_rendezvous(lambda *_, **__: iter(["torch"]), url)
    if not hasattr(way, "gi_code"):
        return next(way)
    way.close()
    return {"mpi_rendezvous": "mpi", "_world_of_one": "one"}[way.gi_code.co_name]


def test_torchs_own_way_wherever_it_works(monkeypatch):
    for name, value in TORCHS.items():
        monkeypatch.setenv(name, value)
    assert taken() == "torch"
    monkeypatch.setenv("PMI_RANK", "0")
    assert taken() == "torch"
    monkeypatch.delenv("RANK")
    assert taken("env://?rank=0&world_size=1") == "torch"
    assert taken("env://?rank=0&world_size=-1") == "torch"


def test_other_backends_do_without_a_broken_installation(monkeypatch, caplog):
    from accdp_comm import autoload

    module = importlib.import_module("torch.distributed.rendezvous")
    monkeypatch.setitem(module._rendezvous_handlers, "env", lambda url, **_: iter([url]))
    autoload._hook_rendezvous()
    monkeypatch.setitem(sys.modules, "accdp_comm.rendezvous", None)  # as where _core cannot be loaded
    assert next(module._rendezvous_handlers["env"]("env://")) == "env://"
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns this off" in caplog.text


@pytest.mark.parametrize("missing", TORCHS)
def test_torchs_own_error_where_something_is_missing_and_no_launcher_helps(monkeypatch, missing):
    for name, value in TORCHS.items():
        if name != missing:
            monkeypatch.setenv(name, value)
    assert taken() == "torch"


@pytest.mark.parametrize("sign", ["PMI_RANK", "PMI_PORT", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"])
def test_mpi_under_each_launcher(monkeypatch, sign):
    monkeypatch.setenv(sign, "1")
    assert taken() == "mpi"
    assert taken("env://?rank=1&world_size=2") == "mpi"
    monkeypatch.setenv("MASTER_ADDR", "somewhere")
    assert taken() == "mpi"
    monkeypatch.setenv("RANK", "0")
    assert taken() == "torch"


def test_world_of_one_only_where_nothing_says_otherwise(monkeypatch):
    assert taken() == "one"
    assert taken("env://?rank=0&world_size=1") == "one"
    assert taken("env://?rank=0&world_size=2") == "torch"
    monkeypatch.setenv("MASTER_ADDR", "somewhere")
    assert taken() == "torch"


def test_world_of_one_has_a_store():
    store, rank, size = next(rendezvous.env_rendezvous(lambda *_, **__: iter(()), "env://"))
    store.set("key", "value")
    assert (store.get("key"), rank, size) == (b"value", 0, 1)


def test_mpi_scheme_needs_a_launcher():
    with pytest.raises(UsageError, match="mpi:// needs an MPI launcher"):
        next(rendezvous.mpi_rendezvous("mpi://"))


def test_srun_without_mpi_is_not_taken_for_many_worlds_of_one(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    refuse_srun_without_mpi()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(UsageError, match="srun started 4 tasks without an MPI plug-in"):
        refuse_srun_without_mpi()
    monkeypatch.setenv("PMIX_RANK", "0")
    refuse_srun_without_mpi()
    assert find_launcher().size == 4


@pytest.fixture
def launchers():
    """A connection that another process has made, as launchers do: the rank's end and the launcher's."""
    code = "from socket import *; send_fds(socket(fileno=0), [b'1'], [end.detach() for end in socketpair()])"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        subprocess.run([sys.executable, "-c", code], stdin=theirs, check=True, timeout=60)
        ends = socket.recv_fds(ours, 1, 2)[1]
    with socket.socket(fileno=ends[0]) as rank, socket.socket(fileno=ends[1]) as launcher:
        yield rank, launcher


def test_srun_is_told_from_an_mpiexec_in_one_of_its_tasks(monkeypatch, launchers):
    for name, value in {"PMI_FD": str(launchers[0].fileno()), "PMI_RANK": "0", "PMI_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MPI_LOCALNRANKS", raising=False)
    assert find_launcher().minds_deaths
    monkeypatch.setenv("PMI_JOBID", "7.0")
    assert not find_launcher().minds_deaths
    monkeypatch.setenv("MPI_LOCALNRANKS", "4")
    assert find_launcher().minds_deaths


def test_a_launcher_that_mpi_does_not_understand_is_not_taken_for_worlds_of_one():
    class Mpi:
        def __init__(self, size):
            self.world_size = lambda: size

        def library(self):
            return "Open MPI v5.0.11, package: Open MPI user@host\n"

    said = r"srun started 2 ranks, but MPI in process \d+ sees itself alone: Open MPI v5.0.11, which"
    with pytest.raises(UsageError, match=said):
        mpi_world._check_not_alone(Mpi(1), Launcher("srun", 2))
    for size, launcher in ((2, Launcher("srun", 2)), (1, Launcher("srun", 1)), (1, Launcher("srun", 0)), (1, None)):
        mpi_world._check_not_alone(Mpi(size), launcher)


def test_what_a_shell_below_srun_starts_after_the_first_is_alone(monkeypatch, launchers):
    """srun has closed its end when the first finalised MPI."""
    for name, value in {"PMI_FD": str(launchers[0].fileno()), "PMI_RANK": "0", "PMI_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    assert find_launcher().size == 1
    launchers[1].close()
    assert find_launcher() is None


def test_mpirun_of_open_mpi_below_srun_is_the_launcher(monkeypatch, launchers):
    """It hands on what srun told the shell; whether with the connection or not."""
    outer = {"PMI_FD": str(launchers[0].fileno()), "PMI_RANK": "0", "PMI_SIZE": "1", "PMI_JOBID": "7.0"}
    for name, value in (outer | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MPI_LOCALNRANKS", raising=False)
    for connection in (outer["PMI_FD"], "999"):
        monkeypatch.setenv("PMI_FD", connection)
        found = find_launcher()
        assert (found.name, found.size, found.minds_deaths) == ("mpirun (Open MPI)", 4, True)
        assert rank_variable() == "OMPI_COMM_WORLD_RANK"
    monkeypatch.setenv("MPI_LOCALNRANKS", "2")  # as mpiexec of MPICH's kind tells its ranks
    monkeypatch.setenv("PMI_SIZE", "2")
    assert find_launcher().size == 4
    monkeypatch.setenv("PMI_FD", outer["PMI_FD"])
    assert (find_launcher().size, rank_variable()) == (2, "PMI_RANK")


def test_children_of_a_rank_are_not_ranks(monkeypatch, launchers):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "1")
    monkeypatch.setenv("PMI_FD", "999")
    assert find_launcher() is None
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(UsageError, match="PMI_FD=999 is not open in this process"):
        find_launcher()
    monkeypatch.setenv("RANK", "0")
    assert find_launcher() is None
    monkeypatch.setenv("PMI_FD", str(launchers[0].fileno()))
    assert find_launcher().size == 4
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert find_launcher() is None
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    monkeypatch.delenv("RANK")
    pair = socket.socketpair()  # as asyncio makes them
    with socket.create_server(("127.0.0.1", 0)) as server, pair[0], pair[1]:
        for own in (server, pair[0]):  # its own connection has the number now
            monkeypatch.setenv("PMI_FD", str(own.fileno()))
            with pytest.raises(UsageError, match="is not open in this process"):
                find_launcher()


def test_children_of_a_rank_have_the_world_that_torch_was_told(monkeypatch):
    """And values of the tuner as the rank has them, in workers of its data loader."""
    for name, value in {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "999", "ACCDP_TUNED_BATCH_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="PMI_FD=999 is not open in this process"):
        worlds.whole_job(5.0)
    assert steps.tuned("global_batch_size", 1) == 8
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert worlds.whole_job(5.0)[0].size == 1
    finally:
        dist.destroy_process_group()


def test_ranks_are_placed_as_asked_or_as_mpi_has_them():
    assert rendezvous.place_ranks([None] * 3, [None] * 3) == [0, 1, 2]
    assert rendezvous.place_ranks([2, 0, 1], [3, 3, 3]) == [2, 0, 1]
    with pytest.raises(UsageError, match="rank 1 of MPI asked for world_size=4, but MPI started 2 ranks"):
        rendezvous.place_ranks([None, None], [None, 4])
    with pytest.raises(UsageError, match="must be 0..2, each once; got 0, none, 2"):
        rendezvous.place_ranks([0, None, 2], [None] * 3)
    with pytest.raises(UsageError, match="each once; got 1, 1"):
        rendezvous.place_ranks([1, 1], [None] * 2)


def python(code: str, **variables: str) -> str:
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **variables}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def card_of(store, *addresses: str) -> dict:
    return {"addresses": list(addresses), "port": store.port, "token": "ours", "host": "first"}


@pytest.fixture
def store():
    it = dist.TCPStore("127.0.0.1", 0, 2, True, timedelta(seconds=30), wait_for_workers=False)
    it.set("accdp/token", "ours")
    return it


def test_a_slow_name_server_makes_a_slow_start(monkeypatch, store):
    """torch asks for the name of an address before it connects, within the time-out that it is given."""

    class AsksForNames(dist.TCPStore):
        def __init__(self, host, port, size, is_master, timeout, **options):
            if timeout < timedelta(seconds=20):
                raise dist.DistNetworkError(f"The client socket has timed out after {timeout} while trying to connect")
            super().__init__(host, port, size, is_master, timeout, **options)

    monkeypatch.setattr(dist, "TCPStore", AsksForNames)
    found = rendezvous._connect(card_of(store, "127.0.0.1"), 2, timedelta(seconds=1800))
    assert found.get("accdp/token") == b"ours" and found.timeout == timedelta(seconds=1800)
    with pytest.raises(_core.Error, match=r"no route .* \(127.0.0.1: The client socket has timed out after 0:00:05"):
        rendezvous._connect(card_of(store, "127.0.0.1"), 2, timedelta(seconds=5))


def test_addresses_that_lead_elsewhere(store):
    nobody, theirs = socket.create_server(("127.0.0.2", 0)), card_of(store, "127.0.0.1")
    port = nobody.getsockname()[1]
    nobody.close()
    with pytest.raises(_core.Error, match=f"on first, port {port} \\(127.0.0.2: .*refused.*\\): set MASTER_ADDR"):
        rendezvous._connect(card_of(store, "127.0.0.2") | {"port": port}, 2, timedelta(seconds=5))
    with pytest.raises(_core.Error, match="127.0.0.1: the store of another job"):
        rendezvous._connect(theirs | {"token": "another"}, 2, timedelta(seconds=5))


def test_registering_loads_nothing_of_ours_and_keeps_torchs_defaults():
    text = python(
        "import torch, torch.distributed as dist, sys, threading, accdp_comm.autoload as a\n"
        "before = dict(dist.Backend.default_device_backend_map), threading.active_count()\n"
        "a.register(); a.register()\n"
        "assert before == (dist.Backend.default_device_backend_map, threading.active_count())\n"
        "devices = ['cpu', 'cuda'] if torch.version.cuda else ['cpu']\n"
        "assert dist.Backend.backend_capability['accdp'] == devices\n"
        "print(sorted(name for name in sys.modules if name.startswith('accdp_comm')), 'mpi4py' in sys.modules)"
    )
    assert text == "['accdp_comm', 'accdp_comm._version', 'accdp_comm.at_end', 'accdp_comm.autoload'] False"


def test_registering_never_raises():
    text = python(
        "import torch.distributed as dist, accdp_comm.autoload as a\n"
        "dist.Backend.register_backend = None\n"
        "a.register(); print('alive')"
    )
    assert text == "alive"


def test_the_package_itself_is_light():
    code = "import accdp_comm, sys; print([m for m in ('torch', 'numpy', 'accdp_comm._core') if m in sys.modules])"
    assert python(code) == "[]"
