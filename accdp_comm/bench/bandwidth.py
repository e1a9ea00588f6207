"""The columns of nccl-tests: time, algorithm bandwidth, bus bandwidth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .operations import Operation

_TYPES = {"mpi_char": "int8", "mpi_int": "int32", "mpi_float": "float", "mpi_double": "double"}  # others: alike
_NOT_MEASURED = f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>5}"


def gbps(operation: Operation, size: int, ranks: int, seconds: float, bus_ranks: int) -> tuple[float, float]:
    """Return algbw and busbw in GB/s (10^9).

    Args:
        operation: Not a barrier.
        size: OMB's size in bytes.
        ranks: In the job.
        seconds: Of one call, slowest rank.
        bus_ranks: What counts as n in the bus factor: ranks, or GPUs where several ranks share one.
    """
    algbw = operation.total_bytes(size, ranks) / seconds / 1e9
    return algbw, algbw * operation.bus_factor(bus_ranks)


def table(operation: Operation, rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table for the JSON rows of one backend.

    nccl-tests measures out of place and in place; a run of ours is one of them, and the other half says N/A.
    """
    rows = list(rows)
    yield f"# busbw: n = {rows[0]['bus_n']} counts {rows[0]['bus_n_counts']}"
    places = f"{'':11}out-of-place{'':23}in-place{'':10}"
    yield f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}{places}"
    half = f"  {'time':>7}  {'algbw':>6}  {'busbw':>6} {'#wrong':>6}"
    yield f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}{half}{half}"
    half = f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>5}"
    yield f"# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}{half}{half}"
    for row in rows:
        total = operation.total_bytes(row["bytes"], row["ranks"])
        count = operation.part_bytes(row["bytes"], row["ranks"]) // row["itemsize"]
        wrong = "N/A" if row["errors"] is None else str(row["errors"])
        redop = "sum" if operation.reduces else "none"
        root = row["root"] if operation.is_rooted else -1
        kind = _TYPES.get(row["datatype"], row["datatype"])
        words = (
            f"{total:12}  {count:12}  {kind:>8}  {redop:>6}  {root:>6}",
            f"  {_time(row['median_us']):>7}  {row['algbw_gbps']:6.2f}  {row['busbw_gbps']:6.2f}  {wrong:>5}",
        )
        yield "".join([words[0], _NOT_MEASURED, words[1]] if row["is_in_place"] else [*words, _NOT_MEASURED])
    errors = [row["errors"] for row in rows if row["errors"] is not None]
    yield f"# Out of bounds values : {sum(errors)} {'FAILED' if sum(errors) else 'OK'}" if errors else "# Not validated"
    yield f"# Avg bus bandwidth    : {sum(row['busbw_gbps'] for row in rows) / len(rows):g}"


def _time(us: float) -> str:
    return f"{us:.0f}" if us >= 10000 else f"{us:.1f}" if us >= 100 else f"{us:.2f}"
