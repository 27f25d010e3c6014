"""Which rank writes which tensor: each one once on each storage, spread evenly over the ranks that hold it.

Plain tensors count as held by every rank that has the name (data parallel). The pieces of sharded tensors come from
torch.distributed.checkpoint's planner, which knows every kind of DTensor.
"""

from __future__ import annotations

import torch

from .shardfile import Piece, piece_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from .ranks import Ranks


def own_pieces(tensors: Mapping[str, torch.Tensor]) -> list[Piece]:
    """The pieces that this rank holds and could write."""
    pieces = []
    sharded = {}
    for key, tensor in tensors.items():
        if hasattr(tensor, "device_mesh"):
            sharded[key] = tensor
        else:
            pieces.append(piece_of(key, tensor))
    if sharded:
        from torch.distributed.checkpoint.default_planner import create_default_local_save_plan

        for item in create_default_local_save_plan(sharded, True).items:
            data = item.tensor_data
            assert data is not None
            pieces.append(
                Piece(
                    key=item.index.fqn,
                    dtype=str(data.properties.dtype)[6:],
                    offsets=tuple(data.chunk.offsets),
                    sizes=tuple(data.chunk.sizes),
                    whole=tuple(data.size),
                )
            )
    return pieces


def tensor_of(piece: Piece, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The memory of one of this rank's pieces."""
    tensor: Any = tensors[piece.key]
    if not hasattr(tensor, "device_mesh"):
        return tensor
    local: torch.Tensor = tensor.to_local()
    if tuple(local.shape) == piece.sizes:
        return local
    # Several pieces lie in one local tensor (sharded over two meshes at once): the planner knows which is where.
    from torch.distributed.checkpoint import DefaultSavePlanner
    from torch.distributed.checkpoint.default_planner import create_default_local_save_plan

    planner = DefaultSavePlanner()
    planner.set_up_planner({piece.key: tensor}, is_coordinator=True)
    items = create_default_local_save_plan({piece.key: tensor}, True).items
    wanted = next(item for item in items if tuple(item.index.offset or ()) == piece.offsets)
    data = planner.resolve_data(wanted)
    assert isinstance(data, torch.Tensor)
    return data


def divide(holders: Sequence[Sequence[Piece]], ranks: Iterable[int]) -> dict[int, list[Piece]]:
    """Gives each piece to one of the `ranks` that hold it: the largest first, always to the one with least to write.

    Args:
        holders: for each rank of the job, the pieces that it could write.
    """
    who: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    what: dict[tuple[str, tuple[int, ...]], Piece] = {}
    shares: dict[int, list[Piece]] = {}
    for rank in ranks:
        shares[rank] = []
        for piece in holders[rank]:
            where = (piece.key, piece.offsets)
            who.setdefault(where, []).append(rank)
            what[where] = piece
    load = dict.fromkeys(shares, 0)
    for where in sorted(what, key=lambda where: (-what[where].nbytes, where)):
        rank = min(who[where], key=lambda rank: (load[rank], rank))
        shares[rank].append(what[where])
        load[rank] += what[where].nbytes
    return shares


def covers(pieces: Iterable[Piece]) -> bool:
    """Returns whether the pieces make up every tensor that any of them belongs to."""
    import math

    missing: dict[str, int] = {}
    for piece in {(piece.key, piece.offsets): piece for piece in pieces}.values():
        missing.setdefault(piece.key, math.prod(piece.whole))
        missing[piece.key] -= math.prod(piece.sizes)
    return not any(missing.values())


class Planner:
    """Keeps the division until the state changes its shape; then all ranks compute a new one together."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._pieces: list[Piece] | None = None
        self._known: dict[str, tuple[object, ...]] = {}
        self.share: list[Piece] = []
        self.complete = True
        self.bytes_on_storage = 0

    def update(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Computes the division for these tensors and returns whether it is a new one. Collective."""
        known: dict[str, tuple[object, ...]] = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()}
        changed = self._pieces is None or known != self._known
        if not self._ranks.highest([changed])[0]:
            return False
        self._known = known
        self._pieces = own_pieces(tensors)
        holders = self._ranks.gather(self._pieces)
        shares = divide(holders, self._ranks.peers)
        self.share = shares[self._ranks.rank]
        on_storage = [piece for rank in self._ranks.peers for piece in shares[rank]]
        everything = {(piece.key, piece.offsets) for pieces in holders for piece in pieces}
        self.complete = covers(on_storage) and len({p.key for p in on_storage}) == len({key for key, _ in everything})
        self.bytes_on_storage = sum(piece.nbytes for piece in on_storage)
        return True
