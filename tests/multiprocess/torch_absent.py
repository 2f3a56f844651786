"""Under torchrun with 2 ranks: rank 1 never makes the group; rank 0 prints the error that it gets."""

import os
from datetime import timedelta

import torch.distributed as dist

store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
if os.environ["RANK"] == "0":
    own = dist.PrefixStore("absent", store)
    try:
        dist.init_process_group(
            "accl", store=own, rank=0, world_size=2, timeout=timedelta(seconds=2)
        )
    except RuntimeError as error:
        print(error, flush=True)
    store.set("seen", "yes")
else:
    store.wait(["seen"], timedelta(seconds=30))
