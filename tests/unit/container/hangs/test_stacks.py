"""The hook in the user's process, and what `train` makes of its answers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.paths import ROOT
from trainshed.container.hangs.movement import describe, ranks_below
from trainshed.container.hangs.stacks import NAME, SIGNAL, Frame, ask, main_thread, same_place
from trainshed.container.launchers.rank_environment import STACKS_HOOK

SLEEPS = "import time\ndef inner():\n    print('ready', flush=True)\n    time.sleep(600)\ninner()\n"


@contextmanager
def running(folder: Path, script: str, *options: str, path: str = STACKS_HOOK) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said `ready` and gone to sleep."""
    (folder / "script.py").write_text(script)
    process = subprocess.Popen(
        [sys.executable, *options, str(folder / "script.py")],
        env={"PYTHONPATH": path, "PATH": os.defpath},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        while process.poll() is None and not describe(process.pid).startswith("waiting"):  # now it sleeps
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.communicate()


def link(path: str) -> str:
    """Where a link leads, "" once it is gone."""
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""


def answers(*pids: int) -> list[str]:
    asked = ask(list(pids))
    deadline = time.monotonic() + 120
    while not all([one.whole() for one in asked]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [one.text() for one in asked]


def test_a_process_says_where_it_is_as_often_as_it_is_asked_and_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, SLEEPS) as process:
        first, second = answers(process.pid), answers(process.pid)

        script = str(tmp_path / "script.py")
        assert main_thread(first[0]) == (Frame(script, 4, "inner"), Frame(script, 5, "<module>"))
        assert len(second) == 1 and same_place(first[0]) == same_place(second[0]) != ""
        assert process.poll() is None


def test_the_main_thread_is_told_from_the_others(tmp_path: Path) -> None:
    threads = (
        "import threading\nthere = threading.Barrier(4)\ndef other():\n    there.wait()\n    threading.Event().wait()\n"
        "for _ in range(3): threading.Thread(target=other, daemon=True).start()\nthere.wait()\n" + SLEEPS
    )
    with running(tmp_path, threads) as process:
        (text,) = answers(process.pid)

        assert text.count("in other") == 3
        assert main_thread(text)[0].function == "inner"


@pytest.mark.parametrize("option", ["-I", "-S", "-E"])
def test_a_process_without_the_hook_is_left_alone_since_it_would_die_of_the_signal(tmp_path: Path, option: str) -> None:
    with running(tmp_path, SLEEPS, option) as process:
        assert answers(process.pid) == []
        assert process.poll() is None
        assert describe(process.pid).startswith("waiting")


def test_a_process_that_has_closed_all_its_files_is_left_alone(tmp_path: Path) -> None:
    closes = "import os, time\nos.closerange(3, 100)\nkept = open(__file__ + '.own', 'w')\n" + SLEEPS
    with running(tmp_path, closes) as process:
        assert answers(process.pid) == []
        assert process.poll() is None
        assert (tmp_path / "script.py.own").read_text() == ""


def test_a_forked_child_shares_its_parents_file_and_is_not_asked(tmp_path: Path) -> None:
    forks = "import os, time\nif os.fork() == 0: time.sleep(600)\n" + SLEEPS
    with running(tmp_path, forks) as process:
        (rank,) = ranks_below(process.pid, 7)
        try:
            assert len(rank.pids) == 2 and rank.rank == 7
            (text,) = answers(*rank.pids)
            assert main_thread(text)[0].function == "inner"
        finally:
            os.kill(rank.pids[1], 9)


def test_a_stopped_process_does_not_answer_and_is_called_stopped(tmp_path: Path) -> None:
    with running(tmp_path, SLEEPS) as process:
        process.send_signal(19)
        while "stopped" not in describe(process.pid):
            time.sleep(0.01)
        (asked,) = ask([process.pid])

        assert not asked.whole() and asked.text() == ""


def test_the_users_own_sitecustomize_runs_as_if_the_hook_were_not_there(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("mark = 'own'\n")
    script = "import sys\nprint('ready', sys.modules['sitecustomize'].mark, sys.path[1:2], flush=True)\n"
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        env={"PYTHONPATH": f"{STACKS_HOOK}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == f"ready own {[str(tmp_path)]!r}\n" and done.stderr == ""


def test_an_error_in_the_users_own_sitecustomize_is_reported_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import no_such_module_of_mine\n")
    done = subprocess.run(
        [sys.executable, "-c", ""], env={"PYTHONPATH": f"{STACKS_HOOK}:{tmp_path}"}, capture_output=True, text=True
    )

    assert "no_such_module_of_mine" in done.stderr


def test_programs_that_a_process_starts_do_not_inherit_its_file(tmp_path: Path) -> None:
    script = "import subprocess\nprint('ready', flush=True)\nsubprocess.run(['sleep', '600'], close_fds=False)\n"
    with running(tmp_path, script) as process:
        while len(pids := ranks_below(process.pid, 0)[0].pids) < 2:
            time.sleep(0.02)
        child = pids[1]
        while not os.readlink(f"/proc/{child}/exe").endswith(("sleep", "coreutils", "busybox")):
            time.sleep(0.02)
        links = [one for name in os.listdir(f"/proc/{child}/fd") if (one := link(f"/proc/{child}/fd/{name}"))]

        assert not any(NAME in link for link in links)
        os.kill(child, 9)


def test_the_hook_and_train_agree_on_signal_and_name() -> None:
    text = Path(STACKS_HOOK, "sitecustomize.py").read_text()

    assert f"SIGNAL = {SIGNAL}\n" in text and f'NAME = "{NAME}"\n' in text


def test_the_forms_of_later_pythons_are_understood() -> None:
    text = (
        'Thread 0x00007f0000000001 [Thread-1 (work)] (most recent call first):\n  File "/a/b.py", line 3 in work\n\n'
        'Current thread 0x00007f0000000002 [python] (most recent call first):\n  File "/a/c.py", line ??? in main\n'
    )

    assert main_thread(text) == (Frame("/a/c.py", 0, "main"),)
    assert main_thread(text.replace("Current thread", "Thread")) == (Frame("/a/c.py", 0, "main"),)
    assert main_thread("") == ()


LATE = "import sys; sys.modules['torch'] = sys; from support import late_thread; late_thread.begin()"


def test_a_script_ends_when_gloos_threads_have_put_down_their_work() -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([STACKS_HOOK, str(ROOT / "tests")])}
    done = subprocess.run([sys.executable, "-c", LATE], env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "put down\n", "")


def test_a_process_that_is_asked_while_it_ends_ends_as_it_would() -> None:
    """Python takes faulthandler apart before it ends, which puts back what the signal did before."""
    code = f"import faulthandler, os; faulthandler.unregister({SIGNAL}); os.kill(os.getpid(), {SIGNAL}); print('ends')"
    environment = {"PYTHONPATH": STACKS_HOOK, "PATH": os.defpath}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
