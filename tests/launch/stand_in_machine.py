"""A machine with two GPUs that do not exist, and an MPS for them: stand-ins of NVIDIA's programs, first in PATH."""

from __future__ import annotations

import fcntl
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
UUIDS = ("GPU-11111111-aaaa-bbbb-cccc-000000000001", "GPU-22222222-aaaa-bbbb-cccc-000000000002")
ROW = "{index}, {uuid}, Stand-in 80GB, 81920, 9.0, Disabled, 00000000:0{index}:00.0\n"


@dataclass(frozen=True)
class Machine:
    """What a test knows of the machine with stand-ins."""

    env: dict[str, str]
    runtime: Path
    folder: Path
    others: int  # a file that tests with a machine hold a lock on

    def without_others(self) -> None:
        """Wait until no other test has a machine, and let none have one until this test's end."""
        fcntl.flock(self.others, fcntl.LOCK_EX)

    def journal(self) -> list[str]:
        """What the daemons did, in order."""
        path = self.folder / "journal"
        return path.read_text().splitlines() if path.exists() else []

    def folders(self) -> list[str]:
        """The folders of daemons that are there."""
        return sorted(path.name for path in self.runtime.glob("accdp-mps-*/*") if path.is_dir())

    def edit_gpus(self, old: str, new: str) -> None:
        path = self.folder / "gpus.csv"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
