"""What nvCOMP has for GPUs beside what accdp calls: its batched functions for Cascaded and Zstandard, by themselves.

bench/gpu_codecs.py times them beside the codecs of accdp, to tell whether they would be worth a place among these.
"""

from __future__ import annotations

import ctypes
import struct

import torch

CHUNK = 256 << 10
AT_ONCE = 32  # chunks
WORD = ctypes.c_size_t
_UNSIGNED = {2: 3, 4: 5}  # bytes of an element -> nvcompType_t of an unsigned integer of that size


class Options(ctypes.Structure):
    """An options argument: they all have 64 bytes and go by value."""

    _fields_ = (("raw", ctypes.c_ubyte * 64),)


def cascaded(width: int) -> tuple[Options, Options]:
    """Return nvCOMP's default options of Cascaded for words of so many bytes, and those that read any stream of it."""
    asymmetric, bit_packing, all_encodings, level, any_type = 1, 1, 7, 3, 0xFF
    compression = struct.pack("<iiQQQB31x", _UNSIGNED[width], asymmetric, bit_packing, 0, all_encodings, level)
    return Options.from_buffer_copy(compression), Options.from_buffer_copy(struct.pack("<8xi52x", any_type))


def zstd(_: int) -> tuple[Options, Options]:
    """Return nvCOMP's default options of Zstandard, which have nothing."""
    return Options(), Options()


CODECS = {"cascaded": ("Cascaded", cascaded), "zstd_nvcomp": ("Zstd", zstd)}


class Batched:
    """The batched functions of one codec. Arrays, an element for each chunk, are in the chunks' memory."""

    def __init__(self, library: ctypes.CDLL, codec: str, width: int):
        self._library = library
        self.name, options = CODECS[codec]
        self._compression, self._decompression = options(width)

    def _call(self, step: str, *arguments: object) -> None:
        if status := getattr(self._library, f"nvcompBatched{self.name}{step}")(*arguments):
            raise RuntimeError(f"nvcompBatched{self.name}{step} failed with status {status}")

    def _size(self, step: str, *arguments: object) -> int:
        found = WORD()
        head, tail = arguments[:-2], arguments[-2:]
        self._call(step, *head, ctypes.byref(found), *tail)
        return found.value

    def room(self, chunk_bytes: int) -> int:
        """Return what an encoded chunk takes at most."""
        found = WORD()
        self._call("CompressGetMaxOutputChunkSize", WORD(chunk_bytes), self._compression, ctypes.byref(found))
        return found.value

    def workspace(self, chunks: int, chunk_bytes: int) -> int:
        """Return the bytes that a call needs for itself, either way."""
        every, none = WORD(chunks * chunk_bytes), ctypes.c_void_p()
        sides = (("Compress", self._compression), ("Decompress", self._decompression))
        return max(
            self._size(f"{side}GetTempSize", WORD(chunks), WORD(chunk_bytes), options, every, none)
            for side, options in sides
        )

    def compress(self, raw: Table, stored: Table, space: torch.Tensor, most: int, stream: int) -> None:
        """Hand it to the stream: `raw` to `stored`, whose sizes and statuses are written."""
        self._call(
            "CompressAsync",
            *(raw.places, raw.bytes, WORD(most), WORD(raw.count), *_memory(space)),
            *(stored.places, stored.bytes, self._compression, stored.statuses, ctypes.c_void_p(stream)),
        )

    def decompress(self, stored: Table, raw: Table, space: torch.Tensor, stream: int) -> None:
        """Hand the way back to the stream; sizes that were found come behind those that are expected in `raw`."""
        self._call(
            "DecompressAsync",
            *(stored.places, stored.bytes, raw.bytes, raw.found, WORD(raw.count), *_memory(space)),
            *(raw.places, self._decompression, raw.statuses, ctypes.c_void_p(stream)),
        )


def _memory(tensor: torch.Tensor) -> tuple[ctypes.c_void_p, WORD]:
    return ctypes.c_void_p(tensor.data_ptr()), WORD(tensor.numel())


class Table:
    """Where up to AT_ONCE chunks are, how long, and what became of them, in the memory of their device."""

    def __init__(self, places: list[int], sizes: list[int], device: torch.device):
        self.count = len(places)
        self.sizes = torch.tensor(sizes, dtype=torch.int64, device=device)
        self._places = torch.tensor(places, dtype=torch.int64, device=device)
        self._found = torch.zeros_like(self.sizes)
        self._statuses = torch.full((self.count,), -1, dtype=torch.int32, device=device)

    places = property(lambda self: ctypes.c_void_p(self._places.data_ptr()))
    bytes = property(lambda self: ctypes.c_void_p(self.sizes.data_ptr()))
    found = property(lambda self: ctypes.c_void_p(self._found.data_ptr()))
    statuses = property(lambda self: ctypes.c_void_p(self._statuses.data_ptr()))

    def is_good(self) -> bool:
        """Whether nothing went wrong with any chunk."""
        return not self._statuses.any().item()

    def came_back(self) -> bool:
        """Whether what was decoded has the size that was expected."""
        return self.is_good() and torch.equal(self._found, self.sizes)


class Trial:
    """One tensor through one of these codecs and back; as gpu_codecs.Pass."""

    def __init__(self, library: ctypes.CDLL, codec: str, tensor: torch.Tensor):
        self.raw, self.codec = tensor.view(torch.uint8), codec
        self.api = Batched(library, codec, tensor.element_size())
        device = self.raw.device
        self.stream = torch.cuda.current_stream().cuda_stream if device.type == "cuda" else 0
        begins = range(0, self.raw.numel(), CHUNK)
        sizes = [min(CHUNK, self.raw.numel() - begin) for begin in begins]
        room = (self.api.room(CHUNK) + 255) // 256 * 256
        self._stored = torch.empty(len(begins) * room, dtype=torch.uint8, device=device)
        self._back = torch.zeros_like(self.raw)
        self._space = torch.empty(self.api.workspace(AT_ONCE, CHUNK), dtype=torch.uint8, device=device)
        self._runs = []
        for first in range(0, len(begins), AT_ONCE):
            run = range(first, min(first + AT_ONCE, len(begins)))
            ins, outs, back = (
                [memory.data_ptr() + step * chunk for chunk in run]
                for memory, step in ((self.raw, CHUNK), (self._stored, room), (self._back, CHUNK))
            )
            lengths = [sizes[chunk] for chunk in run]
            zeros = [0] * len(run)
            self._runs.append([Table(at, n, device) for at, n in ((ins, lengths), (outs, zeros), (back, lengths))])

    def encode(self) -> None:
        """Hand the encoding of all chunks to the current stream."""
        for raw, stored, _ in self._runs:
            self.api.compress(raw, stored, self._space, CHUNK, self.stream)

    def decode(self) -> None:
        """The same for the way back."""
        for _, stored, back in self._runs:
            self.api.decompress(stored, back, self._space, self.stream)

    def check(self) -> int:
        """Decode what was encoded, compare, and return the bytes that would travel."""
        self.decode()
        assert all(stored.is_good() for _, stored, _ in self._runs), f"{self.codec}: nvCOMP could not encode"
        assert all(back.came_back() for _, _, back in self._runs), f"{self.codec}: nvCOMP could not decode"
        assert torch.equal(self._back, self.raw), f"{self.codec}: what came back is something else"
        return sum(int(torch.minimum(raw.sizes, stored.sizes).sum()) for raw, stored, _ in self._runs)
