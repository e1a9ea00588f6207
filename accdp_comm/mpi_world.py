"""MPI's world: initialised once per process and only when it is needed, by the launcher or by our own PMI-1 service."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from . import _core, at_end, last_words, lines, pmi_relay, siblings, uncaught, unlaunched
from .at_end import attempt
from .cards import Card, have_seats
from .exchange import Exchange, MpiExchange, agree
from .launcher import LAUNCHER_VARIABLES, Launcher, find_launcher, is_srun_pmi2
from .settings import value_of

_FINALIZE_SECONDS = 5.0
# That ranks which have caught the failure of a group wait for others under mpiexec, which ends all when one leaves: the
# others may have to save what they have, or may be stuck for good.
_AFTER_FAILURE_SECONDS = 30.0
_REMARK_SECONDS = 10.0  # a wait for them that is longer is told of
_JOINING = "all ranks of MPI_COMM_WORLD to make their first group (Communicator or init_process_group)"
_COMES_SECONDS = 2.0  # what a rank has said before its end may be on its way
_LOOK_SECONDS = 0.5  # between looks at the other ranks of this host, while waiting for them


class Place(NamedTuple):
    """Of a process in MPI's world."""

    universe: str  # identity of that world
    rank: int
    size: int


class _World:
    """What this process knows of its MPI world."""

    def __init__(self) -> None:
        self.universe = ""
        self.pid = 0
        self.service: unlaunched.Service | None = None  # on the rank that started it
        self.group_pid = 0  # the process that has formed groups
        self.is_ours = False  # this module initialised MPI, and leaves it
        self.is_joining = False  # or has tried to in vain
        self.has_launcher = True
        self.patience_s = 0.0  # with other ranks, as the first group has it
        self.minds_deaths = True  # something ends all ranks when one dies or leaves without MPI_Finalize
        self.lock = threading.RLock()


_world = _World()


def load() -> ModuleType:
    """Import the MPI module.

    Raises:
        UsageError: No usable MPI library, or MPI belongs to the process this one was forked from.
    """
    # UCX takes SIGHUP for itself while its library is loaded, unless another signal is named; 0 is none.
    takes_one = f"{__package__}._mpi" not in sys.modules and "UCX_DEBUG_SIGNO" not in os.environ
    try:
        with _environment({"UCX_DEBUG_SIGNO": "0"} if takes_one else {}):
            from . import _mpi
    except ImportError as error:
        raise _core.UsageError(f"MPI is needed here but could not be loaded: {error}") from error
    if _world.pid and _world.pid != os.getpid():
        raise _core.UsageError(
            f"MPI was initialised in process {_world.pid} before this one (pid {os.getpid()}) was forked from it; "
            "fork first, or start processes with the spawn method"
        )
    return _mpi


def place() -> Place:
    """Return the place of this process in MPI's world; one of size 0 if it is not, or no more, in it."""
    # Finalised, MPI may not even be asked for ranks. Another thread may be about to enter its world.
    if _world.pid != os.getpid() or not _world.universe or not load().is_initialized():
        return Place("", -1, 0)
    return Place(_world.universe, load().world_rank(), load().world_size())


def enter_launched(timeout_s: float) -> tuple[int, int]:
    """Initialise MPI in the world the launcher made, unless it is; return rank and size. Collective over that world.

    Raises:
        UsageError: MPI does not understand this launcher and made a world of one in each rank.
    """
    with _world.lock:
        module = load()
        _initialise(module, timeout_s)
        if not _world.universe:
            launcher = find_launcher()
            _check_not_alone(module, launcher)
            mine = secrets.token_hex(8).encode() if module.world_rank() == 0 else b""
            _world.universe = module.Exchange().allgather(mine, timeout_s)[0].decode()
            _world.minds_deaths = launcher is None or launcher.minds_deaths
            _world.patience_s = timeout_s
            module.set_deaths_end_the_job(launcher is not None and launcher.minds_deaths)
            if not _world.minds_deaths:
                exchange = MpiExchange(module.world_rank(), module.world_size(), timeout_s)
                module.watch_lines(lines.open_between_hosts(exchange, bool(value_of("ACCDP_TOPOLOGY"))))
                exchange.close()
            _unlink_segments_of_mpich()
        return module.world_rank(), module.world_size()


def _check_not_alone(module: ModuleType, launcher: Launcher | None) -> None:
    """An MPI that finds none of what it knows in the launcher's variables starts alone and calls that a success."""
    if launcher is not None and launcher.size > 1 and module.world_size() == 1:
        raise _core.UsageError(
            f"{launcher.name} started {launcher.size} ranks, but MPI in process {os.getpid()} sees itself alone: "
            f"{_library(module)}, which accdp was built with, does not understand this launcher; use that MPI's "
            "mpiexec, srun --mpi=pmi2 (MPICH) or srun --mpi=pmix (Open MPI)"
        )


def _library(module: ModuleType) -> str:
    """Name and version of the MPI, of the long text it says about itself."""
    return " ".join(str(module.library()).splitlines()[0].split(",")[0].split())


def join(exchange: Exchange, cards: Sequence[Card], nodes: Sequence[int]) -> list[int]:
    """Make all ranks of a group members of one MPI world; return the rank there of each. Collective.

    Raises:
        UsageError: On all ranks: this MPI cannot be started without its launcher, or the ranks are in different worlds.
    """
    inside = [card.mpi_size > 0 for card in cards]
    if all(inside):
        ranks, universes = [card.mpi_rank for card in cards], [card.universe for card in cards]
    elif all(card.launched == exchange.size for card in cards) and have_seats(cards):
        # Not with the lock: threads that form groups of their own may take it in another order on another rank. Some
        # ranks may be inside already, for the group of such a thread.
        ranks = agree(exchange, lambda: enter_launched(exchange.timeout_s)[0])
        universes = agree(exchange, lambda: _world.universe)
    elif any(inside):
        raise _core.UsageError(
            f"rank {inside.index(False)} of {len(cards)} has not initialised MPI, but rank {inside.index(True)} "
            "has: a group that needs MPI must be made of ranks of one MPI world"
        )
    else:
        with _world.lock:
            token = _join_unlaunched(exchange, cards, nodes)
        ranks, universes = list(range(exchange.size)), [token] * exchange.size
    odd = next((rank for rank, universe in enumerate(universes) if universe != universes[0]), None)
    if odd is not None:
        raise _core.UsageError(
            f"rank {odd} of {len(cards)} is in another MPI world than rank 0: start all ranks by one mpiexec, "
            "or by none"
        )
    return ranks


def _join_unlaunched(exchange: Exchange, cards: Sequence[Card], nodes: Sequence[int]) -> str:
    """Form an MPI world of ranks that torchrun or the like started: rank 0 serves PMI-1 to all. Returns its id."""

    def offer() -> dict[str, Any]:
        if load().is_initialized():
            raise _core.UsageError(
                "this group needs MPI, but mpi4py has initialised MPI with other ranks than the group's: make the "
                "first group of all ranks of MPI.COMM_WORLD, or import mpi4py only after the group is made"
            )
        if load().abi() != "mpich":
            raise _core.UsageError(
                f"this group spans nodes, and {_library(load())} can start such a job only under its "
                "own mpirun: start the script by mpirun, or build accdp with MPICH"
            )
        if exchange.rank != 0:
            return {}
        _world.service = unlaunched.Service(nodes, len(set(hosts)) == 1, exchange.timeout_s)
        return _world.service.card

    hosts = [card.node for card in cards]
    try:
        service = agree(exchange, offer)[0]
        address, own = agree(exchange, lambda: unlaunched.reach(service, cards[0].host))[exchange.rank]
        fds = lines.open_lines(exchange, nodes, (address, own), hosts)
    except BaseException:
        if _world.service is not None:
            _world.service.give_up()
            _world.service = None
        raise
    # From here on MPI_Init waits for the others by itself; all of them were alive a moment ago.
    seat = {"PMI_PORT": f"{address}:{service['port']}", "PMI_ID": str(exchange.rank)}
    with _environment(dict.fromkeys(LAUNCHER_VARIABLES) | seat):  # another launcher's words would be in the way
        _initialise(load(), exchange.timeout_s, fds)
    _unlink_segments_of_mpich()  # all have left MPI_Init
    load().watch_lines(fds)
    _world.universe, _world.has_launcher, _world.minds_deaths = service["token"], False, False
    _world.patience_s = exchange.timeout_s
    return str(service["token"])


def make_wire(
    ranks: Sequence[int], identity: str, timeout_s: float, ended: Callable[[], Sequence[int]] = list
) -> object:
    """Make a wire among these ranks of MPI's world, which all call this; a rank that does not come ends the process.

    Args:
        ranks: There, in the group's order.
        identity: Equal on all of them, and on none of another group.
        timeout_s: How long this may take.
        ended: Which of the group's ranks on this node have ended. Those on other nodes their lines tell, if there are.
    """
    module, seen_at = load(), 0.0

    def gone() -> str:
        nonlocal seen_at
        gone_there = {ranks[rank] for rank in ended()} | {there for there in ranks if module.has_ended(there)}
        seen_at = (seen_at or time.monotonic()) if gone_there else 0.0
        return lines.in_words(sorted(gone_there)) if time.monotonic() >= seen_at + _COMES_SECONDS else ""

    with _ending_if_late("MPI_Comm_create_group", timeout_s, gone):
        return module.wire(ranks, identity)


@contextlib.contextmanager
def _ending_if_late(call: str, timeout_s: float, gone_of: Callable[[], str] = str) -> Iterator[None]:
    """Around a call that waits for other ranks within MPI, uninterruptible: end this process if one is missing.

    Args:
        gone_of: Says who is known to be gone; "" for nobody.
    """
    deadline = time.monotonic() + timeout_s
    returned = threading.Event()

    def watch() -> None:
        while not returned.wait(min(_LOOK_SECONDS, timeout_s)):
            gone = gone_of()
            if not gone and time.monotonic() < deadline:
                continue
            if returned.is_set():  # while one looked
                return
            late = f"did not finish within {timeout_s:g} s (a rank is missing)"
            why = f"cannot finish: {gone} without having come there" if gone else late
            sys.stderr.write(
                f"accdp: {call} in process {os.getpid()} {why}; MPI cannot be interrupted there, so this process ends\n"
            )
            sys.stderr.flush()
            attempt(_unlink_segments_of_mpich)  # no rank of this host will do it
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        returned.set()


def _initialise(module: ModuleType, timeout_s: float, fds: Sequence[int] = ()) -> None:
    if _world.pid:
        module.init()  # raises where somebody has finalised it
        return
    _world.is_ours = _world.is_ours or not module.is_initialized()
    uncaught.watch()
    others = siblings.Siblings() if find_launcher() else None
    deadline = time.monotonic() + timeout_s
    with _relay_to_srun(module):
        with _ending_if_late("MPI_Init", timeout_s, lambda: lines.gone(fds) or (others.gone() if others else "")):
            module.init()
        _join_all(module, others, deadline, timeout_s)
    _world.pid = os.getpid()


def _join_all(module: ModuleType, others: siblings.Siblings | None, deadline: float, timeout_s: float) -> None:
    """Wait until all ranks of MPI's world have come; those that mpi4py has brought into it need not come at all."""
    _world.is_joining = True
    siblings.say_joined()
    pause, look = 0.0001, time.monotonic() + _LOOK_SECONDS
    remark = time.monotonic() + _REMARK_SECONDS
    while not module.join():
        time.sleep(pause)
        pause = min(1.5 * pause, 0.01)
        now = time.monotonic()
        if now >= remark:
            remark = math.inf
            sys.stderr.write(f"accdp: process {os.getpid()} waits for {_JOINING}; it gives up after {timeout_s:g} s\n")
        gone = ""
        if others and now >= look:
            look = now + _LOOK_SECONDS
            gone = others.gone()
        if not gone and now < deadline:
            continue
        _unlink_segments_of_mpich()  # the launcher will end those that wait for this rank in MPI_Finalize
        if gone:
            raise _core.PeerDied(f"{gone} without having made a group; accdp needs {_JOINING}")
        raise _core.PeerTimeout(f"Timed out after {timeout_s:g} s (timeout) waiting for {_JOINING}")
    _world.is_joining = False


def _relay_to_srun(module: ModuleType) -> contextlib.AbstractContextManager[None]:
    if not is_srun_pmi2() or find_launcher() is None or module.is_initialized():
        return contextlib.nullcontext()
    return pmi_relay.relayed(int(os.environ["PMI_FD"]))


@contextlib.contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables, or hide those that are to be None, for MPI; put back after, so that no child inherits them."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def launched() -> int:
    """Return how many ranks MPI's world will have where something else than us decides it; 0 if nothing does."""
    if "mpi4py.MPI" in sys.modules:
        mpi4py = sys.modules["mpi4py.MPI"]
        if mpi4py.Is_initialized() and not mpi4py.Is_finalized():
            return int(mpi4py.COMM_WORLD.Get_size())
    try:
        launcher = find_launcher()
    except _core.UsageError:  # a child of a rank, in a group whose ranks somebody else has told it
        return 0
    return launcher.size if launcher else 0


def _unlink_segments_of_mpich() -> None:
    """Take the names of MPICH's shared memory out of /dev/shm. To be called once all ranks have left MPI_Init.

    MPICH removes them in MPI_Finalize, so ranks that are killed would leave them for good. All ranks have mapped them
    by now, and a mapping needs no name.
    """
    maps = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()  # of others, any bytes
    for path in {line.split(maxsplit=5)[-1] for line in maps if "/dev/shm/mpich_shm_" in line}:
        with contextlib.suppress(FileNotFoundError):  # another rank of this node was first
            os.unlink(path.removesuffix(" (deleted)"))


def note_group() -> None:
    """Note that this process has formed a group: where it ends by an error, others may wait for it in MPI."""
    _world.group_pid = os.getpid()


def _leave() -> None:
    error = uncaught.last() or next(iter(at_end.interrupts), None)
    _leave_mpi(error)
    if at_end.interrupts:  # Python would report it, and end with status 0
        attempt(last_words.let_be_read)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)


at_end.do_last(_leave)


def _leave_mpi(error: BaseException | None) -> None:
    if error is not None and (_world.group_pid == os.getpid() or _world.is_joining):
        _abort_mpi4py()
    if _world.is_joining and _world.is_ours and _world.has_launcher:
        _end_outside()
    if _world.pid != os.getpid():
        return
    if error is not None:
        # Waiting for the others in MPI_Finalize could keep them waiting for this rank. Without it the launcher sees
        # that the rank failed and ends the job.
        return
    # mpiexec takes leaving without MPI_Finalize for a crash and ends all ranks: there, others may take their time.
    # Where nobody does, a rank that has died would be waited for without end. Without lines who comes later would not
    # see that this one has gone, and MPI may crash in a message to it.
    alone = _world.patience_s if lines.are_missing() else _FINALIZE_SECONDS
    seconds = math.inf if _world.minds_deaths else alone
    # srun answers no rank that finalises after others have left: MPI_Finalize would not return there.
    leave_open = _world.has_launcher and not _world.minds_deaths
    pmi_fd = os.environ.get("PMI_FD", "-1")
    attempt(lambda: load().finalize(seconds, _AFTER_FAILURE_SECONDS, leave_open, int(pmi_fd)))


def _end_outside() -> None:
    """End this process, which is in MPI but has given up waiting for others there; they may wait for it to finalise.

    MPI_Finalize might not return, and a launcher may take status 0 for a rank that the others need not wait for.
    """
    sys.stderr.write(
        f"accdp: process {os.getpid()} gave up waiting for {_JOINING} and leaves MPI without MPI_Finalize\n"
    )
    attempt(last_words.let_be_read)
    attempt(_unlink_segments_of_mpich)
    os._exit(1)


def _abort_mpi4py() -> None:
    """End the job where mpi4py would wait for the other ranks in MPI_Finalize, and they for this one, without end.

    It does so where it initialised MPI, after everything that Python itself runs at exit.
    """
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is None or _world.is_ours or not mpi4py.Is_initialized() or mpi4py.Is_finalized():
        return
    if mpi4py.COMM_WORLD.Get_size() > 1:
        attempt(last_words.let_be_read)
        attempt(_unlink_segments_of_mpich)
        mpi4py.COMM_WORLD.Abort(1)
