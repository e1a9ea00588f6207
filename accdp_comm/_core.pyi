"""Types of the extension module _core (csrc/bind)."""

from collections.abc import Sequence
from typing import Any

__version__: str

class Error(RuntimeError): ...
class UsageError(Error, ValueError): ...
class MismatchError(Error): ...
class PeerTimeout(Error, TimeoutError): ...
class PeerDied(Error, ConnectionError): ...
class CodecError(Error): ...
class MpiError(Error): ...
class CudaError(Error): ...
class SystemCallError(Error, OSError): ...

class Datatype:
    bool_: Datatype
    u8: Datatype
    i8: Datatype
    u16: Datatype
    i16: Datatype
    u32: Datatype
    i32: Datatype
    u64: Datatype
    i64: Datatype
    f16: Datatype
    bf16: Datatype
    f32: Datatype
    f64: Datatype
    c64: Datatype
    c128: Datatype
    bytes: Datatype
    __members__: dict[str, Datatype]
    @property
    def name(self) -> str: ...
    @property
    def itemsize(self) -> int: ...

class ReduceOp:
    sum: ReduceOp
    avg: ReduceOp
    prod: ReduceOp
    min: ReduceOp
    max: ReduceOp
    band: ReduceOp
    bor: ReduceOp
    bxor: ReduceOp
    __members__: dict[str, ReduceOp]
    @property
    def name(self) -> str: ...

_Block = tuple[int, int]  # address, count

class Collectives: ...

# These exist where cuda_report()["built"] is true.
class DevicePath:
    def __init__(self) -> None: ...
    def describe(self) -> str: ...

class DeviceCollectives(Collectives):
    def __init__(self, path: DevicePath, device: int, stream: int) -> None: ...

def device_of(ptr: int, name: str) -> int: ...
def send_from_device(
    group: Group, device: int, stream: int, ptr: int, count: int, dtype: Datatype, dst: int, tag: int
) -> None: ...
def recv_to_device(
    group: Group, device: int, stream: int, ptr: int, count: int, dtype: Datatype, src: int, tag: int
) -> int: ...

class Shape:
    def __init__(self, *, nodes: int, local_size: int, ranks: int, slot_bytes: int, flat_bytes: int) -> None: ...
    @property
    def nodes(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def flat_bytes(self) -> int: ...

class Machine:
    link_bytes_per_s: float
    latency_s: float
    message_s: float
    step_s: float
    node_bytes_per_s: float
    reduce_bytes_per_s: float
    def __init__(self) -> None: ...

def plan(op: str, nbytes: int, shape: Shape, machine: Machine) -> list[dict[str, Any]]: ...
def planned_ops() -> list[str]: ...

class Group:
    timeout_s: float
    deterministic: bool
    def __init__(
        self,
        *,
        name: str,
        rank: int,
        hosts: list[str],
        pids: list[int],
        start_times: list[int],
        nodes: list[int],
        segment_fd: int,
        timeout_s: float,
        wire: object | None = None,
        cores: list[float] = ...,
        lacks: list[dict[str, str]] = ...,
    ) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def sequence(self) -> int: ...
    @property
    def nodes(self) -> list[int]: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def last_run(self) -> dict[str, Any]: ...
    def plan(self, op: str, nbytes: int) -> list[dict[str, Any]]: ...
    def measure(self, timeout_s: float = -1) -> None: ...
    def barrier(self, timeout_s: float = -1) -> None: ...
    def bcast(
        self, ptr: int, count: int, dtype: Datatype, root: int, timeout_s: float = -1, via: Collectives | None = None
    ) -> None: ...
    def allreduce(
        self,
        src: int,
        dst: int,
        count: int,
        dtype: Datatype,
        op: ReduceOp,
        timeout_s: float = -1,
        via: Collectives | None = None,
    ) -> None: ...
    def reduce(
        self,
        src: int,
        dst: int,
        count: int,
        dtype: Datatype,
        op: ReduceOp,
        root: int,
        timeout_s: float = -1,
        via: Collectives | None = None,
    ) -> None: ...
    def allgather(
        self,
        src: int,
        count: int,
        dsts: Sequence[_Block],
        dtype: Datatype,
        timeout_s: float = -1,
        via: Collectives | None = None,
    ) -> None: ...
    def gather(
        self,
        src: int,
        count: int,
        dsts: Sequence[_Block],
        dtype: Datatype,
        root: int,
        timeout_s: float = -1,
        via: Collectives | None = None,
    ) -> None: ...
    def scatter(
        self,
        srcs: Sequence[_Block],
        dst: int,
        count: int,
        dtype: Datatype,
        root: int,
        timeout_s: float = -1,
        via: Collectives | None = None,
    ) -> None: ...
    def reduce_scatter(
        self,
        srcs: Sequence[_Block],
        dst: int,
        count: int,
        dtype: Datatype,
        op: ReduceOp,
        timeout_s: float = -1,
        via: Collectives | None = None,
    ) -> None: ...
    def alltoall(
        self,
        srcs: Sequence[_Block],
        dsts: Sequence[_Block],
        dtype: Datatype,
        timeout_s: float = -1,
        via: Collectives | None = None,
    ) -> None: ...
    def send(self, ptr: int, count: int, dtype: Datatype, dst: int, tag: int, timeout_s: float = -1) -> None: ...
    def recv(self, ptr: int, count: int, dtype: Datatype, src: int, tag: int, timeout_s: float = -1) -> int: ...
    def bcast_stream(
        self,
        tensors: Sequence[tuple[int, int, Datatype, int]],
        root: int,
        codec: str,
        chunk_bytes: int = 0,
        algorithm: str = "",
        error_bound: float = 0,
        relative: bool = False,
        root_takes_decoded: bool = False,
        label: int = 0,
        timeout_s: float = -1,
    ) -> dict[str, Any]: ...
    def allreduce_stream(
        self,
        ptr: int,
        counts: Sequence[int],
        dtype: Datatype,
        op: ReduceOp,
        codec: str,
        chunk_bytes: int = 0,
        error_bound: float = 0,
        relative: bool = False,
        residual: int = 0,
        timeout_s: float = -1,
    ) -> dict[str, Any]: ...
    def monitored_barrier(self, wait_all_ranks: bool = False, timeout_s: float = -1) -> None: ...
    def abort(self, reason: str) -> None: ...
    def close(self) -> None: ...
    def capsule(self) -> Any: ...

def cuda_report() -> dict[str, Any]: ...
def settings() -> list[dict[str, Any]]: ...
def set_setting(name: str, text: str) -> None: ...
def settings_text() -> str: ...
def stats() -> list[dict[str, Any]]: ...
def reset_stats() -> None: ...
def log_events_into(memory: Any) -> None: ...
def log_event(label: int, samples: float = 0.0) -> None: ...
def codecs() -> list[dict[str, Any]]: ...
def bcast_algorithms() -> list[tuple[str, str]]: ...
def reduce_algorithms() -> list[tuple[str, str]]: ...
def check_stream(codec: str, chunk_bytes: int = 0, algorithm: str = "") -> None: ...
def encode_chunk(codec: str, dtype: Datatype, raw: bytes, bound: float = 0) -> bytes: ...
def decode_chunk(codec: str, dtype: Datatype, stored: bytes, raw_bytes: int) -> bytes: ...
def standard_deviation(ptr: int, count: int, dtype: Datatype) -> float: ...
def crc32c(ptr: int, nbytes: int, seed: int = 0) -> int: ...
def set_nvcomp_directory(directory: str) -> None: ...
def segment_bytes(local_size: int) -> int: ...
def reduce_isa() -> str: ...
def process_lives(pid: int, start_time: int) -> bool: ...
