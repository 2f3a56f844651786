"""Under torchrun, a program that knows torch alone, uses the accl backend, and leaves without
destroying it.
"""

import torch
import torch.distributed as dist

dist.init_process_group("accl")
x = torch.ones(1)
dist.all_reduce(x)
print(f"sum {x.item():.0f}", flush=True)
