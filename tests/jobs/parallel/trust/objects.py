"""Values of odd types between modules: packed sequences, tuples with names, dictionaries, objects of the script's own."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import trainshed.parallel as pipe

from .table import begin, case, refused
from .training import check, squared

HALVES = {"first": 0, "last": 1}


def rows(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * number + replica)),)


class Packed(nn.Module):
    """A packed sequence between modules, made in the model's own forward or in a module."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.first, self.inside = nn.Linear(4, 4), inside
        self.pack = Packs(inside)
        self.middle, self.last = nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = self.pack(self.first(x), lengths)
        inner, _ = packed if self.inside else self.middle(packed)
        assert isinstance(inner, PackedSequence)
        padded, _ = pad_packed_sequence(inner, batch_first=True)
        return self.last(padded.sum(1))


class Packs(nn.Module):
    def __init__(self, runs: bool) -> None:
        super().__init__()
        self.line = nn.LSTM(4, 4, batch_first=True) if runs else None

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return packed if self.line is None else self.line(packed)


def sequences(number: int, _replica: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(4, 5, 4, generator=generator), torch.tensor([[5, 3, 2, 5], [1, 5, 5, 4]][number % 2])


@case(ranks=2)
def packed_sequences() -> None:
    check(lambda: Packed(True), sequences, partitions=2, pins={"first": 0, "pack": 1, "last": 1}, atomic=["pack"])
    pipe.shutdown()
    check(lambda: Packed(False), sequences, partitions=2, pins={"pack": 0, "middle": 0, "last": 1})
    pipe.shutdown()
    check(lambda: Packed(False), sequences, partitions=2, pins={"first": 0, "middle": 1})
    pipe.shutdown()
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(Packed(False))
    model.set_partition(model.module.pack, 0)
    model.set_partition(model.module.middle, 1)
    refused(lambda: pipe.step(squared)(model, *sequences(0, 0)), "not possible")


class State:
    """An object of the script's own, with more in it than tensors."""

    def __init__(self, h: torch.Tensor, skip: torch.Tensor, note: str) -> None:
        self.h, self.skip, self.note, self.passed = h, skip, note, 0

    def both(self) -> torch.Tensor:
        return self.h + self.skip


class Slotted:
    __slots__ = ("h", "never", "skip")

    def __init__(self, h: torch.Tensor, skip: torch.Tensor, _note: str) -> None:
        self.h, self.skip = h, skip

    def both(self) -> torch.Tensor:
        return self.h + self.skip


@dataclass(frozen=True)
class Frozen:
    h: torch.Tensor
    skip: torch.Tensor
    note: str

    def both(self) -> torch.Tensor:
        return self.h + self.skip


@dataclass(slots=True)
class Checked:
    """Its making counts, and refuses what is not a tensor."""

    h: torch.Tensor
    skip: torch.Tensor
    note: str

    def __post_init__(self) -> None:
        assert self.h.shape == self.skip.shape

    def both(self) -> torch.Tensor:
        return self.h + self.skip


class Named(NamedTuple):
    h: torch.Tensor
    skip: torch.Tensor
    note: str

    def both(self) -> torch.Tensor:
        return self.h + self.skip


class Strict(namedtuple("Strict", "h skip note")):
    """Made from other things than it holds."""

    def __new__(cls, h: torch.Tensor, skip: torch.Tensor, note: str) -> Strict:
        return super().__new__(cls, h * 1, skip, note.upper())

    def both(self) -> torch.Tensor:
        assert self.note == "NOTE"
        return self.h + self.skip


class Pair(tuple):
    def __new__(cls, h: torch.Tensor, skip: torch.Tensor, _note: str) -> Pair:
        return super().__new__(cls, (h, skip))

    def both(self) -> torch.Tensor:
        return self[0] + self[1]


class Listed(list):
    def __init__(self, h: torch.Tensor, skip: torch.Tensor, note: str) -> None:
        super().__init__([h, skip])
        self.note = note

    def both(self) -> torch.Tensor:
        assert self.note == "note"
        return self[0] + self[1]


class Mapped(OrderedDict):
    def __init__(self, h: torch.Tensor, skip: torch.Tensor, note: str) -> None:
        super().__init__(h=h, skip=skip)
        self.note = note

    def both(self) -> torch.Tensor:
        assert self.note == "note"
        return self["h"] + self["skip"]


class Users(UserDict):
    def __init__(self, h: torch.Tensor, skip: torch.Tensor, note: str) -> None:
        super().__init__({"h": h, "skip": skip, "note": note})

    def both(self) -> torch.Tensor:
        return self["h"] + self["skip"]


class Holds:
    """An object in an object."""

    def __init__(self, h: torch.Tensor, skip: torch.Tensor, note: str) -> None:
        self.inner, self.itself = {"state": [State(h, skip, note)]}, self

    def both(self) -> torch.Tensor:
        return self.inner["state"][0].both()


class Makes(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.line, self.kind = nn.Linear(4, 4), kind

    def forward(self, x: torch.Tensor) -> Any:
        return self.kind(self.line(x).tanh(), x * 2, "note")


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, state: Any) -> torch.Tensor:
        return self.line(state.both())


class Passes(nn.Module):
    """One makes the object, another takes it: as it is, or what the glue reads of it."""

    def __init__(self, kind: Any, opens: bool) -> None:
        super().__init__()
        self.first, self.between, self.last, self.opens = Makes(kind), nn.Linear(4, 4), Takes(), opens

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.first(x)
        if self.opens:
            return self.last.line(self.between(state.both()))
        return self.last(state) + self.between(x)


def passes(kind: Any) -> None:
    for opens in (False, True):
        check(lambda opens=opens: Passes(kind, opens), rows, partitions=2, atomic=["first"], pins={"first": 0, "between": 1})
        pipe.shutdown()


case(ranks=2, name="state_between_blocks")(lambda: passes(State))
case(ranks=2, name="slotted_between_blocks")(lambda: passes(Slotted))
case(ranks=2, name="frozen_between_blocks")(lambda: passes(Frozen))
case(ranks=2, name="checked_between_blocks")(lambda: passes(Checked))
case(ranks=2, name="named_between_blocks")(lambda: passes(Named))
case(ranks=2, name="strict_between_blocks")(lambda: passes(Strict))
case(ranks=2, name="pair_between_blocks")(lambda: passes(Pair))
case(ranks=2, name="listed_between_blocks")(lambda: passes(Listed))
case(ranks=2, name="mapped_between_blocks")(lambda: passes(Mapped))
case(ranks=2, name="users_between_blocks")(lambda: passes(Users))
case(ranks=2, name="holds_between_blocks")(lambda: passes(Holds))


class Changes(nn.Module):
    """Changes what it is given, and returns nothing."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.line, self.how = nn.Linear(4, 4), how

    def forward(self, state: Any) -> None:
        if self.how == "object":
            state.h, state.passed = state.h + self.line(state.h).tanh(), state.passed + 1
            state.fresh = state.h.detach() * 2
        elif self.how == "dictionary":
            state["h"] = state["h"] + self.line(state["h"]).tanh()
            state[f"seen {len(state)}"] = state["h"] * 0.1
            state.pop("passing", None)
        elif self.how == "list":
            state.append(state[-1] + self.line(state[-1]).tanh())
        else:
            state["inner"].h = state["inner"].h + self.line(state["inner"].h).tanh()


class ChangedInPlace(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Changes(how) for _ in range(4))
        self.last, self.how = nn.Linear(4, 4), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state: Any
        if self.how == "object":
            state = State(x, x, "note")
            for block in self.blocks:
                block(state)
            assert state.passed == 4
            return self.last(state.both() + state.fresh)
        if self.how == "dictionary":
            state = {"h": x, "passing": x}
            for block in self.blocks:
                block(state)
            assert "passing" not in state
            return self.last(sum(state.values()))
        if self.how == "list":
            state = [x]
            for block in self.blocks:
                block(state)
            assert len(state) == 5
            return self.last(torch.stack(state).sum(0))
        state = {"inner": State(x, x, "note")}
        for block in self.blocks:
            block(state)
        return self.last(state["inner"].both())


def changed(how: str, **settings: Any) -> None:
    whole = [f"blocks.{number}" for number in range(4)]
    check(lambda: ChangedInPlace(how), rows, partitions=2, atomic=whole, pins={"blocks.1": 0, "blocks.2": 1}, **settings)


@case(ranks=2)
def blocks_change_an_object() -> None:
    changed("object")


@case(ranks=2)
def blocks_change_a_dictionary() -> None:
    changed("dictionary")


@case(ranks=2)
def blocks_change_a_list() -> None:
    changed("list", pipeline="interleavedzerobubble")


@case(ranks=2)
def blocks_change_an_object_inside_a_dictionary() -> None:
    changed("nested", virtual_stages=1)


class ReturnsWhatItChanged(nn.Module):
    """The usual spelling: `state = block(state)`."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Changes("object") for _ in range(4))
        for block in self.blocks:
            block.register_forward_hook(lambda _module, args, _output: args[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = state = State(x, x, "note")
        for block in self.blocks:
            state = block(state)
        assert state is first
        return state.both() + state.fresh


@case(ranks=2)
def blocks_return_the_object_that_they_changed() -> None:
    whole = [f"blocks.{number}" for number in range(4)]
    check(ReturnsWhatItChanged, rows, partitions=2, atomic=whole, pins={"blocks.1": 0, "blocks.2": 1})


@case(ranks=2)
def transformers_output_with_a_cache() -> None:
    """What one stage keeps for itself cannot be read from the result of a step, by no rank."""
    from .sideways import LAYERS, tiny_llama, tokens

    begin(partitions=2, microbatches=2, atomic=LAYERS)
    torch.manual_seed(3)
    model = pipe.PipelineModel(tiny_llama())
    x = tokens(0, 0)[0]

    @pipe.step
    def evaluate(model: Any, x: torch.Tensor) -> Any:
        return model(input_ids=x, use_cache=True)

    with torch.no_grad():
        out = evaluate(model.eval(), x)
    assert out.logits.concat().shape == (4, 6, 17)
    refused(lambda: out.past_key_values[0].get_seq_length(), "cannot")
