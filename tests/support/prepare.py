"""Makes what some tests need and no test has the time for: the image of Dockerfile.cpu, and environments of SDKs. Done once.

What cannot be made here is said; tests that need it say why they are skipped, or fail.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def main() -> None:
    """Both at once: one waits for the network, the other for the disk."""
    scripts = ["clients/venvs.py"]
    if shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True).returncode == 0:
        scripts.append("support/image_build.py")
    else:
        print("no Docker daemon answers: tests that need one are skipped")
    for script, started in [(script, subprocess.Popen([sys.executable, TESTS / script])) for script in scripts]:
        if started.wait() != 0:
            print(f"tests/{script} failed, see above: tests that need what it makes fail or are skipped")


if __name__ == "__main__":
    main()
