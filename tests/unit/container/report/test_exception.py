"""Finding the exception in what a process printed: recorded output of real programs."""

# ruff: noqa: E501 (the texts are as they were printed)

from __future__ import annotations

from pathlib import Path

import pytest

from support.properties import given, st
from trainshed.container.report.exception import find_exception, root_cause

CODE = "/opt/ml/code"
SITE = "/opt/venv/lib/python3.11/site-packages"

PLAIN = f'''\
loading
Traceback (most recent call last):
  File "{CODE}/train.py", line 41, in <module>
    main()
  File "{CODE}/train.py", line 12, in main
    step(batch)
  File "{SITE}/torch/nn/functional.py", line 3458, in cross_entropy
    return torch._C._nn.cross_entropy_loss(
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
IndexError: Target 17 is out of bounds.
'''

CHAINED = f'''\
Traceback (most recent call last):
  File "{CODE}/data.py", line 2, in load
    return {{}}["train"]
           ~~^^^^^^^^^
KeyError: 'train'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "{CODE}/train.py", line 5, in <module>
    load()
  File "{CODE}/data.py", line 4, in load
    raise RuntimeError("no data") from error
RuntimeError: no data
'''

HANDLING = CHAINED.replace(
    "The above exception was the direct cause of the following", "During handling of the above exception, another"
)

GROUP = f'''\
  + Exception Group Traceback (most recent call last):
  |   File "{CODE}/train.py", line 7, in <module>
  |     main()
  |   File "{CODE}/train.py", line 6, in main
  |     raise ExceptionGroup("two shards are bad", errors)
  | ExceptionGroup: two shards are bad (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "{CODE}/shard.py", line 4, in load
    |     int("x%d" % n)
    | ValueError: invalid literal for int() with base 10: 'x0'
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "{CODE}/shard.py", line 4, in load
    |     int("x%d" % n)
    | ValueError: invalid literal for int() with base 10: 'x1'
    +------------------------------------
'''

WORKER = f'''\
Traceback (most recent call last):
  File "{CODE}/train.py", line 8, in <module>
    for batch in DataLoader(Data(), batch_size=2, num_workers=1):
  File "{SITE}/torch/utils/data/dataloader.py", line 725, in __next__
    data = self._next_data()
  File "{SITE}/torch/_utils.py", line 794, in reraise
    raise exception
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "{SITE}/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)  # type: ignore[possibly-undefined]
  File "{CODE}/data.py", line 5, in __getitem__
    if i == 5: raise ValueError(f"bad label {{i}}")
ValueError: bad label 5

'''

# rank 1 of 2 below `python -m torch.distributed.run`, shortened in the middle
AGENT = f'''\
Traceback (most recent call last):
  File "{CODE}/train.py", line 3, in <module>
    raise ValueError("bad label 17")
ValueError: bad label 17
W1121 02:24:08.877000 10629 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 10813 closing signal SIGTERM
E1121 02:24:08.881000 10629 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 10814) of binary: /opt/venv/bin/python
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "<frozen runpy>", line 88, in _run_code
  File "{SITE}/torch/distributed/run.py", line 1032, in <module>
    main()
  File "{SITE}/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_02:24:08
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 10813)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 10813
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_02:24:08
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 10814) 
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
'''

CRASH = f'''\
Fatal Python error: Segmentation fault

Thread 0x00007f53b26976c0 (most recent call first):
  File "{CODE}/logger.py", line 3 in other
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f53b3215b80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "{CODE}/train.py", line 6 in crash
  File "{CODE}/train.py", line 7 in <module>

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
'''

TERMINATE = f'''\
terminate called after throwing an instance of 'std::runtime_error'
  what():  bad shard 3
Fatal Python error: Aborted

Current thread 0x00007f98f29bab80 (most recent call first):
  File "{CODE}/train.py", line 4 in main
  File "{CODE}/train.py", line 5 in <module>
'''

# What gloo's threads do to an interpreter that ends because of an exception.
AT_EXIT = """\
terminate called without an active exception
Fatal Python error: Aborted

Thread 0x00007f39b7a0fb80 (most recent call first):
  <no Python frame>

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""

RICH = f"""\
╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ {CODE}/train.py:6 in <module>                                           │
│                                                                              │
│ ❱ 6 main()                                                                   │
│                                                                              │
│ {CODE}/train.py:5 in main                                               │
│                                                                              │
│ ❱ 5 │   raise ValueError("bad label 17")                                     │
│   6 main()                                                                   │
╰──────────────────────────────────────────────────────────────────────────────╯
ValueError: bad label 17
"""

SYNTAX = f'''\
  File "{CODE}/train.py", line 3
    print(
         ^
SyntaxError: '(' was never closed
'''

IMPORTED_SYNTAX = f'''\
Traceback (most recent call last):
  File "{CODE}/train.py", line 1, in <module>
    import lib
  File "{CODE}/lib.py", line 1
    def f(:
          ^
SyntaxError: invalid syntax
'''

USAGE = """\
usage: train.py [-h] [--epochs EPOCHS]
train.py: error: unrecognized arguments: --epocs 3
"""

PYTEST = """\
____________________________ test_it _____________________________
test_it.py:3: in test_it
    assert 1 == 2
E   assert 1 == 2
=========================== short test summary info ============================
FAILED test_it.py::test_it - assert 1 == 2
1 failed in 0.02s
"""

CYTHON = f'''\
Traceback (most recent call last):
  File "{CODE}/train.py", line 9, in <module>
    frame.loc[3]
  File "pandas/_libs/index.pyx", line 167, in pandas._libs.index.IndexEngine.get_loc
KeyError: 3
'''

FOUND = {
    "an uncaught exception": (PLAIN, "IndexError: Target 17 is out of bounds.", "train.py:12 in main"),
    "the last of a chain": (CHAINED, "RuntimeError: no data", "data.py:4 in load"),
    "the last of several while handling": (HANDLING, "RuntimeError: no data", "data.py:4 in load"),
    "an exception group and its first member": (
        GROUP,
        "ExceptionGroup: two shards are bad (2 sub-exceptions): ValueError: invalid literal for int() with base 10: 'x0'",
        "shard.py:4 in load",
    ),
    "the exception of a data-loader worker": (WORKER, "ValueError: bad label 5", "data.py:5 in __getitem__"),
    "the child's below torchrun's agent": (AGENT, "ValueError: bad label 17", "train.py:3"),
    "a crash in native code": (CRASH, "Fatal Python error: Segmentation fault", "train.py:6 in crash"),
    "a C++ exception that nobody catches": (
        TERMINATE,
        "terminate called after throwing an instance of 'std::runtime_error' what(): bad shard 3",
        "train.py:4 in main",
    ),
    "the exception before a crash at exit": (PLAIN + AT_EXIT, "IndexError: Target 17 is out of bounds.", "train.py:12 in main"),
    "the crash after an exception that was handled": (
        PLAIN + "going on\n" + CRASH,
        "Fatal Python error: Segmentation fault",
        "train.py:6 in crash",
    ),
    "a crash at exit with nothing before it": (AT_EXIT, "terminate called without an active exception", ""),
    "a failed assertion in C": (
        "python: pair.cc:17: void f(): Assertion `n > 0' failed.\nFatal Python error: Aborted\n",
        "python: pair.cc:17: void f(): Assertion `n > 0' failed.",
        "",
    ),
    "what glibc says of a spoilt heap": ("free(): invalid pointer\n", "free(): invalid pointer", ""),
    "a library that is missing": (
        "prog: error while loading shared libraries: libnccl.so.2: cannot open shared object file\n",
        "prog: error while loading shared libraries: libnccl.so.2: cannot open shared object file",
        "",
    ),
    "rich's box": (RICH, "ValueError: bad label 17", "train.py:5 in main"),
    "a script that does not parse": (SYNTAX, "SyntaxError: '(' was never closed", "train.py:3"),
    "a module that does not parse": (IMPORTED_SYNTAX, "SyntaxError: invalid syntax", "lib.py:1"),
    "what argparse says": (USAGE, "train.py: error: unrecognized arguments: --epocs 3", ""),
    "what argparse says after an exception that was handled": (
        PLAIN + USAGE,
        "train.py: error: unrecognized arguments: --epocs 3",
        "",
    ),
    "a class defined in a function": (
        PLAIN.replace("IndexError", "main.<locals>.BadShard"),
        "main.<locals>.BadShard: Target 17 is out of bounds.",
        "train.py:12 in main",
    ),
    "an exception without a message": (PLAIN.replace("IndexError: Target 17 is out of bounds.", "AssertionError"),
                                       "AssertionError", "train.py:12 in main"),
    "a message of several lines": (
        PLAIN.replace("Target 17 is out of bounds.", "size mismatch:\n\tw: [3] and [4]\n\tb: [1] and [2]"),
        "IndexError: size mismatch: w: [3] and [4] b: [1] and [2]",
        "train.py:12 in main",
    ),
    "torch's tags in front of every line": (
        "".join(f"[rank3]: {line}\n" for line in PLAIN.splitlines()),
        "IndexError: Target 17 is out of bounds.",
        "train.py:12 in main",
    ),
    "colours": (PLAIN.replace("IndexError", "\x1b[1;35mIndexError\x1b[0m"), "IndexError: Target 17 is out of bounds.",
                "train.py:12 in main"),
    "another thread's words in the middle": (
        PLAIN.replace("    step(batch)\n", "    step(batch)\n100%|####| 10/10 [00:01<00:00]\n"),
        "IndexError: Target 17 is out of bounds.",
        "train.py:12 in main",
    ),
    "frames of compiled Cython are not the user's": (CYTHON, "KeyError: 3", "train.py:9"),
    "no frame of the user's at all": (
        f'Traceback (most recent call last):\n  File "{SITE}/accelerate/x.py", line 9, in main\nOSError: no\n',
        "OSError: no",
        f"{SITE}/accelerate/x.py:9 in main",
    ),
    "the child's before the parent's complaint": (
        PLAIN + "\n" + PLAIN.replace("IndexError: Target 17 is out of bounds.", "subprocess.CalledProcessError: Command 'x' returned 1"),
        "IndexError: Target 17 is out of bounds.",
        "train.py:12 in main",
    ),
    "the script's before that of a launcher of Amazon's": (
        PLAIN + "\n" + PLAIN.replace("IndexError: Target 17 is out of bounds.", "x.ExecuteUserScriptError: ExecuteUserScriptError:\nExitCode 1"),
        "IndexError: Target 17 is out of bounds.",
        "train.py:12 in main",
    ),
    "within the message of such a launcher": (
        "x.ExecuteUserScriptError: ExecuteUserScriptError:\nExitCode 1\nErrorMessage \"" + PLAIN + '"\nCommand "python train.py"\n',
        "IndexError: Target 17 is out of bounds.",
        "train.py:12 in main",
    ),
    "the parent's complaint where no child said anything": (
        PLAIN.replace("IndexError: Target 17 is out of bounds.", "subprocess.CalledProcessError: Command 'x' returned 1"),
        "subprocess.CalledProcessError: Command 'x' returned 1",
        "train.py:12 in main",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("output", "text", "place"), FOUND.values(), ids=FOUND)
def test_it_finds(output: str, text: str, place: str) -> None:
    raised = find_exception("step 1\nstep 2\n" + output, CODE)
    assert raised is not None
    assert (raised.text, raised.place) == (text, place)


@pytest.mark.parametrize(
    "output",
    [
        "",
        "\n\n",
        "step 1\nloss 0.3\n",
        PYTEST,
        "Traceback (most recent call last):\n",
        '  File "x.py", line 3\n',
        "Killed\n",
    ],
)
def test_it_finds_nothing_where_there_is_nothing(output: str) -> None:
    assert find_exception(output, CODE) is None


def test_a_traceback_that_is_cut_off_at_either_end_is_no_reason_to_fail() -> None:
    lines = PLAIN.splitlines(keepends=True)
    for cut in range(len(lines)):
        find_exception("".join(lines[cut:]), CODE)
        find_exception("".join(lines[:cut]), CODE)


@given(
    lambda: st.lists(
        st.sampled_from([*(PLAIN + GROUP + CRASH + RICH + AGENT + SYNTAX + USAGE + PYTEST).splitlines(), "", "x"]),
        max_size=30,
    )
)
def test_no_mixture_of_such_lines_makes_it_fail(lines: list[str]) -> None:
    raised = find_exception("\n".join(lines), CODE)
    assert raised is None or (raised.text and 0 <= raised.start < raised.end <= len(lines))


@given(lambda: st.text(max_size=300))
def test_no_text_at_all_makes_it_fail(output: str) -> None:
    find_exception(output, CODE)


def test_the_block_holds_the_whole_chain_and_nothing_else() -> None:
    raised = find_exception("before\n" + CHAINED + "after\n", CODE)
    assert raised is not None
    assert raised.traceback.startswith("Traceback") and "KeyError: 'train'" in raised.traceback
    assert "before" not in raised.traceback


def test_unrelated_tracebacks_are_not_taken_for_a_chain() -> None:
    raised = find_exception(PLAIN.replace("IndexError", "OSError") + "\nnext try\n" + PLAIN, CODE)
    assert raised is not None and "OSError" not in raised.traceback


def test_lines_after_it_are_counted_so_that_one_can_tell_whether_the_script_lived_on() -> None:
    raised = find_exception(PLAIN + "\n".join(["", *(f"step {n}" for n in range(40))]), CODE)
    assert raised is not None and raised.after == 40


BAR = "  0%|          | 0/10 [00:00<?, ?it/s]"
DRAWN_AGAIN = " 50%|█████     | 5/10 [00:00<00:00, 55.92it/s]\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BAR, DRAWN_AGAIN),
        (f"{BAR}[rank0]: ", DRAWN_AGAIN),
        ("Epoch 1: " + BAR.strip(), "\rEpoch 1:" + DRAWN_AGAIN),
        ("12it [00:03,  3.99it/s]", "12it [00:03,  3.99it/s]\n"),
        ("10/900 [====>.....] - ETA: 3s", ""),
    ],
)
def test_progress_bars_leave_no_end_of_line_and_are_drawn_again_when_the_program_ends(before: str, after: str) -> None:
    raised = find_exception(PLAIN.replace("Traceback", f"{before}Traceback") + after, CODE)
    assert raised is not None
    assert raised.text == "IndexError: Target 17 is out of bounds."
    assert raised.place == "train.py:12 in main"
    assert raised.traceback.startswith("Traceback") and "it/s" not in raised.traceback


def test_relative_frames_are_the_users_where_such_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    output = CYTHON.replace(f"{CODE}/train.py", "train.py")
    raised = find_exception(output, str(tmp_path))
    assert raised is not None and raised.place == "train.py:9"


@pytest.mark.parametrize("folder", ["", "/venv/lib/python3.11/site-packages/"], ids=["relative", "absolute"])
def test_the_agents_report_names_rank_and_code_of_the_first_failure(folder: str) -> None:
    cause = root_cause(AGENT.replace(" torch/distributed/elastic/", f" {folder}torch/distributed/elastic/"))
    assert cause is not None
    rank, code, before = cause
    assert (rank, code) == (1, 1)
    assert before.endswith("ValueError: bad label 17\n")
    killed = root_cause(AGENT.replace("exitcode  : 1 (pid: 10814)", "exitcode  : -9 (pid: 10814)"))
    assert killed is not None and killed[1] == -9
    assert root_cause(PLAIN) is None
