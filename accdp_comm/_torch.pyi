"""Types of the extension module _torch (csrc/bind/torch_module.cpp)."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Backend, Work

torch_version: str

class StreamUnderWay:
    @property
    def work(self) -> Work: ...
    def wait(self, timeout: timedelta | None) -> dict[str, Any] | None: ...

def ProcessGroupAccdp(
    rank: int,
    size: int,
    group: Any,
    timeout: timedelta,
    name: str = "",
    global_ranks: Sequence[int] = (),
    device_path: Any = None,
    device_type: str = "cuda",
    store: Any = None,
    label: str = "",
    seat: tuple[int, int] = (0, 1),
) -> Any: ...
def notices(store: Any, key: str) -> Any: ...
def open_groups() -> list[Any]: ...
def set_makers(
    split: Callable[..., Backend], shrink: Callable[..., Backend], merge: Callable[..., Backend]
) -> None: ...
