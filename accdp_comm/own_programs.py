"""Commands that start Python again for what is ours, not the user's.

``python -m`` and ``python -c`` look for modules in the caller's folder first: a user's ``json.py`` there would be
imported by our helpers, and end them. The words given here leave that folder out, as `accdp`'s own start does.
(``-P`` of Python 3.11 does the same; ``-I`` would leave out PYTHONPATH, too.)
"""

from __future__ import annotations

import sys
from pathlib import Path

# Where this package is at home: before what is installed, so that all of a job is of one version (python -m accdp_comm
# in a checkout), and behind Python's own modules.
_HOME = str(Path(__file__).absolute().parent.parent)
_AWAY = f"""import os, sys
sys.path[:] = [part for part in sys.path if part]
pythons = os.path.dirname(os.__file__)
first = sys.path.index(pythons) if pythons in sys.path else 0  # before it comes PYTHONPATH, of whatever names
installed = [place for place, part in enumerate(sys.path) if place > first and part.endswith("-packages")]
sys.path.insert(installed[0] if installed else len(sys.path), {_HOME!r})"""
_ACCDP = "from accdp_comm.cli import main; sys.exit(main())"


def python(program: str) -> list[str]:
    """Return the command of a process that executes ``program`` under this Python; it has ``sys`` imported."""
    return [sys.executable, "-u", "-c", f"{_AWAY}\n{program}"]


def accdp(*words: str) -> list[str]:
    """Return the command that is ``accdp WORD ...`` under this Python."""
    return [*python(_ACCDP), *words]
