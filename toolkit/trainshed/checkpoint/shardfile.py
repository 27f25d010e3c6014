"""One rank's tensors as one safetensors file, laid out so that memory and file hold the same bytes.

The header is padded to a page, so the whole file can be written from page-aligned memory. A tensor that is only a piece
of a larger one is named `key@row,column...` by its place in the whole; the header's `__metadata__` keeps key, place and
whole shape. Types that safetensors does not know are stored as bytes, their own type beside them.
Format: https://huggingface.co/docs/safetensors (8 bytes of header length, JSON header, data without gaps).
"""

from __future__ import annotations

import json
import math
import struct

import torch

from trainshed.base.record import Record

from .blocks import ALIGN, padded
from .manifest import Damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}


class Piece(Record):
    """A tensor, or the piece of one, as stored.

    key: its name in the state (`model/layer.weight`).
    dtype: torch's name of its type (`float32`).
    offsets, sizes: its place in the whole tensor; `whole` is that tensor's shape.
    """

    key: str
    dtype: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    whole: tuple[int, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The data type."""
        return getattr(torch, self.dtype)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return math.prod(self.sizes) * self.torch_dtype.itemsize

    @property
    def stored_name(self) -> str:
        """The name in the file."""
        return self.key if self.sizes == self.whole else f"{self.key}@{','.join(map(str, self.offsets))}"


def piece_of(key: str, tensor: torch.Tensor) -> Piece:
    """A whole tensor as a piece."""
    shape = tuple(tensor.shape)
    return Piece(key=key, dtype=str(tensor.dtype)[6:], offsets=(0,) * len(shape), sizes=shape, whole=shape)


class Layout:
    """The place of each piece in the file; `header` is the file's first bytes, `size` its length."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        # Larger element types first: every piece is then aligned to its own element size without gaps.
        self.pieces = sorted(pieces, key=lambda piece: (-piece.torch_dtype.itemsize, piece.stored_name))
        entries: dict[str, object] = {}
        places: dict[str, list[object]] = {}
        at = 0
        self.offsets: list[int] = []
        for piece in self.pieces:
            name, dtype = piece.stored_name, DTYPES.get(piece.torch_dtype)
            shape = list(piece.sizes) if dtype else [piece.nbytes]
            if dtype is None or piece.sizes != piece.whole:
                places[name] = [piece.key, piece.dtype, piece.offsets, piece.sizes, piece.whole]
            entries[name] = {"dtype": dtype or "U8", "shape": shape, "data_offsets": [at, at + piece.nbytes]}
            self.offsets.append(at)
            at += piece.nbytes
        metadata = {"format": "pt", **({"pieces": json.dumps(places)} if places else {})}
        text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
        start = padded(8 + len(text))
        self.header = struct.pack("<Q", start - 8) + text.ljust(start - 8)
        self.offsets = [start + offset for offset in self.offsets]
        self.size = start + at
        self.memory = padded(self.size)
        assert start % ALIGN == 0

    def views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """The pieces as tensors in `buffer`, which holds the file's bytes."""
        return [_view(buffer, piece, offset) for piece, offset in zip(self.pieces, self.offsets, strict=True)]


def _view(buffer: torch.Tensor, piece: Piece, offset: int) -> torch.Tensor:
    return buffer[offset : offset + piece.nbytes].view(piece.torch_dtype).view(piece.sizes)


def read_header(file: torch.Tensor, name: str) -> list[tuple[Piece, torch.Tensor]]:
    """The pieces in a file's bytes (one uint8 tensor) and their contents, without copying.

    Raises:
        Damaged: it is not a safetensors file.
    """
    try:
        (length,) = struct.unpack("<Q", bytes(file[:8].tolist()))
        header = json.loads(file[8 : 8 + length].numpy().tobytes())
        metadata = header.pop("__metadata__", {})
        places = json.loads(metadata.get("pieces", "{}"))
        names = {value: str(key)[6:] for key, value in DTYPES.items()}
        pieces = []
        for stored, entry in header.items():
            begin, _ = entry["data_offsets"]
            if stored in places:
                key, dtype, offsets, sizes, whole = places[stored]
                piece = Piece(key=key, dtype=dtype, offsets=tuple(offsets), sizes=tuple(sizes), whole=tuple(whole))
            else:
                shape = tuple(entry["shape"])
                piece = Piece(key=stored, dtype=names[entry["dtype"]], offsets=(0,) * len(shape), sizes=shape, whole=shape)
            pieces.append((piece, _view(file, piece, 8 + length + begin)))
        return pieces
    except (struct.error, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise Damaged(f"{name} is not a safetensors file") from error
