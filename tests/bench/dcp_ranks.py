"""bench_ranks for PyTorch's distributed checkpoint: usage: dcp_ranks.py WORLD BYTES TENSORS"""

import multiprocessing
import os
import resource
import sys
import tempfile
import time

os.environ |= {"USE_LIBUV": "0", "GLOO_SOCKET_IFNAME": "lo"}

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def state_of(rank, world, size, n_tensors):
    n = size // n_tensors // 4 // world
    torch.manual_seed(rank)
    state = {f"h.{i}.weight": torch.randn(n) for i in range(n_tensors)}
    if world == 1:
        return state
    mesh = init_device_mesh("cpu", (world,))
    return {k: DTensor.from_local(v, mesh, [Shard(0)], run_check=False)
            for k, v in state.items()}


def cpu_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run(rank, world, size, n_tensors, store, orders, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    state = state_of(rank, world, size, n_tensors)
    while True:
        dist.barrier()
        order = orders.get()
        if not order:
            return
        act, folder = order
        dist.barrier()
        began, used = time.monotonic(), cpu_s()
        (dcp.save if act == "save" else dcp.load)(state, checkpoint_id=folder)
        results.put((time.monotonic() - began, cpu_s() - used))


def main():
    world, size, n_tensors = map(int, sys.argv[1:])
    context = multiprocessing.get_context("fork")
    orders = [context.SimpleQueue() for _ in range(world)]
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(world):
            context.Process(target=run, args=(
                rank, world, size, n_tensors, os.path.join(folder, "store"), orders[rank],
                results)).start()
        for line in sys.stdin:
            for queue in orders:
                queue.put(line.rstrip("\n").split(" ", 1))
            taken = [results.get() for _ in range(world)]
            print(max(t[0] for t in taken), sum(t[1] for t in taken), 0, flush=True)
        for queue in orders:
            queue.put(None)


main()
