"""What an operation would do and take: the choice of algorithm with its alternatives (csrc/coll/plan.hpp)."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _core, readers, settings
from .buffers import describe


@dataclass(frozen=True)
class Alternative:
    """One way to do an operation."""

    algorithm: str
    lanes: int  # ranks of each node that speak with other nodes; 1: its leader
    chunk_bytes: int  # between nodes: of one message; on one node: of one step
    steps: int  # hand-overs between the ranks of rank 0's node, which is the root's
    wire_bytes: int  # out of that node, without the signatures before
    seconds: float | None  # predicted; None: there is no model of it
    remark: str  # why it is not the one, where it is not only slower


@dataclass(frozen=True)
class Plan:
    """What a communicator would do for one operation, and what else it could."""

    op: str
    nbytes: int
    shape: _core.Shape
    machine: _core.Machine
    source: str  # of the machine's numbers: "measured", "usual" (constants), "given"
    chosen: Alternative
    others: tuple[Alternative, ...]

    @property
    def algorithm(self) -> str:
        """Name of the way that is chosen."""
        return self.chosen.algorithm

    @property
    def seconds(self) -> float | None:
        """Predicted time of the way that is chosen."""
        return self.chosen.seconds

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "op": self.op,
            "nbytes": self.nbytes,
            "ranks": self.shape.ranks,
            "nodes": self.shape.nodes,
            "machine": {name: getattr(self.machine, name) for name in MACHINE_FIELDS} | {"source": self.source},
            "chosen": vars(self.chosen),
            "others": [vars(other) for other in self.others],
        }

    def __str__(self) -> str:
        shape, machine = self.shape, self.machine
        place = "1 node" if shape.nodes == 1 else f"{shape.nodes} nodes"
        if shape.nodes > 1 and shape.local_size:
            place += f" of {shape.local_size}"
        if shape.meets_at_hub:
            place += ", which share cores and so meet at the first"
        lines = [
            f"{self.op} of {_size(self.nbytes)} by {shape.ranks} ranks on {place}; alpha and beta: {self.source}",
            f"node: {_time(machine.step_s)} a step, {machine.node_bytes_per_s / 1e9:.3g} GB/s copied, "
            f"{machine.reduce_bytes_per_s / 1e9:.3g} GB/s reduced",
        ]
        if shape.nodes > 1:
            lines.append(
                f"wire: {_time(machine.latency_s)} a message, {_time(machine.message_s)} each further one, "
                f"{machine.link_bytes_per_s / 1e9:.3g} GB/s"
            )
        lines += ["", f"  {'way':<20}{'lanes':>5}{'chunk':>11}{'steps':>8}{'wire':>11}{'predicted':>11}"]
        for mark, way in [("*", self.chosen), *((" ", other) for other in sorted(self.others, key=_by_time))]:
            cells = [str(way.lanes), "-", "-", "-", "-"]
            if way.seconds is not None:
                cells[1:] = _size(way.chunk_bytes), str(way.steps), _size(way.wire_bytes), _time(way.seconds)
            figures = "".join(f"{cell:>{width}}" for cell, width in zip(cells, (5, 11, 8, 11, 11), strict=True))
            lines.append(f"{mark} {way.algorithm:<20}{figures}  {way.remark}".rstrip())
        return "\n".join(lines)


_MOST_RANKS = (1 << 31) - 1  # what MPI can number
_MOST = (1 << 48) + 1  # bytes or elements of a planned message: far above any memory, far below what 64 bits hold
MACHINE_FIELDS = ("link_bytes_per_s", "latency_s", "message_s", "step_s", "node_bytes_per_s", "reduce_bytes_per_s")


def plan_of(
    op: str,
    nbytes: int,
    shape: _core.Shape,
    machine: _core.Machine,
    source: str,
    deterministic: bool | None = None,
) -> Plan:
    """Return the plan of an operation, settings that ask for an algorithm included.

    Args:
        op: One of ``_core.planned_ops()``.
        nbytes: Of the array that one rank hands in: for allgather and gather its block, for reduce_scatter and alltoall
            all blocks; for scatter of the block that a rank gets.
        shape: Where the ranks are.
        machine: What steps, copies and messages take.
        source: Where the machine's numbers come from.
        deterministic: Whether reductions are in the order of ranks; None: as the setting says.
    Raises:
        UsageError: There is no plan of that operation.
    """
    entries = _core.plan(op, nbytes, shape, machine, deterministic=deterministic)
    return _plan(op, nbytes, shape, machine, source, entries)


def plan_in(group: _core.Group, op: str, nbytes: int, datatype: _core.Datatype, source: str) -> Plan:
    """Return what a group would do, by the settings that it was formed with; as plan_of().

    Args:
        datatype: Of the elements. Partial sums of 16-bit floats travel as float32 in some ways of an allreduce.
    """
    if not isinstance(op, str):
        raise _core.UsageError(f"op: expected one of {', '.join(_core.planned_ops())}, got {op!r}")
    return _plan(op, nbytes, group.shape, group.machine, source, group.plan(op, nbytes, datatype))


def _plan(
    op: str, nbytes: int, shape: _core.Shape, machine: _core.Machine, source: str, entries: list[dict[str, Any]]
) -> Plan:
    chosen, *others = (Alternative(**entry) for entry in entries)
    return Plan(op, nbytes, shape, machine, source, chosen, tuple(others))


def message_of(x: Any, dtype: Any) -> tuple[int, _core.Datatype]:
    """Return bytes and datatype of an array, or of ``x`` elements of a datatype, or of ``x`` bytes."""
    try:
        if hasattr(x, "__dlpack__") and not isinstance(x, np.generic):  # an array of one integer is one as well
            raise TypeError
        count = operator.index(x)
    except TypeError:
        if isinstance(x, str):
            raise _core.UsageError(f"x: expected an array or a number from 0 to 2^48, got {x!r}") from None
        data = describe(x, "x", writable=False, device=True)
        if data.device is not None:
            raise _core.UsageError("x: expected host memory; there are no plans of device memory") from None
        return data.count * data.itemsize, data.datatype
    if not 0 <= count < _MOST:
        raise _core.UsageError(f"x: expected an array or a number from 0 to 2^48, got {count}")
    if dtype is None:
        return count, _core.Datatype.bytes
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # the last of a parenthesis that is not closed
        raise _core.UsageError(f"dtype: expected a NumPy datatype or its name, got {dtype!r}") from None
    if count * kind.itemsize >= _MOST:
        raise _core.UsageError(f"x: expected elements of at most 2^48 bytes, got {count} of {kind.itemsize} bytes")
    return count * kind.itemsize, describe(np.empty(0, kind), "dtype", writable=False).datatype


def declared_shape(text: str) -> _core.Shape:
    """Return the shape of ``NODESxRANKS``, such as 2x4, with the settings in force.

    Raises:
        UsageError: Not of that form, or more ranks than MPI has numbers for.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,6})x([1-9][0-9]{0,6})", text)
    if match is None:
        raise _core.UsageError(f"topology: expected NODESxRANKS, such as 2x4, got {text!r}")
    nodes, local = map(int, match.groups())
    if nodes * local > _MOST_RANKS:
        raise _core.UsageError(f"topology: expected at most {_MOST_RANKS} ranks, got {text}")
    sizes = {name: readers.bytes_of(settings.value_of(name)) for name in ("chunk_bytes", "flat_bytes")}
    return _core.Shape(
        nodes=nodes,
        local_size=local,
        slot_bytes=sizes["chunk_bytes"],
        flat_bytes=sizes["flat_bytes"],
    )


def _by_time(way: Alternative) -> float:
    return float("inf") if way.seconds is None else way.seconds


def _size(nbytes: int) -> str:
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} B"


def _time(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e9:.3g} ns"
