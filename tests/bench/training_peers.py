"""Ways to save and load the state of a training run, libdcp's and those it is held against.
What has been saved is on the disk when a way says so: who does not sync files has them synced
here."""

import glob
import os
import resource

import libdcp
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch_checkpointing
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig


def locals_of(state):
    """The tensors of this rank."""
    return {name: tensor.to_local() for name, tensor in state.items()}


def sync(pattern):
    for name in glob.glob(pattern):
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


class Way:
    """Saves and loads a state {name: DTensor of dim 0, cut evenly}; all ranks call it."""

    newest = None  # the step that was saved last

    def __init__(self, folder):
        self.folder = os.path.join(folder, type(self).__name__)
        if dist.get_rank() == 0:
            os.makedirs(self.folder, exist_ok=True)
        dist.barrier()

    def path(self, step):
        return os.path.join(self.folder, f"step-{step:08d}")

    def save(self, state, step):
        raise NotImplementedError

    def start(self, state, step):
        """Begins to save; what it returns waits for the end. None: it cannot."""
        return None

    def load(self, state, step):
        raise NotImplementedError

    def load_others(self, state, step, world):
        """Loads what a run of another world size saved."""
        self.load(state, step)

    def end(self):
        pass


class Ours(Way):
    name = "libdcp"

    def save(self, state, step):
        libdcp.save(state, self.folder, step=step)

    def start(self, state, step):
        return libdcp.save_async(state, self.folder, step=step).wait

    def load(self, state, step):
        libdcp.load(state, self.folder)


class Dcp(Way):
    """torch.distributed.checkpoint as it is called by most."""

    name = "DCP"

    def __init__(self, folder):
        super().__init__(folder)
        self.beside = dist.new_group(backend="gloo")

    def save(self, state, step):
        dcp.save(state, storage_writer=dcp.FileSystemWriter(self.path(step)))

    def start(self, state, step):
        return dcp.async_save(state, storage_writer=dcp.FileSystemWriter(self.path(step)),
                              process_group=self.beside).result

    def load(self, state, step):
        dcp.load(state, storage_reader=dcp.FileSystemReader(self.path(step)))


class DcpBest(Dcp):
    """Plans are kept, staging memory too, two threads write; a load asks no other rank."""

    name = "DCP, best settings"

    def __init__(self, folder):
        super().__init__(folder)
        self.stager = DefaultStager(StagingOptions(False, False, False, False))

    def how(self, step):
        return {"storage_writer": dcp.FileSystemWriter(self.path(step), thread_count=2),
                "planner": DefaultSavePlanner(enable_plan_caching=True)}

    def save(self, state, step):
        dcp.save(state, **self.how(step))

    def start(self, state, step):
        return dcp.async_save(state, **self.how(step), process_group=self.beside,
                              async_stager=self.stager).result

    def load(self, state, step):
        dcp.load(state, storage_reader=dcp.FileSystemReader(self.path(step)), no_dist=True)

    def end(self):
        self.stager.close()


class TorchCheckpointing(Way):
    """Each rank its tensors, whole: without CUDA it cannot save parts of a tensor."""

    name = "torch_checkpointing"
    def __init__(self, folder):
        super().__init__(folder)
        # O_DIRECT is nothing that a file system in memory can do.
        storage = LocalFileSystemStorageConfig(use_direct_io=False)
        self.now, self.later = (
            torch_checkpointing.CheckpointManager(torch_checkpointing.CheckpointManager.Config(
                items={}, save=save, storage_config=storage))
            for save in (torch_checkpointing.SyncCheckpointSaverConfig(),
                         torch_checkpointing.AsyncCheckpointSaverConfig()))

    def save(self, state, step):
        self.now.save(self.path(step), {"model": locals_of(state)})
        dist.barrier()  # rank 0 publishes when all have written
        sync(os.path.join(self.path(step), f"*_{dist.get_rank()}.pt"))

    def start(self, state, step):
        if len(state) + 100 > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
            return None  # each is staged in an open file
        written = self.later.save(self.path(step), {"model": locals_of(state)})
        with self.later.lock():  # what is staged meanwhile must not change
            return written.result

    def load(self, state, step):
        self.now.load(self.path(step), into={"model": locals_of(state)})

    load_others = None

    def end(self):
        self.now.close()
        self.later.close()


class Files(Way):
    """Each rank a file of its own tensors."""

    def file(self, step, rank=None):
        rank = dist.get_rank() if rank is None else rank
        return f"{self.path(step)}-{rank}.{self.ending}"

    def save(self, state, step):
        self.write(locals_of(state), self.file(step))
        sync(self.file(step))

    def load(self, state, step):
        read = self.read(self.file(step))
        for name, tensor in locals_of(state).items():
            tensor.copy_(read[name])

    def load_others(self, state, step, world):
        """By hand: the rows of this rank, from the files that they lie in."""
        files = [self.rows(self.file(step, rank)) for rank in range(world)]
        share = {name: tensor.size(0) // world for name, tensor in state.items()}
        for name, tensor in locals_of(state).items():
            begin = dist.get_rank() * len(tensor)
            for rank in range(world):
                low = max(begin, rank * share[name])
                high = min(begin + len(tensor), (rank + 1) * share[name])
                if low < high:
                    first = rank * share[name]
                    part = files[rank](name)[low - first:high - first]
                    tensor[low - begin:high - begin].copy_(part)


class Safetensors(Files):
    name = "safetensors"
    ending = "safetensors"
    write = staticmethod(save_file)
    read = staticmethod(load_file)

    @staticmethod
    def rows(path):
        return safe_open(path, "pt").get_slice


class TorchSave(Files):
    name = "torch.save"
    ending = "pt"
    write = staticmethod(torch.save)

    @staticmethod
    def read(path):
        return torch.load(path, mmap=True)

    @classmethod
    def rows(cls, path):
        return cls.read(path).__getitem__


WAYS = (Ours, Dcp, DcpBest, TorchCheckpointing, Safetensors, TorchSave)
