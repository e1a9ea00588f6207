"""One run: its ranks, its backends, and the rows that come out of it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..stream_call import LOSSLESS
from . import bandwidth, measure, options, record, torch_backends
from .backends import AccdpBackend, Backend, MpiBackend, mpi_type
from .data import Data
from .measure import Measured, Request
from .memory import DATATYPES, HostArrays, Memory, Tensors, dtype_of, free_bytes, gpu_id, use_gpu
from .operations import OPERATIONS, Operation, Refused
from .world import AccdpWorld, MpiWorld, World, agree, hosts_and_local_rank, load_mpi, need_core

_MANY_PER_GPU = "NCCL_MULTI_RANK_GPU_ENABLE"


@dataclass(frozen=True)
class Result:
    """One backend at one size: the measurement and its JSON row."""

    operation: Operation
    measured: Measured
    row: dict[str, Any]


class Session:
    """The ranks of this job and what they measure; open() makes one."""

    def __init__(self, args: argparse.Namespace, world: World):
        self.args, self.world, self.operation = args, world, OPERATIONS[args.operation]
        hosts, self.local_rank = hosts_and_local_rank(world)
        self._ranks_here = hosts.count(hosts[world.rank])
        nodes = list(world.comm.nodes) if isinstance(world, AccdpWorld) else [hosts.index(host) for host in hosts]
        if self.operation.is_pair and world.size != 2:
            raise Refused(f"osu_{self.operation.name} takes exactly 2 ranks, not {world.size}")
        if args.root is not None and args.root >= world.size:
            raise Refused(f"-k fixed:{args.root}: expected a rank from 0 to {world.size - 1}")
        self._where: dict[str, Any] = {"ranks": world.size, "nodes": len(set(nodes)), "gpus": None}
        self._place = "GPU" if args.device == "cuda" else "host"
        self._device = self._choose_gpu(hosts[world.rank]) if args.device == "cuda" else "cpu"
        self._memories: dict[str, Memory] = {}
        self._available = 0  # bytes that this rank may take, as sizes() finds

    def _choose_gpu(self, host: str) -> str:
        device, problem = "", None
        try:
            device = use_gpu(self.local_rank)
        except Refused as error:
            problem = str(error)
        agree(self.world, problem)
        gpus = self._where["gpus"] = len(set(self.world.allgather((host, gpu_id(device)))))
        if "nccl" in self.args.backends and gpus < self.world.size and _MANY_PER_GPU not in os.environ:
            problem = f"--backend nccl: {self.world.size} ranks on {gpus} GPUs: expected one rank per GPU, or "
            problem += f"{_MANY_PER_GPU}=1 where NCCL is new enough"
        agree(self.world, problem)
        return device

    def _memory(self, kind: str) -> Memory:
        if kind not in self._memories:
            self._memories[kind] = HostArrays() if kind == "arrays" else Tensors(self._device)
        return self._memories[kind]

    @contextmanager
    def backends(self, datatype: str) -> Iterator[list[Backend]]:
        """Make the backends; codecs of accdp beside the uncompressed peers."""
        args, made = self.args, list[Backend]()
        codecs = [*args.codec] or [None]
        bound = options.bound_argument(args.error_bound)
        host = self._memory("arrays" if args.device == "cpu" else "tensors")
        for name in args.backends:
            if name == "mpi":
                made.append(MpiBackend(self.world, host, datatype, self.operation.reduces, args.in_place))
            elif name == "accdp":
                assert isinstance(self.world, AccdpWorld)
                made += [AccdpBackend(self.world, host, codec, bound, args.in_place) for codec in codecs]
            else:
                takes = codecs if name == "accdp-torch" else [None]
                made += [
                    torch_backends.TorchBackend(
                        name, self._memory("tensors"), codec, bound, is_async=self.args.asynchronous
                    )
                    for codec in takes
                ]
        try:
            yield made
        finally:
            for backend in made:
                backend.close()

    def sizes(self, datatype: str, warn: Callable[[str], object]) -> list[int]:
        """Return the sizes that fit into the memory limit and into this machine.

        Raises:
            Refused: Not even the smallest does.
        """
        itemsize, limit = dtype_of(datatype).itemsize, self.args.limit_bytes
        wanted = options.sizes(self.args, self.operation, itemsize)
        kinds = {name in ("accdp", "mpi") and self.args.device == "cpu" for name in self.args.backends}

        def needed(size: int) -> int:
            return len(kinds) * measure.set_bytes(self.operation, size, self.world.size, itemsize)

        asked = self.args.size_list or []
        if not wanted and asked:
            raise Refused(
                f"--sizes: expected multiples of {itemsize} bytes, since -T is {datatype}, got {_list(asked)}"
            )
        if not wanted:
            low, high = self.args.sizes
            raise Refused(
                f"-m: no size from {low or 1} to {self.operation.max_bytes if high is None else high} holds {datatype}"
            )
        if odd := [size for size in asked if size not in wanted]:
            warn(f"--sizes: {_list(odd)} bytes hold no whole {datatype}s and are left out")
        fitting = [size for size in wanted if needed(size) <= limit]
        if not fitting:
            raise Refused(
                f"-M {limit}: {wanted[0]} bytes of {self.operation.name} take {needed(wanted[0])} bytes a rank"
            )
        sharing = self._ranks_here if self._device == "cpu" else -(-self.world.size // self._where["gpus"])
        available = self._available = min(self.world.allgather(free_bytes(self._device) // sharing))
        if needed(fitting[-1]) > available:
            raise Refused(
                f"too little memory: {fitting[-1]} bytes of {self.operation.name} take {needed(fitting[-1])} bytes a "
                f"rank, but {available} are free for each of {sharing} ranks of a {self._place}: expected a smaller -m"
            )
        if len(fitting) < len(wanted):
            warn(f"-M {limit}: sizes above {fitting[-1]} bytes are left out")
        return fitting

    def measure(self, datatype: str, sizes: list[int], tick: Callable[[], object]) -> Iterator[list[Result]]:
        """Measure size by size; yields one result per backend. Collective."""
        args, dtype = self.args, dtype_of(datatype)
        data = self._data(dtype)
        common = record.common(args) | self._where
        common |= {"device": args.device, "datatype": datatype, "itemsize": dtype.itemsize, "data": data.meaning}
        common["ranks_per_gpu"] = self.world.size / self._where["gpus"] if self._where["gpus"] else None
        with self.backends(datatype) as backends:
            for size in sizes:
                iterations, warm_up = options.counts(args, self.operation, size)
                request = Request(
                    operation=self.operation,
                    size=size,
                    iterations=iterations,
                    warm_up=warm_up,
                    root=args.root,
                    window=args.window,
                    limit_bytes=min(args.limit_bytes, self._available // 2),  # one set may take more
                    seconds=args.seconds,
                    least=args.at_least,
                    burst=args.burst,
                    is_async=args.asynchronous,
                    validation_warm_up=args.validation_warm_up if args.validate else None,
                    bound=args.error_bound or LOSSLESS,
                )
                found = measure.run_point(self.world, backends, data, request, tick)
                yield [self._result(backend, found[backend.name], request, common) for backend in backends]

    def _data(self, dtype: np.dtype[Any]) -> Data:
        """Make the data; a file that one rank cannot read is refused by all."""
        made, problem = None, None
        try:
            made = Data(self.args.data, dtype, reduces=self.operation.reduces, ranks=self.world.size)
        except Refused as error:
            problem = str(error)
        agree(self.world, problem)
        assert made is not None
        return made

    def _result(self, backend: Backend, found: Measured, request: Request, common: dict[str, Any]) -> Result:
        row = record.row(self.operation, backend.name, backend.is_in_place, found, request) | common
        if self.operation.kind == "collective":
            bus_n = self._where["gpus"] if self.args.busbw == "gpus" else self.world.size
            seconds = row["median_us"] / 1e6
            algbw, busbw = bandwidth.gbps(self.operation, request.size, self.world.size, seconds, bus_n)
            row |= {
                "algbw_gbps": algbw,
                "busbw_gbps": busbw,
                "bus_n": bus_n,
                "bus_n_counts": self.args.busbw or "ranks",
            }
        return Result(self.operation, found, row)


def _list(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes))


@contextmanager
def open_session(args: argparse.Namespace) -> Iterator[Session]:
    """Form the ranks' world and what the backends need of it; leave it at the end. Collective.

    Raises:
        Refused: On all ranks, before anything is measured: some rank lacks a backend, device, codec or library.
        RefusedAlone: On this rank: it cannot even tell the others.
    """
    with_torch = any(name in torch_backends.NAMES for name in args.backends)
    with ExitStack() as leaving:
        if args.backends == ["mpi"]:
            world: World = MpiWorld()
            problem = _missing(args)
        else:
            need_core()
            problem = _missing(args)
            world = AccdpWorld()
        leaving.callback(world.close)
        agree(world, problem or (_missing_output(args) if world.rank == 0 else None))
        if with_torch:
            torch_backends.start()
            leaving.callback(torch_backends.stop)
        yield Session(args, world)
        world.barrier()


def _missing(args: argparse.Namespace) -> str | None:
    """Return what this rank lacks for what is asked, or None."""
    try:
        for datatype in args.types:
            dtype_of(datatype)
        for name in args.backends:
            if name in torch_backends.NAMES and (problem := torch_backends.why_not(name, args.device)):
                return problem
        if "mpi" in args.backends:
            if args.device == "cuda" and not args.mpi_is_cuda_aware:
                return "--backend mpi: with -d cuda the MPI must take device memory: say --mpi-is-cuda-aware if it does"
            # Not initialised: accdp does that, since ranks with mpi4py and those without must leave MPI alike.
            mpi = load_mpi()
            for datatype in args.types:
                mpi_type(mpi, datatype, OPERATIONS[args.operation].reduces)
        return _missing_codec(args)
    except Refused as error:
        return str(error)


def _missing_codec(args: argparse.Namespace) -> str | None:
    """Return which codec this rank cannot encode and decode as asked, or None."""
    if not args.codec:
        return None
    from .. import _core, bcast, nvcomp

    whole = [datatype for datatype in args.types if DATATYPES[datatype].startswith("int")]
    if args.error_bound and whole:
        return f"--error-bound: expected floats, got -T {whole[0]}"
    try:
        for codec in args.codec:
            nvcomp.check_works(codec)
            bcast.check_codec(codec, args.error_bound or LOSSLESS)
    except _core.UsageError as error:
        return f"--codec: {error}"
    return None


def _missing_output(args: argparse.Namespace) -> str | None:
    """Return what the rank that writes lacks for it, or None: better now than after the measurement."""
    from .graph import pyplot  # which draws what is defined here

    try:
        if {"png", "pdf"} & set(args.graphs):
            pyplot()
        for path in filter(None, (args.json, args.csv)):
            open(path, "a", encoding="utf-8").close()
    except Refused as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None
