"""Training scripts that the tests of both SDKs run."""

# Leaves what a script can see in the model: arguments, variables, channels.
LOOK = """\
import json, os, sys
names = json.loads(os.environ["SM_CHANNELS"])
channels = {name: sorted(os.listdir(os.environ["SM_CHANNEL_" + name.upper()])) for name in names}
seen = {"argv": sys.argv[1:], "env": dict(os.environ), "channels": channels, "cwd": os.getcwd()}
host = "-".join(os.environ["SM_CURRENT_HOST"].split("-")[:2])  # of SDK v2 the names go on
with open(os.path.join(os.environ["SM_MODEL_DIR"], f"{host}.{os.environ.get('RANK', '0')}.json"), "w") as file:
    json.dump(seen, file)
"""
ADD_UP = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(dist.get_rank() + 1)
dist.all_reduce(total)
open(f"{os.environ['SM_MODEL_DIR']}/rank{dist.get_rank()}.txt", "w").write(f"{int(total)} of {dist.get_world_size()}")
dist.barrier()  # whoever exits first has the others ended
dist.destroy_process_group()
"""
