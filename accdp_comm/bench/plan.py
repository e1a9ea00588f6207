"""Several benchmarks in one start of the ranks: mpiexec -n 2 python -m accdp_comm.bench.plan PLAN OUT.

PLAN is a JSON list of command lines of `accdp bench`, each a list of words. They are measured one after the other, and
nothing is printed: rank 0 appends the rows to OUT. bench/report.py and bench/compare.py start their jobs so, since
starting a job takes as long as measuring many points.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from . import options, record
from .command import saying_refusals
from .session import open_session

_PROG = "python -m accdp_comm.bench.plan"


def measure(plan: Sequence[Sequence[str]], out: str) -> int:
    """Measure all lines of a plan; return 0. Collective.

    Args:
        plan: Words behind `accdp bench`; of its outputs none but the rows is made.
        out: Rank 0 appends the rows to this file.
    Raises:
        Refused: A line cannot be measured here; the lines before it were.
    """
    for words in plan:
        args = options.parse(words, _PROG, None)
        with open_session(args) as session:
            sizes = {datatype: session.sizes(datatype, lambda text: None) for datatype in args.types}
            for datatype in args.types:
                for found in session.measure(datatype, sizes[datatype], lambda: None):
                    if session.world.rank == 0:
                        command = shlex.join(["accdp", "bench", *words])
                        record.append_json(out, [result.row | {"command": command} for result in found])
    return 0


def main(plan: str, out: str) -> int:
    """Measure the plan of a file; return the exit code. Collective."""
    return saying_refusals(_PROG, lambda: measure(json.loads(Path(plan).read_text(encoding="utf-8")), out))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
