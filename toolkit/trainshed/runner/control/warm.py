"""A run's warm pool: found or made when the run starts, left for the next one when it ends (files/warm has the pool)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from trainshed.base.errors import TrainshedError
from trainshed.base.units import duration

from ..acting import Backend, acting
from ..files import warm_keeper as keeper
from ..files.owner import give_all
from ..files.run import Run
from ..files.warm_pool import Pool, Standing, WarmPoolKey, every, make, pools_folder, sweep, take
from ..job.job import Job
from ..job.places import HERE


class Warm:
    """The pool of one run; nothing where its job has no `keep_alive`. What goes wrong with a pool never ends a run.

    Args:
        backend: prepared.
    """

    def __init__(self, job: Job, backend: Backend, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.job, self.backend, self.environ, self.say = job, backend, environ, say
        self.pool: Pool | None = None
        self.was_there = False
        self._since = time.time()

    def taken(self, run: Run) -> Run:
        """The run with its pool, if it gets one."""
        if not self.job.keep_alive:
            return run
        if obstacle := self.backend.pool_obstacle():
            self.say(f"warning: keep_alive: nothing is kept for the next run: {obstacle}")
            return run
        sweep(self.environ)
        shape = self._shape()
        try:
            self.pool = self._find(shape) or make(self.environ, self.job.name)
            self.pool.note(self.job.name, shape, self.job.keep_alive, run)
            if not self.was_there:
                give_all(pools_folder(self.environ), self.environ)  # the hosts run as the person who called sudo
            keeper.start(self.pool.folder, self.environ)
        except OSError as error:
            self.say(f"warning: keep_alive: nothing is kept for the next run: {error.filename}: {error.strerror}")
            if self.pool is not None:
                self.pool.drop()
            self.pool = None
            return run
        self.say(f"warm pool {self.pool.name}: {'packages and data of an earlier run' if self.was_there else 'new'}")
        return replace(run, pool=self.pool.folder)

    def leave(self) -> None:
        """Leaves the pool for the next run, if there is something in it and nobody wants its end. Never raises."""
        pool, self.pool = self.pool, None
        if pool is None:
            return
        try:
            if not pool.tidy(self._since) or pool.released:
                pool.drop()
                return
            until = time.time() + self.job.keep_alive
            pool.note(self.job.name, self._shape(), self.job.keep_alive, None, until)
            if pool.released:  # since the look above
                pool.drop()
                return
            give_all(pool.folder, self.environ)
            pool.let_go()
            self.say(f"warm pool {pool.name} waits {duration(self.job.keep_alive)} for the next run")
        except OSError as error:
            self.say(f"warning: keep_alive: nothing is kept for the next run: {error.filename}: {error.strerror}")
            pool.drop()

    def _shape(self) -> WarmPoolKey:
        python = "" if self.backend.in_containers else self.job.python or sys.executable
        return WarmPoolKey(self.backend.place, self.backend.image.get("id", ""), python)

    def _find(self, shape: WarmPoolKey) -> Pool | None:
        """A pool of this shape that is free, one of the same job's name first. Says why one of this name is none."""
        for one in sorted(every(self.environ), key=lambda one: one.job != self.job.name):
            if one.shape == shape and not one.in_use and not self._is_used(one) and (pool := take(one)):
                self.was_there = True
                return pool
            if one.job == self.job.name:
                self.say(f"warm pool {one.name} does not fit: {self._difference(one, shape)}")
        return None

    def _difference(self, one: Standing, shape: WarmPoolKey) -> str:
        if one.shape.image != shape.image:
            return "it is of another image" if one.shape.image and shape.image else "containers and processes differ"
        if one.shape != shape:
            return "it is of another interpreter or container engine"
        return f"{one.run.get('Name') or 'another run'} uses it"

    def _is_used(self, one: Standing) -> bool:
        """Whether hosts of a run whose runner was killed still write to it."""
        run = one.run.get("Id", "")
        if not run:
            return False
        try:
            return bool(acting(HERE).leftovers(run, "" if self.backend.in_containers else None, self.environ).running())
        except TrainshedError:
            return True
