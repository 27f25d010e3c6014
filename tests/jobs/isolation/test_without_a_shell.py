"""Where there is no /bin/sh, a job runs by the ENTRYPOINT that the pages name for such images."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from support.paths import TOOLKIT

HIDDEN = ("unshare", "--mount", "sh", "-c", 'mount --bind /dev/null "$(readlink -f /bin/sh)" && exec "$@"', "sh")


def test_python_starts_a_job_where_there_is_no_shell(job_tree: Any) -> None:
    if subprocess.run([*HIDDEN, "/bin/true"], capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here")
    job_tree.code("train.py", "import os; print('trained', os.access('/bin/sh', os.X_OK))")
    job_tree.code("json.py", "raise SystemExit('taken for the module of Python')")
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py"})
    path = os.pathsep.join((str(job_tree.base / "code"), str(TOOLKIT)))

    module = "from runpy import run_module; run_module('trainshed', run_name='__main__')"  # as `-m trainshed`
    start = f"import sys; sys.path.append({str(TOOLKIT)!r}); {module}"
    done = subprocess.run(
        [*HIDDEN, sys.executable, "-I", "-c", start, "train"],
        env=job_tree.environ(PYTHONPATH=path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stdout) == (0, "trained False\n"), done.stderr
    assert job_tree.success is not None
