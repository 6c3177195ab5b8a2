"""What accelerate saves of FSDP2, on two ranks: fsdp_peer.py FOLDER makes a folder in it for
each kind of state dict. accelerate itself wants GPUs for FSDP; its functions that write the
files do not."""

import os
import sys
from types import SimpleNamespace

import accelerate
import torch
import torch.distributed as dist
import transformers
from accelerate.utils.fsdp_utils import save_fsdp_model, save_fsdp_optimizer
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (FullStateDictConfig, ShardedStateDictConfig,
                                    StateDictType, fully_shard)

KINDS = {StateDictType.SHARDED_STATE_DICT: ShardedStateDictConfig,
         StateDictType.FULL_STATE_DICT: FullStateDictConfig}


def main():
    accelerate.PartialState(cpu=True)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, n_positions=16, vocab_size=256))
    mesh = init_device_mesh("cpu", (2,))
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        ids = torch.randint(0, 256, (4, 16))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for kind, config in KINDS.items():
        folder = os.path.join(sys.argv[1], kind.name)
        plugin = SimpleNamespace(fsdp_version=2, state_dict_type=kind,
                                 state_dict_config=config())
        accelerator = SimpleNamespace(
            num_processes=2, process_index=dist.get_rank(), is_fsdp2=True,
            is_main_process=dist.get_rank() == 0, wait_for_everyone=dist.barrier)
        save_fsdp_model(plugin, accelerator, model, folder)
        save_fsdp_optimizer(plugin, accelerator, optimizer, model, folder)
    weights, states = get_state_dict(model, optimizer, options=StateDictOptions(
        full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        torch.save({"model": weights, "states": states["state"]},
                   os.path.join(sys.argv[1], "wanted.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
