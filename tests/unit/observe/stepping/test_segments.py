"""Marks in loops of many shapes become the right phases."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from trainshed.observe.stepping.segments import MOST_PENDING, Segments, Step

TRAIN, VALID = 1, 2


class Loop:
    """A loop on a clock of its own, in seconds."""

    def __init__(self, device: bool = False) -> None:
        self.time = self.device_time = 0.0
        self.reached = 1e9
        self.steps: list[Step] = []
        self.segments = Segments(self.steps.append, lambda: self.time, self.event if device else None)

    def event(self) -> Any:
        loop = self

        class Event:
            def __init__(self, at: float) -> None:
                self.at = at

            def query(self) -> bool:
                return self.at <= loop.reached

            def elapsed_time(self, end: Any) -> float:
                return 1000 * (end.at - self.at)

        self.device_time = max(self.device_time, self.time)
        return Event(self.device_time)

    def spend(self, seconds: float) -> None:
        self.time += seconds

    def fetch(self, seconds: float, key: int = TRAIN, rows: int | None = 8) -> None:
        self.segments.fetch_begins()
        self.spend(seconds)
        self.segments.fetch_ends(key, rows)

    def backward(self, seconds: float, exposed: float = 0.0) -> None:
        self.segments.backward_begins()
        self.spend(seconds)
        self.segments.backward_ends(exposed)

    def optimize(self, seconds: float, optimizer: int = 7) -> None:
        self.segments.optimizer_begins()
        self.spend(seconds)
        self.segments.optimizer_ends(optimizer)

    def inside(self, phase: str, seconds: float) -> None:
        began = self.segments.inside_begins()
        self.spend(seconds)
        self.segments.inside_ends(phase, began)

    def step(self) -> None:
        """8 seconds: 1 of data, 2 forward, 4 backward, 1 optimizer."""
        self.fetch(1)
        self.spend(2)
        self.backward(4)
        self.optimize(1)

    def only(self) -> Step:
        (step,) = self.steps
        return step


PHASES = {"data": 1.0, "forward": 2.0, "backward": 4.0, "optimizer": 1.0}


def test_the_first_step_is_left_out_and_the_next_one_has_its_phases() -> None:
    loop = Loop()
    loop.spend(100)
    loop.step()
    loop.step()

    assert loop.only() == Step(seconds=8.0, phases=PHASES, samples=8)


def test_microbatches_that_accumulate_are_one_step() -> None:
    loop = Loop()
    loop.step()
    for _ in range(3):
        loop.fetch(1)
        loop.spend(2)
        loop.backward(4)
    loop.optimize(1)

    assert loop.only() == Step(22.0, {"data": 3.0, "forward": 6.0, "backward": 12.0, "optimizer": 1.0}, 24)


def test_a_validation_between_two_steps_is_neither_data_nor_forward() -> None:
    loop = Loop()
    loop.step()
    for _ in range(5):
        loop.fetch(10, VALID)
        loop.spend(10)
    loop.step()

    assert loop.only() == Step(108.0, PHASES, 8)


def test_batches_fetched_ahead_count_in_the_step_in_which_they_are_fetched() -> None:
    loop = Loop()
    loop.fetch(1)
    loop.step()
    loop.step()
    loop.fetch(5)
    loop.spend(2)
    loop.backward(4)
    loop.fetch(6)
    loop.optimize(1)

    assert loop.steps[1].phases == {"data": 11.0, "forward": 2.0, "backward": 4.0, "optimizer": 1.0}


def test_what_happens_inside_of_a_phase_is_taken_out_of_it_once() -> None:
    loop = Loop()
    loop.step()
    loop.fetch(1)
    loop.spend(2)
    loop.inside("copy", 3)
    loop.segments.backward_begins()
    loop.spend(4)
    began = loop.segments.inside_begins()
    loop.inside("communication", 5)  # within another one
    loop.segments.inside_ends("communication", began)
    loop.segments.backward_ends()
    loop.optimize(1)
    loop.inside("checkpoint", 6)
    loop.step()

    assert loop.steps[0].phases == {**PHASES, "copy": 3.0, "communication": 5.0}
    assert loop.steps[1] == Step(14.0, {**PHASES, "checkpoint": 6.0}, 8)


def test_the_part_of_a_backward_that_waits_is_communication() -> None:
    loop = Loop()
    loop.step()
    loop.backward(4, exposed=0.75)
    loop.optimize(1)

    assert loop.only().phases == {"forward": 0.0, "backward": 1.0, "communication": 3.0, "optimizer": 1.0}


def test_clipping_is_the_optimizers_and_a_backward_inside_of_another_counts_once() -> None:
    loop = Loop()
    loop.step()
    loop.segments.backward_begins()
    loop.spend(1)
    loop.backward(2)
    loop.spend(1)
    loop.segments.backward_ends()
    loop.spend(0.5)
    loop.optimize(1)

    assert loop.only().phases == {"forward": 0.0, "backward": 4.0, "optimizer": 1.5}


def test_a_closure_that_the_optimizer_calls_has_its_own_phases() -> None:
    loop = Loop()
    loop.step()
    loop.segments.optimizer_begins()
    loop.spend(2)
    loop.backward(4)
    loop.spend(1)
    loop.segments.optimizer_ends(7)

    assert loop.only().phases == {"forward": 2.0, "backward": 4.0, "optimizer": 1.0}


def test_with_two_optimizers_the_first_ones_steps_count() -> None:
    loop = Loop()
    for _ in range(2):
        loop.backward(1)
        loop.optimize(1, optimizer=7)
        loop.backward(1)
        loop.optimize(1, optimizer=8)

    assert loop.only().seconds == 4.0


def test_other_threads_leave_no_marks() -> None:
    loop = Loop()
    loop.step()

    def other() -> None:
        loop.fetch(50)
        loop.inside("checkpoint", 50)
        loop.backward(50)
        loop.optimize(50)
        loop.time -= 200

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    loop.step()

    assert loop.only() == Step(8.0, PHASES, 8)


def test_loaders_that_do_not_tell_how_much_is_in_a_batch() -> None:
    loop = Loop()
    loop.step()
    loop.fetch(1, rows=None)
    loop.backward(1)
    loop.optimize(1)

    assert loop.only().samples is None


def test_on_a_device_its_own_timeline_counts() -> None:
    """The host runs ahead: it fetches while the device is still at work, so that no data is waited for."""
    loop = Loop(device=True)
    for _ in range(3):
        loop.fetch(1)
        loop.spend(0.1)
        loop.device_time += 2  # the forward
        loop.backward(0.1)
        loop.device_time = max(loop.device_time, loop.time) + 4
        loop.segments.optimizer_begins()
        loop.spend(0.1)
        loop.segments.optimizer_ends(7)

    assert len(loop.steps) == 2
    assert loop.steps[1].phases.get("data", 0.0) == pytest.approx(0.0)
    assert sum(loop.steps[1].phases.values()) == pytest.approx(loop.steps[1].seconds)


def test_what_the_device_waits_for_other_ranks_is_communication_wherever_it_is() -> None:
    """As FSDP does: before a module's forward, and in its backward, there by a thread of autograd's."""
    loop = Loop(device=True)

    def exchange(seconds: float) -> None:
        began = loop.segments.exchange_begins()
        loop.device_time += seconds
        loop.segments.exchange_ends(began)

    def elsewhere(seconds: float) -> None:
        thread = threading.Thread(target=exchange, args=(seconds,))
        thread.start()
        thread.join()

    for _ in range(3):
        loop.fetch(0)
        exchange(1)
        loop.device_time += 2  # the forward
        exchange(0.5)
        loop.segments.backward_begins()
        loop.device_time += 3
        elsewhere(0.25)
        loop.device_time += 1
        loop.segments.backward_ends()
        elsewhere(8)  # out of a backward it is nothing of this loop's
        loop.device_time -= 8
        loop.optimize(0)

    assert loop.steps[1].seconds == pytest.approx(7.75)
    assert loop.steps[1].phases == pytest.approx(
        {"data": 0.0, "forward": 2.0, "backward": 4.0, "communication": 1.75, "optimizer": 0.0}
    )


def test_on_the_hosts_clock_a_device_waits_for_nobody() -> None:
    loop = Loop()
    for _ in range(2):
        loop.fetch(1)
        began = loop.segments.exchange_begins()
        loop.spend(2)
        loop.segments.exchange_ends(began)
        loop.backward(4)
        loop.optimize(1)

    assert loop.only().phases == PHASES


def test_steps_that_the_device_has_not_come_to_wait_for_it_without_end_of_memory() -> None:
    loop = Loop(device=True)
    loop.reached = -1.0
    for _ in range(MOST_PENDING + 6):
        loop.step()

    assert len(loop.steps) == 5
    loop.reached = 1e9
    loop.step()

    assert len(loop.steps) == MOST_PENDING + 6
