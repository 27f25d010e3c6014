"""What the page's buttons do, by the same functions as the commands: stop, resume, clone, run again, remove."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from trainshed.base.errors import TrainshedError
from trainshed.runner.control import operations
from trainshed.runner.control.detached import start
from trainshed.runner.state.stored import Stored, refuse_masked
from trainshed.studio.batches.folder import Folder

WAIT = 1.5  # seconds for an answer; what takes longer goes on, and its words come with the run's state


class Actions:
    """Things that were asked for and go on, by the run's folder."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._busy: dict[str, threading.Thread] = {}
        self._words: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def words(self, run: Stored) -> list[str]:
        """What the last thing that was asked for has said."""
        return self._words.get(run.folder, [])

    def busy(self, run: Stored) -> bool:
        """Whether something goes on for the run."""
        return self._is_busy(run.folder)

    def _is_busy(self, folder: str) -> bool:
        thread = self._busy.get(folder)
        return thread is not None and thread.is_alive()

    def stop(self, run: Stored, *, kill: bool) -> dict[str, Any]:
        """Asks the run to end; with `kill` its script is not waited for."""

        def act(say: Callable[[str], None]) -> None:
            operations.stop(run, self._environ, say, kill=kill)

        return self._do(run.folder, "stopping", act, again=kill)

    def end(self, batch: Folder, how: Callable[..., None]) -> dict[str, Any]:
        """Asks a tuning or a pipeline to end, with its runs."""

        def act(say: Callable[[str], None]) -> None:
            how(batch, self._environ, say, kill=False)
            say("it has ended")

        return self._do(batch.path, "stopping", act)

    def remove(self, run: Stored) -> dict[str, Any]:
        """Removes a run that is over, with all that it left."""

        def act(say: Callable[[str], None]) -> None:
            operations.remove(run, self._environ, say)
            say("it is removed")

        return self._do(run.folder, "removing", act)

    def resume(self, run: Stored) -> dict[str, Any]:
        """Takes the run up again, in the background."""

        def act(say: Callable[[str], None]) -> None:
            again = operations.to_resume(run, self._environ, say)
            start(again.job, self._environ, again=again, quiet=True, on=run.place.name)
            say("it runs again")

        return self._do(run.folder, "resuming", act)

    def again(self, run: Stored) -> dict[str, Any]:
        """Starts the run's job as a new run, in the background."""

        def act(say: Callable[[str], None]) -> None:
            job = run.run().job
            refuse_masked(job, run.name)
            made = start(job, self._environ, quiet=True, on=run.place.name)
            say(f"started {made.name}")

        return self._do(run.folder, "starting", act)

    def _do(
        self, folder: str, what: str, act: Callable[[Callable[[str], None]], None], again: bool = False
    ) -> dict[str, Any]:
        words: list[str] = []
        failed: list[str] = []

        def body() -> None:
            try:
                act(words.append)
            except TrainshedError as error:
                failed.append(error.message + (f" ({error.hint})" if error.hint else ""))
                words.append(failed[0])
            except Exception as error:  # a defect of ours: the page must not wait for ever
                failed.append(f"trainshed itself failed: {type(error).__name__}: {error}")
                words.append(failed[0])

        with self._lock:
            if self._is_busy(folder) and not again:
                return {"error": "something is under way for it already"}
            thread = threading.Thread(target=body, daemon=True, name=what)
            self._busy[folder], self._words[folder] = thread, words
            thread.start()
        thread.join(WAIT)
        if failed:
            return {"error": failed[0]}
        return {"said": words[-1] if words else f"{what} …", "done": not thread.is_alive()}
