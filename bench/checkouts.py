"""Measure another checkout and this one in turn, and say what became slower.

    git worktree add ../before HEAD~20 && make -C ../before build
    python bench/checkouts.py ../before

A job is one start of one operation: on one node; on two, as ACCDP_TOPOLOGY declares them, under mpiexec; and, with two
ranks, on two nodes under torchrun, where ranks watch for the death of others by themselves. The checkouts' jobs take
turns, and so does which of them begins. A point is slower where each round's median is above all of the other's, by 3 %
from median to median; then the exit status is 1. By chance one of 160 points comes out so in every second run of 5
rounds, in one of twenty runs of 7. Both run their own harness, so what that costs is in the times.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jobs_of_bench as jobs
from jobs_of_bench import ROOT, JobFailed

from accdp_comm import readers
from accdp_comm.bench.graph import size_name
from accdp_comm.bench.operations import OPERATIONS

OPS = ("allreduce", "bcast", "allgather", "reduce_scatter", "alltoall", "barrier", "latency", "bw")
SIZES = "4,1k,64k,1M,16M"
_NOT_THE_CALLERS = ("ACCDP_TOPOLOGY", "ACCDP_LAUNCHER")  # a layout says these
_LEAST = 1.03  # ratio of medians that is told
Point = tuple[str, str, int]  # of what layout, operation, bytes


@dataclass(frozen=True)
class Layout:
    """Where ranks are, and who starts them."""

    ranks: int
    nodes: int = 1
    by_torchrun: bool = False

    def __str__(self) -> str:
        where = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        return f"{self.ranks} ranks, {where}{', torchrun' if self.by_torchrun else ''}"

    def variables(self) -> dict[str, str]:
        """Return what declares the nodes."""
        return {"ACCDP_TOPOLOGY": f"{self.nodes}x{self.ranks // self.nodes}"} if self.nodes > 1 else {}


class Checkout:
    """A checkout that `make build` has built, and its environment.

    Raises:
        JobFailed: It has none.
    """

    def __init__(self, folder: Path):
        self.folder = folder.resolve()
        own = Path(sys.executable) if self.folder == ROOT else self.folder / ".venv" / "bin" / "python"
        self._python = str(own)
        if not own.exists():
            raise JobFailed(f"{own}: no such file; expected a checkout after `make build`")

    def interpreter(self) -> str:
        """Return the Python that its environment was made of: each call passes that, and builds of it differ."""
        program = "import os, sys; print(os.path.realpath(sys.executable))"
        return jobs.output_of([self._python, "-c", program], dict(os.environ), str(self.folder), self.folder).strip()

    def medians(self, layout: Layout, op: str, words: list[str]) -> dict[int, float]:
        """Measure one start, and return the median time of each size in us."""
        starter = ["-m", "accdp_comm", "bench", op, "-n", str(layout.ranks)]
        if layout.by_torchrun:
            script = f"bench/osu_{op}.py"
            starter = ["-m", "torch.distributed.run", "--nproc-per-node", str(layout.ranks), script]
        known = {name: value for name, value in os.environ.items() if name not in _NOT_THE_CALLERS}
        # The path: a script's own is its folder.
        env = known | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(self.folder)} | layout.variables()
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "rows.jsonl")
            command = [self._python, *starter, *words, "--json", str(out)]
            jobs.output_of(command, env, f"{op}, {layout}, in {self.folder}", self.folder)
            return {row["bytes"]: row["median_us"] for row in jobs.read(out)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("other", type=Path, metavar="DIR", help="the other checkout")
    add("-n", "--ranks", type=readers.numbers(2), default=[2, 4], help="2,4")
    add("--ops", type=readers.some_of(OPS), default=list(OPS), help=",".join(OPS))
    add("--sizes", type=jobs.checked_sizes, default=SIZES, help=SIZES)
    add("--rounds", type=readers.at_least(2), default=7, help="starts of each job (7)")
    seconds = readers.real("seconds > 0", lambda value: 0 < value < math.inf)
    add("--seconds", type=seconds, default=0.4, help="for each size and round (0.4)")
    args = parser.parse_args()
    args.ranks = list(dict.fromkeys(args.ranks))
    if all(OPERATIONS[op].is_pair for op in args.ops) and 2 not in args.ranks:
        parser.error(f"-n {','.join(map(str, args.ranks))}: expected 2 among them for {','.join(args.ops)}")
    return args


def layouts(ranks: list[int]) -> Iterator[Layout]:
    for count in ranks:
        yield Layout(count)
        if count % 2 == 0:
            yield Layout(count, nodes=2)
    if 2 in ranks:
        yield Layout(2, nodes=2, by_torchrun=True)


def measure(checkouts: list[Checkout], args: argparse.Namespace) -> dict[Point, list[list[float]]]:
    """Return the medians of each point's rounds, of each checkout."""
    found: dict[Point, list[list[float]]] = defaultdict(lambda: [[] for _ in checkouts])
    words = ["--seconds", str(args.seconds), "--at-least", "5", "-i", "2000"]
    for turn in range(args.rounds):
        print(f"checkouts.py: round {turn + 1} of {args.rounds}", file=sys.stderr, flush=True)
        for layout in layouts(args.ranks):
            for op in (op for op in args.ops if layout.ranks == 2 or not OPERATIONS[op].is_pair):
                sizes = [] if op == "barrier" else ["--sizes", args.sizes]
                for which in (0, 1) if turn % 2 == 0 else (1, 0):
                    for nbytes, us in checkouts[which].medians(layout, op, [*sizes, *words]).items():
                        found[str(layout), op, nbytes][which].append(us)
    return found


def verdict(before: list[float], now: list[float]) -> str:
    """Return slower, faster, or "" where rounds of the one are within those of the other, or differ by little."""
    ratio = statistics.median(now) / statistics.median(before)
    if min(now) > max(before) and ratio > _LEAST:
        return "slower"
    return "faster" if max(now) < min(before) and ratio < 1 / _LEAST else ""


def table(found: dict[Point, list[list[float]]]) -> list[str]:
    """Return a line for each point: medians and range of the rounds' medians, ratio, verdict."""
    lines = [f"{'':<28}{'op':<15}{'size':>8}{'other, us':>32}{'this, us':>32}{'ratio':>7}"]
    for (layout, op, nbytes), both in found.items():
        spans = [f"{statistics.median(us):.2f} ({min(us):.2f}-{max(us):.2f})" for us in both]
        ratio = statistics.median(both[1]) / statistics.median(both[0])
        line = f"{layout:<28}{op:<15}{size_name(nbytes):>8}{spans[0]:>32}{spans[1]:>32}{ratio:>7.2f}"
        lines.append(f"{line}  {verdict(*both)}".rstrip())
    return lines


def main() -> int:
    args = arguments()
    try:
        checkouts = [Checkout(args.other), Checkout(ROOT)]
        other, own = (checkout.interpreter() for checkout in checkouts)
        if other != own:
            raise JobFailed(f"{args.other}: expected an environment of {own}, got one of {other} (make PYTHON={own})")
        found = measure(checkouts, args)
        for (layout, op, nbytes), both in found.items():
            if not all(both):
                raise JobFailed(f"{op} of {size_name(nbytes)}, {layout}: expected rows of both checkouts")
    except (JobFailed, OSError) as error:
        print(getattr(error, "said", ""), f"checkouts.py: {error}", sep="", file=sys.stderr)
        return 2
    print("\n".join(table(found)))
    said = [verdict(*both) for both in found.values()]
    print(f"{len(said)} points: {said.count('slower')} slower, {said.count('faster')} faster")
    return 1 if "slower" in said else 0


if __name__ == "__main__":
    sys.exit(main())
