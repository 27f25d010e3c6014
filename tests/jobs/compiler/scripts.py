"""Training scripts that know nothing of the compiler, small enough to be compiled in a test; each prints its losses."""

from __future__ import annotations

import json

_LOOP = """
torch.manual_seed(0)
model = build()
{wrap}
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
generator = torch.Generator().manual_seed(1 + rank)
losses = []
for step in range(int(os.environ.get("STEPS", "20"))):
    x, y = batch(generator)
    loss = torch.nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("LOSSES " + json.dumps({{"rank": rank, "losses": losses, "names": sorted(model.state_dict())}}), flush=True)
"""

_HEAD = """
import json, os
import torch
from torch import nn

torch.set_num_threads(1)
rank = int(os.environ.get("RANK", "0"))
"""

# Layers of other shapes, so it is compiled as a whole: the smallest that has something to fuse.
_PYRAMID = """
class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear({width}, 8), nn.Linear(8, 5)
    def forward(self, x):
        return self.narrow(torch.tanh(self.wide(x)) * 2)

def build():
    return Pyramid()

def batch(generator):
    return torch.randn(4, {width}, generator=generator), torch.randint(0, 5, (4,), generator=generator)
"""
PYRAMID = _HEAD + _PYRAMID.format(width=6) + _LOOP.format(wrap="")

# Convolutions, batch norm and a skip: blocks that are alike in kind, not in shape, so it is compiled as a whole.
RESNET = (
    _HEAD
    + """
class Block(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.first, self.second = nn.Conv2d(i, o, 3, padding=1, bias=False), nn.Conv2d(o, o, 3, padding=1, bias=False)
        self.one, self.two, self.skip = nn.BatchNorm2d(o), nn.BatchNorm2d(o), nn.Conv2d(i, o, 1)
    def forward(self, x):
        return torch.relu(self.two(self.second(torch.relu(self.one(self.first(x))))) + self.skip(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.Sequential(Block(3, 4), Block(4, 8)), nn.Linear(8, 5)
    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))

def build():
    return Net()

def batch(generator):
    return torch.randn(4, 3, 8, 8, generator=generator), torch.randint(0, 5, (4,), generator=generator)
"""
    + _LOOP.format(wrap="")
)

# Four blocks that are alike, with dropout: one of them is compiled for all.
_TRANSFORMER = """
class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down, self.drop = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.Dropout(0.1)
    def forward(self, x):
        return x + self.drop(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 16), nn.Linear(16, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(4))
    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = {call}
        return self.head(x)

def build():
    return Model()

def batch(generator):
    return torch.randint(0, 16, (4, 6), generator=generator), torch.randint(0, 16, (4, 6), generator=generator)
"""
BLOCKS = _HEAD + _TRANSFORMER.format(call="block(x)") + _LOOP.format(wrap="")

# Ends without taking the interpreter apart: gloo's threads may still want it then, which aborts a process now and then.
_END = """
import atexit, sys
dist.destroy_process_group()
atexit._run_exitfuncs()
sys.stdout.flush()
os._exit(0)
"""
_GROUP = """
import torch.distributed as dist
dist.init_process_group("gloo")
"""
DDP = (
    _HEAD
    + _GROUP
    + _TRANSFORMER.format(call="block(x)")
    + _LOOP.format(wrap="model = nn.parallel.DistributedDataParallel(model)")
    + _END
)
# As a whole and of a shape of its own, so that its graphs are in no cache before the two ranks meet them ...
DDP_PYRAMID = (
    _HEAD
    + _GROUP
    + _PYRAMID.format(width=7)
    + _LOOP.format(wrap="model = nn.parallel.DistributedDataParallel(model)")
    + _END
)
# ... and what it comes to in one process: the gradient of the mean of both ranks' losses.
TOGETHER = (
    _HEAD
    + _PYRAMID.format(width=7)
    + """
torch.manual_seed(0)
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
generators = [torch.Generator().manual_seed(1 + rank) for rank in range(2)]
losses = [[], []]
for step in range(20):
    optimizer.zero_grad()
    for rank, generator in enumerate(generators):
        x, y = batch(generator)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        (loss / 2).backward()
        losses[rank].append(loss.item())
    optimizer.step()
for rank in range(2):
    names = sorted("module." + name for name in model.state_dict())
    print("LOSSES " + json.dumps({"rank": rank, "losses": losses[rank], "names": names}))
"""
)
FSDP2 = (
    _HEAD
    + _GROUP
    + _TRANSFORMER.format(call="block(x)")
    + _LOOP.format(
        wrap="from torch.distributed.fsdp import fully_shard\n"
        "for block in model.blocks:\n    fully_shard(block)\nfully_shard(model)"
    )
    + _END
)
# torch's older sharding: one flat parameter instead of the model's own, unless use_orig_params says otherwise.
FSDP1 = (
    _HEAD
    + _GROUP
    + "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    + _TRANSFORMER.format(call="block(x)")
    + _LOOP.format(wrap="model = FSDP(model, device_id=torch.device('cpu'), use_orig_params=True)")
    + _END
)
FLAT_FSDP1 = FSDP1.replace("use_orig_params=True", "use_orig_params=False")
# torch cannot trace it while there are gradients, which are sharded: this script drops them right after the step.
_ZERO, _STEP = "    optimizer.zero_grad()\n", "    optimizer.step()\n"
FSDP1_WITHOUT_GRADIENTS = FSDP1.replace(_ZERO, "").replace(_STEP, _STEP + _ZERO)
CHECKPOINTED = (
    _HEAD
    + "from torch.utils.checkpoint import checkpoint\n"
    + _TRANSFORMER.format(call="checkpoint(block, x, use_reentrant=False)")
    + _LOOP.format(wrap="")
)
AUTOCAST = BLOCKS.replace(
    "    loss = torch.nn.functional.cross_entropy",
    "    with torch.autocast('cpu', torch.bfloat16):\n        loss = torch.nn.functional.cross_entropy",
)

# What makes torch give a frame up, as its own defects do.
UNTRACEABLE = BLOCKS.replace(
    "rank = int",
    """
from torch._dynamo import symbolic_convert
def run(self):
    raise RuntimeError("this was never thought of")
symbolic_convert.InstructionTranslator.run = run
rank = int""",
    1,
)

# The Trainer with a model of two layers: what counts is who compiles it.
SMALL_TRAINER = """
import json, os
import torch
from transformers import Trainer, TrainingArguments

torch.manual_seed(1)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(6, 8), torch.nn.Linear(8, 4)
    def forward(self, x, labels):
        return {"loss": torch.nn.functional.cross_entropy(self.narrow(torch.tanh(self.wide(x))), labels)}

x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
trainer = Trainer(
    Model(),
    TrainingArguments(
        output_dir=os.environ["SM_OUTPUT_DATA_DIR"] + "/trainer", max_steps=20, per_device_train_batch_size=8,
        logging_steps=1, report_to=[], disable_tqdm=True, save_strategy="no", seed=3, learning_rate=0.1, use_cpu=True,
    ),
    train_dataset=[{"x": row, "labels": row[:4].argmax()} for row in x],
)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
trainer.save_model(os.environ["SM_MODEL_DIR"])
from safetensors import safe_open
with safe_open(os.environ["SM_MODEL_DIR"] + "/model.safetensors", "pt") as file:
    names = sorted(file.keys())
print("LOSSES " + json.dumps({"rank": 0, "losses": losses, "names": names}), flush=True)
"""

TRAINER = """
import json, os
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

torch.set_num_threads(1)
set_seed(1)
config = GPT2Config(n_layer=3, n_head=2, n_embd=16, vocab_size=32, n_positions=16, use_cache=False)
model = GPT2LMHeadModel(config)
tokens = torch.randint(0, 32, (64, 8), generator=torch.Generator().manual_seed(0))
trainer = Trainer(
    model,
    TrainingArguments(
        output_dir=os.environ["SM_OUTPUT_DATA_DIR"] + "/trainer", max_steps=int(os.environ.get("STEPS", "20")),
        per_device_train_batch_size=2, logging_steps=1, report_to=[], disable_tqdm=True, save_strategy="no", seed=3,
        optim="adamw_torch", use_cpu=True,
    ),
    train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
trainer.save_model(os.environ["SM_MODEL_DIR"])
from safetensors import safe_open
with safe_open(os.environ["SM_MODEL_DIR"] + "/model.safetensors", "pt") as file:
    names = sorted(file.keys())
print("LOSSES " + json.dumps({"rank": int(os.environ.get("RANK", "0")), "losses": losses, "names": names}), flush=True)
"""


def losses_of(output: str) -> dict[int, dict[str, object]]:
    """Rank -> what its script printed: losses, and the names in its state."""
    found = [json.loads(line.partition("LOSSES ")[2]) for line in output.splitlines() if "LOSSES " in line]
    return {value["rank"]: value for value in found}
