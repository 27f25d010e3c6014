"""Two ranks meet over gloo and add up a tensor."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == dist.get_world_size() == 2, f"all_reduce gave {total.item()}, wanted 2"
dist.destroy_process_group()
