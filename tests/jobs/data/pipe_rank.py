"""A rank that reads a channel in Pipe mode: `python pipe_rank.py PATH BATCH WORKERS EPOCHS [STATE]`; prints what it gets.

With - for WORKERS it takes the records of its batches from the stream itself, without torch, which takes long to import.
"""

from __future__ import annotations

import json
import os
import sys

from trainshed.data.channels import ChannelFacts
from trainshed.data.errors import DataError
from trainshed.data.formats.recordio import RecordIO
from trainshed.data.pipe_stream import Stream


def main() -> None:
    path, batch, workers, epochs, *state = sys.argv[1:]
    facts = ChannelFacts("train", path, "Pipe", sharded=os.environ.get("SHARDED") == "1")
    stream = Stream(facts, RecordIO())
    loader = None if workers == "-" else stream.loader(int(batch), workers=int(workers))
    if loader is not None and state:
        loader.load_state_dict(json.loads(state[0]))
    stops = os.environ.get("STOP_OF", os.environ.get("RANK")) == os.environ.get("RANK")
    stop = int(os.environ.get("STOP", 10**9)) if stops else 10**9
    try:
        for _ in range(int(epochs)):
            if loader is None:
                stream.begun()
            batches = stream.rounds(int(batch), 0) if loader is None else loader
            for number, records in enumerate(batches, 1):
                print("batch", *[record.decode() for record in records], flush=True)
                if number == stop:
                    break
            print("epoch", "" if loader is None else json.dumps(loader.state_dict()), flush=True)
    except DataError as error:
        print("error", error.message, flush=True)


if __name__ == "__main__":
    main()
