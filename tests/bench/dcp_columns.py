"""bench_columns for PyTorch's distributed checkpoint: usage: dcp_columns.py WORLD

Bytes are those that read() and its kind gave the ranks, as the kernel counts them."""

import multiprocessing
import os
import sys
import tempfile

os.environ |= {"USE_LIBUV": "0", "GLOO_SOCKET_IFNAME": "lo"}

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

SIDE, TENSORS = 2048, 4


def bytes_read():
    with open("/proc/self/io", encoding="ascii") as f:
        return int(next(line for line in f if line.startswith("rchar:")).split()[1])


def state_of(world, dim):
    mesh = init_device_mesh("cpu", (world,))
    shape = [SIDE, SIDE]
    shape[dim] //= world
    return {f"w.{t}": DTensor.from_local(torch.ones(shape), mesh, [Shard(dim)], run_check=False)
            for t in range(TENSORS)}


def run(rank, world, folder, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                            world_size=world)
    dcp.save(state_of(world, 0), checkpoint_id=os.path.join(folder, "saved"))
    state = state_of(world, 1)
    dist.barrier()
    before = bytes_read()
    dcp.load(state, checkpoint_id=os.path.join(folder, "saved"))
    results.put(bytes_read() - before)
    dist.barrier()


def main():
    world = int(sys.argv[1])
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        ranks = [context.Process(target=run, args=(r, world, folder, results))
                 for r in range(world)]
        for rank in ranks:
            rank.start()
        total = sum(results.get() for _ in ranks)
        for rank in ranks:
            rank.join()
    print(f"shares {total / (SIDE * SIDE * 4 * TENSORS):.6f}")


main()
