"""Finds the newest checkpoint that verifies on all ranks, and loads it."""

from __future__ import annotations

import time

from trainshed.base.record import Record

from . import folder as folders
from .fill import fill, fill_local
from .folder import Found
from .load import Contents
from .manifest import Damaged
from .policy import History
from .state import ModelState, StateError, same_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .memory_copies import MemoryCopies
    from .ranks import Ranks


class Resumed(Record):
    """The point at which the run continues: `step`, 0 for the start; `notes` for the user; `problem`, if it cannot."""

    step: int
    history: History
    notes: tuple[str, ...]
    problem: str = ""


def resume(folder: str, ranks: Ranks, states: Sequence[Any], above: int = -1) -> Resumed:
    """Loads the newest whole checkpoint after step `above` into the states. Collective: all ranks choose the same one."""
    began = time.monotonic()
    whole, skipped = folders.scan(folder)
    notes = [entry.line() for entry in skipped]
    by_save = {(checkpoint.step, checkpoint.parts[0].save): checkpoint for checkpoint in whole}
    everywhere = set.intersection(*(set(saves) for saves in ranks.gather(list(by_save))))
    share = ranks.peers.index(ranks.rank)
    for key, checkpoint in by_save.items():
        if checkpoint.step <= above:
            break
        if key not in everywhere:
            notes.append(f"{folders.STEPS.name_of(checkpoint.step)} passed over: not all hosts have it")
            continue
        problem = _verify(checkpoint, share, len(ranks.peers))
        problems = [text for text in ranks.gather(problem) if text]
        if problems:
            notes.append(f"{folders.STEPS.name_of(checkpoint.step)} passed over: {problems[0]}")
            continue
        verified = time.monotonic()
        problem = _load(checkpoint, ranks, states)
        problems = [text for text in ranks.gather(problem) if text]
        if problems:
            return Resumed(step=0, history=History(), notes=tuple(notes), problem=f"{checkpoint.path}: {problems[0]}")
        notes.append(
            f"resumed from {checkpoint.path} ({checkpoint.size / 1e6:.0f} MB verified in {verified - began:.2f} s, "
            f"loaded in {time.monotonic() - verified:.2f} s)"
        )
        return _resumed(checkpoint, notes)
    if notes and above < 0:
        notes.append("no checkpoint is whole: starting from the beginning")
    return Resumed(step=0, history=History(), notes=tuple(notes))


def resume_copy(copies: MemoryCopies, folder: str, ranks: Ranks, states: Sequence[Any]) -> Resumed:
    """Loads the newest copy in memory into the states, or a checkpoint that is newer. Collective."""
    began = time.monotonic()
    copy = copies.newest()
    verified = time.monotonic()
    resumed = resume(folder, ranks, states, above=copy.step if copy else -1)
    if copy is None or resumed.step or resumed.problem:
        copies.settle(-1)
        return resumed
    problem = next(filter(None, ranks.gather(_load(copy, ranks, states, local=True))), "")
    if problem:
        copies.settle(-1)
        note = f"the copy in memory of step {copy.step} passed over: {problem}"
        resumed = resume(folder, ranks, states)
        return resumed.replace(notes=(note, *resumed.notes))
    copies.settle(copy.step)
    note = (
        f"resumed from memory, step {copy.step} ({copy.size / 1e6:.0f} MB verified in {verified - began:.2f} s, "
        f"loaded in {time.monotonic() - verified:.2f} s)"
    )
    return _resumed(copy, [*resumed.notes, note])


def _resumed(checkpoint: Found, notes: Sequence[str]) -> Resumed:
    before = History.of(checkpoint.parts[0].run)
    return Resumed(step=checkpoint.step, history=before.replace(interruptions=before.interruptions + 1), notes=tuple(notes))


def _verify(checkpoint: Found, share: int, of: int) -> str:
    """Why the checkpoint must not be used, "" if it may be. The ranks of one storage divide the files among them."""
    try:
        folders.verify(checkpoint, share, of)
    except Damaged as error:
        return str(error)
    return ""


def _load(checkpoint: Found, ranks: Ranks, states: Sequence[Any], local: bool = False) -> str:
    """Loads the checkpoint into the states. Returns why it does not fit, "" if it is loaded. Collective.

    Args:
        local: it holds what this host's ranks hold, and no more.
    """
    try:
        contents = Contents(checkpoint)
        trees = contents.trees()
    except Damaged as error:
        trees, problem = {}, str(error)
    else:
        problem = "" if trees else "it holds no state of any rank"
    # All ranks take part in the exchange below, also those with a problem.
    stored = {} if problem else contents.stored
    if local:
        stored = {key: value for one in ranks.gather(stored) for key, value in one.items()}
    models = [state for state in states if isinstance(state, ModelState)]
    wanted_by_all = set().union(*ranks.gather({key for model in models for key in model.wanted(stored, None)}))
    if problem:
        return problem
    same = checkpoint.parts[0].world_size == ranks.world_size and ranks.rank in trees
    try:
        for prefix in {model.name for model in models}:
            same_names(
                f"the tensors of {prefix}",
                {key for key in wanted_by_all if key.startswith(f"{prefix}/")},
                {key for key in stored if key.startswith(f"{prefix}/")},
            )
        for state in states:
            tree = _tree(state.name, trees, ranks.rank, same)
            if tree is None:
                if state.name == "random":
                    continue
                return f"it holds nothing named {state.name!r}"
            tensors = state.wanted(stored, tree)
            (fill_local if local else fill)(contents, tensors)
            state.restore(tensors, tree)
    except (StateError, ValueError, KeyError, TypeError, RuntimeError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def _tree(name: str, trees: dict[int, dict[str, Any]], rank: int, same: bool) -> Any:
    """The objects that a rank kept under a name; with another number of ranks, the first rank's, or all optimizers' merged.

    Each rank has its own random generators: another number of ranks starts with fresh ones.
    """
    if same:
        return trees[rank].get(name)
    if name == "random":
        return None
    of_ranks = [tree[name] for _, tree in sorted(trees.items()) if name in tree]
    if not of_ranks:
        return None
    if isinstance(of_ranks[0], dict) and of_ranks[0].keys() == {"state", "param_groups"}:
        merged: dict[str, Any] = {"state": {}, "param_groups": []}
        for tree in of_ranks:
            merged["state"] |= tree["state"]
            merged["param_groups"] += tree["param_groups"]
        return merged
    return of_ranks[0]
