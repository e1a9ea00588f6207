"""Communicator: the collectives for NumPy arrays, torch tensors and DLPack objects, without a torch process group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from . import _core, leaving, worlds
from .arguments import Arguments, check_switch, time_out
from .bootstrap import form_group
from .buffers import counts_of_others, new_like, tell
from .exchange import Exchange
from .messages import Messages, settle_at_exit
from .plan import Plan, message_of, plan_in
from .worker import Worker, await_last

T = TypeVar("T")


class Communicator(Messages):
    """A set of ranks that communicate.

    Args:
        comm: A communicator of mpi4py (4.0 or newer) to take the ranks from, whose ranks ``ACCDP_TOPOLOGY`` then
            counts, or None for the whole job: the ranks of the MPI launcher, else those of torch.distributed's world,
            else torchrun's, else this process alone.
        timeout_s: How long an operation waits for other ranks, in seconds; infinity: without end. The setting
            ``timeout_s``, where it is above 0, goes before it.
        deterministic: Reductions give the same bits for any number of nodes and ranks per node: contributions are added
            in the order of ranks. More bytes travel between nodes. None: the setting ``deterministic``.
    Raises:
        UsageError: Not such arguments; versions or settings differ between ranks; ranks cannot be connected here.
        PeerTimeout: Some ranks did not come.

    Every operation may raise a plain Error, too: another rank was interrupted, or has left by an exception.

    Collective over the ranks it is made of. Close it, or use it in a with-block. All methods but close, plan and those
    that move messages (send, recv, isend, irecv) are collective, and every rank calls them in the same order. An
    operation that fails for another reason than a wrong argument breaks the communicator: its later calls raise the
    first reason, and buffers it was to write are undefined. But a receive that times out before its message has come
    ends alone. What an operation costs, in steps and bytes: docs/algorithms.md; one call: plan().

    Each method first offers its arguments to the core as they are (``_core.Group.try_*``), which takes the usual arrays
    and refuses all others without a word; what follows there knows the others, and says what is wrong. Where
    asynchronous operations are under way it waits for them instead, so that collectives keep their order.

    Arrays and tensors are in host memory, or all on one CUDA device. There an operation begins after what the array's
    stream holds when it is called, and later work of that stream begins after the operation (docs/gpu.md).
    """

    def __init__(self, comm: Any = None, *, timeout_s: float = 1800.0, deterministic: bool | None = None):
        limit = time_out("timeout_s", timeout_s)
        check_switch("deterministic", deterministic)
        exchange, world = worlds.of_mpi4py(comm, limit) if comm is not None else worlds.whole_job(limit)
        self._start(exchange, "communicator", world)
        if deterministic is not None:
            self._core.deterministic = bool(deterministic)

    def _start(self, exchange: Exchange, name: str, world: tuple[int, int]) -> None:
        self._world, self._name, self._splits = world, name, 0
        try:
            self._core = form_group(exchange, name, world=world)
        finally:
            exchange.close()
        self._rank = self._core.rank
        self._exchange = exchange  # parts take their notices from it
        self._is_measured = False
        self._worker: Worker | None = None
        self._last: Future[Any] | None = None  # the last operation given to the worker
        self._args = Arguments(self._core.rank, self._core.size, device=True)
        settle_at_exit(self._core)
        leaving.keep_until_exit(self._core)

    @property
    def _group(self) -> _core.Group:
        """The group, once the asynchronous operations before have ended: collectives keep their order."""
        last = self._last
        if last is not None and not self._core.is_inherited:  # its thread was not forked along
            await_last(self._core, last)
            if self._last is last:
                self._last = None
        return self._core

    def _run(self, operation: Callable[[_core.Group], T], *, later: bool) -> Future[T]:
        """Run an operation now, or after those before it on a thread."""
        if later:
            group = self._core
            group.check_caller()  # what it waits for might never come
            if self._worker is None:
                self._worker = Worker("accdp-communicator")
                leaving.work_until_exit(self._worker)
            self._last = self._worker.submit(lambda: operation(group))
            return self._last
        done: Future[T] = Future()
        done.set_result(operation(self._group))
        return done

    @property
    def rank(self) -> int:
        """Rank of this process, 0..size-1."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._core.size

    @property
    def nodes(self) -> tuple[int, ...]:
        """Node of each rank, numbered from 0 in the order in which nodes first appear."""
        return tuple(self._core.nodes)

    @property
    def why_no_single_copy(self) -> str:
        """Why recv does not copy long messages of this node straight out of their senders' memory; empty if it does."""
        return self._core.why_no_single_copy if self.size > 1 else _core.why_no_single_copy()

    def bcast(self, x: Any, root: int = 0) -> Any:
        """Copy ``x`` of rank ``root`` into ``x`` of every rank.

        Args:
            x: Contiguous array or tensor, any shape and datatype; same count and datatype on all ranks.
                Read on root, written elsewhere.
            root: Rank that holds the data, equal on all ranks.
        Returns:
            ``x``.
        Raises:
            UsageError: Not such an array, or root out of range. Nothing was sent.
            MismatchError: Ranks disagree on count, datatype or root.
            PeerTimeout, PeerDied: A rank did not come, or is gone.
        """
        if self._last is None and self._core.try_bcast(x, root):
            return x
        root = self._args.rank_of("root", root)
        data = self._args.buffer("x", x, writable=self.rank != root)
        self._group.bcast(data.pointer, data.count, data.datatype, root, via=self._via(data))
        return x

    def allreduce(self, x: Any, op: str = "sum", out: Any = None) -> Any:
        """Combine ``x`` of all ranks element by element; every rank gets the result.

        Args:
            x: Contiguous array or tensor; bool, (u)int8..64, float8_e4m3fn, float8_e5m2, float16, bfloat16, float32,
                float64, complex64, complex128. Same count and datatype on all ranks.
            op: sum, avg (not of bool), prod, min, max (not of complex); band, bor, bxor of integers and bool; equal on
                all ranks.
            out: Takes the result: same count and datatype as ``x``. None: the result replaces ``x``.
        Returns:
            ``out``, or ``x`` where it is None.
        Raises:
            UsageError: Not such an array, unknown op, or an op the datatype does not have. Nothing was sent.
            MismatchError, PeerTimeout, PeerDied: As in bcast().
        """
        if self._last is None and self._core.try_allreduce(x, op, out):
            return x if out is None else out
        data, result = self._args.in_and_out(x, out)
        self._group.allreduce(
            data.pointer,
            result.pointer,
            data.count,
            data.datatype,
            self._args.op(op, data),
            via=self._via(data, result),
        )
        return x if out is None else out

    def reduce(self, x: Any, op: str = "sum", root: int = 0, out: Any = None) -> Any:
        """Combine ``x`` of all ranks element by element; rank ``root`` gets the result.

        Args:
            x, op: As in allreduce(); other ranks' ``x`` stays as it is.
            root: Rank that gets the result, equal on all ranks.
            out: Takes the result on root, ignored elsewhere. None: the result replaces ``x`` of root.
        Returns:
            The result on root, None elsewhere.
        Raises:
            As allreduce().
        """
        if self._last is None and self._core.try_reduce(x, op, root, out):
            return None if self._rank != root else x if out is None else out
        root = self._args.rank_of("root", root)
        if self.rank != root:
            data = self._args.buffer("x", x, writable=False)
            self._group.reduce(
                data.pointer, 0, data.count, data.datatype, self._args.op(op, data), root, via=self._via(data)
            )
            return None
        data, result = self._args.in_and_out(x, out)
        self._group.reduce(
            data.pointer,
            result.pointer,
            data.count,
            data.datatype,
            self._args.op(op, data),
            root,
            via=self._via(data, result),
        )
        return x if out is None else out

    def allgather(self, x: Any, out: Any = None) -> Any:
        """Collect ``x`` of every rank on every rank.

        Args:
            x: Contiguous array or tensor, any datatype, same on all ranks.
            out: size * count elements of ``x``'s datatype in rank order; or a list of one array per rank, whose counts
                may differ; or None for a new array of shape (size, *x.shape), where all ranks have the same shape.
        Returns:
            ``out`` or the new array.
        Raises:
            UsageError: Not such arrays, or counts that do not fit. Nothing was sent.
            MismatchError, PeerTimeout, PeerDied: As in bcast().
        """
        if self._last is None and self._core.try_allgather(x, out):
            return out
        data = self._args.buffer("x", x, writable=False)
        out = self._args.room(out, data)
        blocks, kept = self._args.blocks("out", out, data, writable=True)
        own = blocks[self.rank][1]
        if own != data.count:
            raise self._args.wrong(f"out[{self.rank}]", f"{data.count} elements, as many as x", own)
        self._group.allgather(data.pointer, data.count, blocks, data.datatype, via=self._via(data, kept))
        return out

    def gather(self, x: Any, root: int = 0, out: Any = None) -> Any:
        """Collect ``x`` of every rank on rank ``root``.

        Args:
            x: Contiguous array or tensor, any datatype; same count and datatype on all ranks.
            root: Rank that collects, equal on all ranks.
            out: As in allgather(), with equal counts; used on root only.
        Returns:
            ``out`` or a new array of shape (size, *x.shape) on root, None elsewhere.
        Raises:
            As allgather().
        """
        if self._last is None and self._core.try_gather(x, root, out):
            return out if self._rank == root else None
        root = self._args.rank_of("root", root)
        data = self._args.buffer("x", x, writable=False)
        if self.rank != root:
            self._group.gather(data.pointer, data.count, [], data.datatype, root, via=self._via(data))
            return None
        out = self._args.room(out, data)
        blocks, kept = self._args.blocks("out", out, data, writable=True)
        self._args.even("out", blocks, data)
        self._group.gather(data.pointer, data.count, blocks, data.datatype, root, via=self._via(data, kept))
        return out

    def scatter(self, x: Any, out: Any, root: int = 0) -> Any:
        """Give every rank its part of ``x`` of rank ``root``.

        Args:
            x: On root: size * count elements in rank order, or a list of one array per rank. Ignored elsewhere.
            out: Takes this rank's part; same count and datatype on all ranks.
            root: Rank that holds the data, equal on all ranks.
        Returns:
            ``out``.
        Raises:
            As allgather().
        """
        if self._last is None and self._core.try_scatter(x, out, root):
            return out
        root = self._args.rank_of("root", root)
        result = self._args.buffer("out", out, writable=True)
        blocks, kept = list[tuple[int, int]](), list[Any]()
        if self.rank == root:
            blocks, kept = self._args.blocks("x", x, result, writable=False)
            self._args.even("x", blocks, result)
        self._group.scatter(blocks, result.pointer, result.count, result.datatype, root, via=self._via(result, kept))
        return out

    def reduce_scatter(self, x: Any, op: str = "sum", out: Any = None) -> Any:
        """Combine ``x`` of all ranks element by element; every rank gets its part of the result.

        Args:
            x: Contiguous array or tensor whose first dimension is a multiple of size, or a list of one array per rank,
                whose counts may differ; datatypes as in allreduce().
            op: As in allreduce().
            out: Takes this rank's part. None: a new array.
        Returns:
            ``out`` or the new array.
        Raises:
            As allreduce().
        """
        if self._last is None and self._core.try_reduce_scatter(x, op, out):
            return out
        if isinstance(x, (list, tuple)):
            self._args.one_per_rank("x", x)
            mine = self._args.buffer(f"x[{self.rank}]", x[self.rank], writable=False)
            shape, part = mine.shape, mine.count
        else:
            mine = self._args.buffer("x", x, writable=False)
            shape, part = self._args.share("x", mine), mine.count // self.size
        result = self._args.buffer("out", new_like(mine, shape) if out is None else out, writable=True)
        self._args.same_kind("out", result, mine)
        if result.count != part:
            raise self._args.wrong("out", f"{part} elements, this rank's part of x", result.count)
        blocks, kept = self._args.blocks("x", x, result, writable=False)
        self._group.reduce_scatter(
            blocks, result.pointer, result.count, result.datatype, self._args.op(op, mine), via=self._via(result, kept)
        )
        return result.owner if out is None else out

    def alltoall(
        self,
        x: Any,
        out: Any = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
    ) -> Any:
        """Send part i of ``x`` to rank i, and collect the parts of all ranks in rank order.

        Args:
            x: Contiguous array or tensor, any datatype, same on all ranks.
            out: Takes the parts received. None: a new array.
            send_counts: Rows (first dimension) for each rank; None: the rows in equal parts.
            recv_counts: Rows from each rank. None, on all ranks or none, with send_counts: the ranks tell each other;
                without: equal parts.
        Returns:
            ``out`` or the new array.
        Raises:
            UsageError: Not such arrays, or counts that do not fit. Nothing was sent, except counts for which ranks have
                to tell each other: ``out`` is looked at after these.
            MismatchError: What a rank sends is not what the other expects.
            PeerTimeout, PeerDied: As in bcast().
        """
        if self._last is None and send_counts is None and recv_counts is None and self._core.try_alltoall(x, out):
            return out
        data = self._args.buffer("x", x, writable=False)
        sent = self._args.counts("send_counts", send_counts, data)
        if recv_counts is None:
            got = sent if send_counts is None else counts_of_others(self.alltoall, sent)
        else:
            got = self._args.numbers("recv_counts", recv_counts)
            self._args.own_rows(sent, got)
        shape = (sum(got), *data.shape[1:])
        result = self._args.buffer("out", new_like(data, shape) if out is None else out, writable=True)
        self._args.same_kind("out", result, data)
        width = data.count // data.shape[0] if data.shape[0] else result.count // max(sum(got), 1)
        if result.count != sum(got) * width:
            raise self._args.wrong("out", f"{sum(got) * width} {data.unit} ({sum(got)} rows)", result.count)
        starts = [sum(got[:rank]) * width for rank in range(self.size)]
        blocks = [result.block(start, count * width) for start, count in zip(starts, got, strict=True)]
        self._group.alltoall(data.rows(sent), blocks, data.datatype, via=self._via(data, result))
        return result.owner if out is None else out

    def barrier(self) -> None:
        """Wait until all ranks are here.

        Raises:
            MismatchError: Ranks disagree on the call.
            PeerTimeout, PeerDied: A rank did not come, or is gone.
        """
        self._group.barrier()

    def measure(self) -> _core.Machine:
        """Measure this communicator's alpha and beta, of node and wire; all ranks agree on the worst of each.

        From then on algorithms are chosen by them; before, by constants. Takes some milliseconds on a node,
        and over nodes 3.5 MiB on every link.

        Returns:
            link_bytes_per_s, latency_s (of a message), message_s (of a further one at the same time), step_s (a
            hand-over between ranks of a node), node_bytes_per_s (copied), reduce_bytes_per_s.
        Raises:
            MismatchError, PeerTimeout, PeerDied: As in bcast().
        """
        self._group.measure()
        self._is_measured = True
        return self._core.machine

    def plan(self, op: str, x: Any, dtype: Any = None) -> Plan:
        """Tell what an operation would do, and why. Sends nothing; the same on all ranks.

        Args:
            op: allreduce, reduce, bcast, allgather, reduce_scatter, alltoall, gather or scatter, of host memory; where
                there is a root, rank 0.
            x: What each rank would hand in, of a scatter what it would get: an array, a number of bytes, or of elements
                of ``dtype``.
            dtype: NumPy datatype of the elements that ``x`` counts.
        Returns:
            A Plan: ``chosen`` and ``others``, each with algorithm, lanes, chunk_bytes, steps, wire_bytes and predicted
            seconds; printed, a table. Times are predicted from what measure() found, else from constants. Of reductions
            of a ``deterministic`` communicator over several nodes the others are what it does without.
        Raises:
            UsageError: No such operation, or not such an ``x``.
        """
        with self._args.naming_rank():
            return plan_in(self._core, op, *message_of(x, dtype), "measured" if self._is_measured else "usual")

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Make one communicator of all ranks that give the same color.

        Args:
            color: Any integer; None to be in none of the new communicators.
            key: Orders the ranks of a color; equal keys keep their order.
        Returns:
            This rank's new communicator, or None.
        Raises:
            UsageError: Not such numbers. Nothing was sent.
            MismatchError, PeerTimeout, PeerDied: As in bcast().

        Collective over all ranks of this communicator, with color None too.
        """
        own = 0 if color is None else self._args.color("color", color)
        row = [color is not None, own, self._args.color("key", key)]
        table = tell(self.allgather, [row], "in split(), whose ranks first gather their colors")
        self._splits += 1
        if color is None:
            return None
        ranks = [rank for rank, row in enumerate(table) if row[:2] == [1, own]]
        members = sorted(ranks, key=lambda rank: (table[rank][2], rank))
        part = object.__new__(Communicator)
        exchange = worlds.PartExchange(self._group, members, self._splits, self._exchange)
        part._start(exchange, f"{self._name}.{self._splits}:{own}", self._world)
        part._core.deterministic = self._core.deterministic
        return part

    def close(self) -> None:
        """Leave. Other ranks that still wait for this one are told so; closing twice does nothing.

        Waits for sends that are still under way, and for receives that have found their message.

        Raises:
            UsageError: An irecv() that nobody has answered was still open. Its work raises this, too.
            PeerTimeout, PeerDied, MismatchError: A send could not be completed, and no call here has said so before.
        """
        try:
            self._group.settle()
        finally:
            self._core.close()
            if self._worker is not None:
                self._worker.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # sys.exit() of a script that is done is no failure.
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            return self.close()
        try:
            reason = f"rank {self.rank} of {self.size} left by {type(error).__name__}: {error}"
            self._core.abort(reason.encode(errors="backslashreplace").decode())
        finally:
            self.close()
