"""One process that plays cases: `python rank.py FOLDER`, with what to play in FOLDER/works.

What it finds of a case is in FOLDER/NUMBER.RANK.
"""

from __future__ import annotations

import io
import os
import pickle
import random
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any


def main() -> None:
    """Plays all, each with process groups of its own."""
    import numpy
    import torch
    import torch.distributed as dist
    import torch.distributed.tensor  # here, so that no case waits for it

    import trainshed.parallel as pipe
    from hostile import kit, table, trials
    from hostile.combinations import ALONE, COMBINATIONS

    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    first, names, combination_name, seed = pickle.loads((folder / "works").read_bytes())
    combination = {**COMBINATIONS, ALONE.name: ALONE}[combination_name]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store: Any = None
    if combination.ranks:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, world, rank == 0, timeout=timedelta(seconds=600))
    table.set_seed(seed)
    cases = {**table.cases(), **trials.TRIALS}
    for number, name in enumerate(names, first):
        print(f"--- {name}", flush=True)
        if store is not None:
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore(f"{number}/", store),
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=kit.SECONDS),
            )
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        one: kit.Kit = kit.PipelineKit(combination) if combination.ranks else kit.AloneKit()
        started, said = time.monotonic(), io.StringIO()
        try:
            with redirect_stdout(said), redirect_stderr(said), kit.planned_by_seed(f"{seed} {name}"):
                cases[name](one)
            found: Any = ("done", one.found, one.parts)
        except pipe.PipelineError as error:
            found = ("refused", type(error).__name__, error.message, error.hint, traceback.format_exc()[-3000:])
        except Exception as error:
            found = ("crashed", type(error).__name__, str(error), "", traceback.format_exc()[-3000:])
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_grad_enabled(True)
        path = Path(folder, f"{number}.{rank}")
        new = Path(folder, f"{number}.{rank}.new")
        new.write_bytes(pickle.dumps((found, time.monotonic() - started)))
        new.rename(path)
        if store is not None:
            store.add(f"{number}/ended", 1)
            while store.add(f"{number}/ended", 0) < world:
                time.sleep(0.1)
        pipe.shutdown()
        if store is not None:
            dist.destroy_process_group()
    if store is not None and rank == 0:  # the store is here
        while store.add("left", 0) < world - 1:
            time.sleep(0.1)
    elif store is not None:
        store.add("left", 1)
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may hold tensors


if __name__ == "__main__":
    main()
