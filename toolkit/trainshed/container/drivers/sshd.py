"""Wrapper of `/usr/sbin/sshd`: gives the hosts of a job with SDK v3's MPI driver a key for this job alone.

The driver needs ssh from root to root on every host, without a password and without a prompt. Other images that serve it
contain one key pair for all their users. Ours contain none: each host derives the same key from the description of the
job (name, config files, drivers, and `TRAINSHED_ROSTER_TOKEN` if the job's environment has it), as host key and as root's
key, and recognizes the job's hosts by it. Anyone who knows the whole description could derive the key; the token prevents
that.

Existing keys, of an image derived from ours, are left unchanged.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
import subprocess
import sys

from trainshed.contract.wire.variables import ROSTER_TOKEN

from .interfaces import DRIVER_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

REAL = "/usr/sbin/sshd.distrib"  # where images/install/system.sh moves Debian's
DESCRIBED_BY = (
    "input/config/hyperparameters.json",
    "input/config/inputdataconfig.json",
    "input/data/sm_drivers/sm_train.sh",
    "input/data/sm_drivers/sourcecode.json",
    "input/data/sm_drivers/distributed.json",
)
_NAMES = (ROSTER_TOKEN, "TRAINING_JOB_NAME", "TRAINING_JOB_ARN", "SM_HOSTS")
_KEY_TYPE = b"ssh-ed25519"
_OWN_TO_A_LOGIN = ("HOME", "HOSTNAME", "LOGNAME", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "USER", "_")


def job_seed(environ: Mapping[str, str], base: str = "/opt/ml") -> bytes:
    """32 bytes that are equal on every host of a job and differ between jobs."""
    digest = hashlib.sha256(json.dumps([environ.get(name, "") for name in _NAMES]).encode())
    for name in DESCRIBED_BY:
        try:
            with open(f"{base}/{name}", "rb") as file:
                digest.update(hashlib.sha256(file.read()).digest())
        except OSError:
            digest.update(b"absent")
    return digest.digest()


def key_pair(seed: bytes) -> tuple[str, str]:
    """An Ed25519 key from 32 bytes: the private key's file (OpenSSH's format) and the public key's two words.

    Raises:
        ImportError: `cryptography`, which paramiko brings, is not installed.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(seed)
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.Raw, form.PublicFormat.Raw)
    blob = b"".join(struct.pack(">I", len(part)) + part for part in (_KEY_TYPE, public))
    return private.decode(), f"{_KEY_TYPE.decode()} {base64.b64encode(blob).decode()}"


def install(folder: str, hosts: list[str], private: str, public: str) -> str:
    """Puts the job's key into a user's .ssh folder: as the user's key, as an authorized key, as the key of all hosts.

    Returns the private key's path; "" if the user already has a key of this kind, which is left unchanged.
    """
    own = f"{folder}/id_ed25519"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    try:
        file = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        with open(own) as old:
            return own if old.read() == private else ""
    with os.fdopen(file, "w") as new:
        new.write(private)
    with open(f"{own}.pub", "w") as new:
        new.write(f"{public}\n")
    for name, line in (("authorized_keys", public), ("known_hosts", f"{','.join(hosts)} {public}")):
        with open(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file_of_lines:
            file_of_lines.write(f"{line}\n")
    return own


def write_environment(folder: str, environ: Mapping[str, str]) -> None:
    """Writes this host's variables for logins from other hosts: a rank then has the SM_CURRENT_HOST of its host.

    The driver appends them to /etc/environment for this purpose, which PAM does not read in every container.
    """
    lines = [
        f"{name}={value}\n" for name, value in environ.items() if name not in _OWN_TO_A_LOGIN and "\n" not in name + value
    ]
    with open(os.open(f"{folder}/environment", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.writelines(lines)


def options(environ: Mapping[str, str], home: str) -> list[str]:
    """sshd's additional options for a job of the MPI driver; [] without that driver."""
    if not environ.get(DRIVER_VARIABLE) or os.geteuid() != 0:
        return []
    chosen = ["-o", "PasswordAuthentication=no", "-o", "KbdInteractiveAuthentication=no"]
    try:
        hosts = [str(host) for host in json.loads(environ.get("SM_HOSTS") or "[]")]
        if len(hosts) < 2:  # no host will connect, but the driver needs sshd to run
            return chosen
        key = install(f"{home}/.ssh", hosts, *key_pair(job_seed(environ)))
        write_environment(f"{home}/.ssh", environ)
    except (OSError, ImportError, ValueError) as error:
        print(f"trainshed: sshd: the key for this job could not be made: {error}", file=sys.stderr, flush=True)
        return chosen
    return [*chosen, "-o", "PermitUserEnvironment=yes", *(["-h", key] if key else [])]


def main() -> None:
    """Executes the real sshd."""
    if not os.access(REAL, os.X_OK):
        sys.exit("trainshed: sshd is missing: the image was built with WITH_MPI=0")
    os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    chosen = options(os.environ, os.path.expanduser("~root"))
    if "-h" not in chosen and os.geteuid() == 0:  # a container's own host keys, where it has none; no image carries any
        subprocess.run(["ssh-keygen", "-A"], stdout=subprocess.DEVNULL, check=False)
    os.execv(REAL, [REAL, *chosen, *sys.argv[1:]])


if __name__ == "__main__":
    main()
