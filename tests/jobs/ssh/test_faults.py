"""What `trainshed run --on ssh` says of machines that cannot run the job: all of them at once, and what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from jobs.ssh.machines import Lab, needs_sshd

pytestmark = needs_sshd

NOTHING = "print('never printed')\n"


def said(lab: Lab, job: Path, *arguments: str) -> str:
    """What a run says that cannot start; nothing must be left of it, here or there."""
    done = lab.trainshed("run", str(job), "--on", "ssh", *arguments)
    assert done.returncode == 69, done.stdout + done.stderr
    assert not (lab.folder / "runs").exists()
    assert lab.left == []
    return done.stderr


def test_all_machines_that_cannot_be_used_are_named_with_what_to_do(lab: Lab) -> None:
    for name in ("good", "strange", "refusing", "new"):
        lab.add(name)
    gone = lab.add("gone")
    gone.stop()
    known = (lab.folder / "known_hosts").read_text().splitlines()
    other = next(line.split(" ", 1)[1] for line in known if line.startswith("good "))
    known = [f"strange {other}" if line.startswith("strange ") else line for line in known if not line.startswith("new ")]
    (lab.folder / "known_hosts").write_text("\n".join(known) + "\n")
    (lab.machines["refusing"].folder / "authorized_keys").write_text("")
    text = said(lab, lab.job(NOTHING))
    assert "4 hosts cannot be used" in text
    assert "strange: its host key is another one than known_hosts has" in text and "ssh-keygen -R" in text
    assert "new: its host key is not known here; connect once with `ssh new`" in text
    assert "refusing: it refuses your keys" in text and "ssh-copy-id refusing" in text
    assert "gone: nothing answers at its ssh port" in text
    assert "good:" not in text


def test_a_name_that_nobody_knows(lab: Lab) -> None:
    lab.add("a")
    job = lab.job(NOTHING)
    assert "there is no machine of this name" in said(lab, job, "--hosts", "me@no-such-machine.invalid")


def test_missing_python(lab: Lab) -> None:
    lab.add("a")
    job = lab.job(NOTHING, ssh={"python": "/opt/nowhere/bin/python"})
    assert "a: there is no /opt/nowhere/bin/python" in said(lab, job)


def test_python_without_what_trainshed_needs(lab: Lab) -> None:
    lab.add("a")
    bare = lab.folder / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    job = lab.job(NOTHING, ssh={"python": str(bare), "toolkit": "auto"})
    text = said(lab, job)
    assert "has no psutil and no pyyaml" in text and "-m pip install psutil pyyaml" in text


def test_no_engine_for_an_image(lab: Lab) -> None:
    tools = lab.folder / "tools"
    tools.mkdir()
    for name in ("sh", "cat", "mkdir", "mv", "sed"):
        (tools / name).symlink_to(f"/bin/{name}")
    lab.add("a", path=str(tools))
    text = said(lab, lab.job(NOTHING, image="trainshed:cpu"))
    assert "neither docker nor podman is installed, and the job has an image" in text


def test_a_folder_that_cannot_be_made(lab: Lab) -> None:
    lab.add("a")
    (lab.folder / "file").write_text("")
    text = said(lab, lab.job(NOTHING, ssh={"folder": str(lab.folder / "file/trainshed")}))
    assert "a: " in text and "cannot be made there" in text


def test_a_script_of_the_login_that_prints(lab: Lab) -> None:
    """It would stand in logs and archives."""
    lab.add("a")
    (lab.machines["a"].home / ".bashrc").write_text("echo welcome to a\n")
    assert "a: its shell prints 'welcome to a' at every login" in said(lab, lab.job(NOTHING))


def test_hosts_are_checked_where_they_stand(lab: Lab) -> None:
    job = lab.folder / "bad.yaml"
    (lab.folder / "t.py").write_text(NOTHING)
    job.write_text("program: t.py\nhosts:\n  - me@good:22\n  - -oProxyCommand=evil\n  - ssh://a\n  - b:99999\n")
    done = lab.trainshed("run", str(job), "--on", "ssh")
    assert done.returncode == 2
    for line in ("bad.yaml:4: hosts.1", "bad.yaml:5: hosts.2", "bad.yaml:6: hosts.3"):
        assert line in done.stderr
    assert "hosts.0" not in done.stderr


def test_dry_run_connects_to_nobody(lab: Lab) -> None:
    lab.add("a").stop()
    done = lab.trainshed("run", str(lab.job(NOTHING)), "--on", "ssh", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "hosts       algo-1, on a" in done.stdout
    assert f"on a: sends code to {lab.there}/runs/far-" in done.stdout


def test_a_job_without_hosts(lab: Lab) -> None:
    (lab.folder / "t.py").write_text(NOTHING)
    done = lab.trainshed("run", "t.py", "--on", "ssh")
    assert done.returncode == 2 and "hosts" in done.stderr and "--hosts user@a,user@b" in done.stderr


def test_the_doctor_tells_of_each_machine(lab: Lab) -> None:
    """All at once, good and bad ones; and then whether they reach each other."""
    for name in "abc":
        lab.add(name)
    job = lab.job(NOTHING)
    done = lab.trainshed("doctor", "--cluster", str(job))
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"ok    {name} " in done.stdout for name in "abc") and "ok    clocks" in done.stdout
    assert "ok    ports" in done.stdout and "all reach each other: a at " in done.stdout
    lab.machines["b"].stop()
    done = lab.trainshed("doctor", "--cluster", str(job), "--hosts", "a,b")
    assert done.returncode == 1 and "ok    a " in done.stdout and "c " not in done.stdout
    assert "fail  b " in done.stdout and "nothing answers at its ssh port" in done.stdout
    done = lab.trainshed("doctor", "--cluster", "--hosts", "ssh://a")
    assert done.returncode == 1 and "is an address of another kind" in done.stdout
    assert lab.trainshed("doctor", "--hosts", "a").returncode == 2
