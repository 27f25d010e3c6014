"""Dies with words that drivers and NCCL say, which nobody can provoke on purpose."""

from __future__ import annotations

import argparse

WORDS = {
    "ecc": "RuntimeError: CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronous",
    "bus": "RuntimeError: CUDA error: unknown error\nNVRM: Xid (PCI:0000:3b:00): 79, pid=4242, GPU has fallen off the bus.",
    "remote": "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a "
    "network error, NCCL version 2.27.5\nncclRemoteError: A call failed possibly due to a network error or a remote "
    "process exiting prematurely.",
}


def main() -> None:
    """One job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=WORDS)
    raise RuntimeError(WORDS[parser.parse_args().kind].removeprefix("RuntimeError: "))


if __name__ == "__main__":
    main()
