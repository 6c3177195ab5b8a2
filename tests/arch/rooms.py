"""Rooms: the folders of a layer, on floors. What a file may include follows from them.

A room includes itself and rooms on floors below its own; of the other layers it knows
what rules.includes says. docs/ARCHITECTURE.md draws this table.
"""

import os
import re

# For each layer its floors, the lowest first: the rooms, each with its one subject; ""
# is the layer's own folder.
FLOORS = {
    "formats": (
        {"pickle": "pickles, read without running them, and written"},
        {"common": "files of a source, roles, training state, merging"},
        {"archive": "zip, tar, zstd", "models": "names and shapes of known models"},
        {"foreign": "what is told, and not read", "numpy": ".npy and .npz"},
        {"torch": "what files of torch.save are made of"},
        {"state_dict": "keys and nesting of a state dict"},
        {
            "torch_save": "a file of torch.save",
            "safetensors": "one file, or shards with an index",
            "native": "our own steps, and bundles of them",
            "gguf": "llama.cpp",
            "llmc": "llm.c, models and runs",
        },
        {
            "meta_llama": "Llama as Meta publishes it",
            "fsdp": "files of FSDP's ranks",
            "deepspeed": "ZeRO 0 to 3, and universal",
        },
        {"torch_dist": "torch.distributed.checkpoint"},
        {"hf": "Hugging Face: models, Trainer, accelerate"},
        {"scan": "the pickles in any source"},
        {"": "the table of formats"},
    ),
    "libdcp/core": (
        {
            "collective": "how all ranks come to one answer",
            "catalog": "tensors, pieces, objects, and their dtypes",
            "training": "what a training state is beside its tensors",
        },
        {
            "files": "bytes of files, streams and codecs",
            "delta": "a folder by what differs from another",
            "integrity": "fingerprints, checksums of records",
            "parity": "Reed-Solomon, and reading through it",
            "plan": "who owns what; copies from one catalog to another",
        },
        {
            "read": "verified blocks, and the copy engine",
            "run": "the steps of a run: find, pin, prune, publish",
        },
        {
            "write": "staging, files, and how a step is finished",
            "verify": "what is corrupt, and what is lost by it",
        },
        {
            "sign": "who made a step",
            "parts": "a reshard that many processes make",
        },
        {"": "the acts: save, load, reshard, repair"},
    ),
    "libdcp/port": (
        {
            "comm": "the control plane: threads, MPI, TCP",
            "store": "names to bytes: folders, memory, archives",
            "device": "memory of the host and of GPUs",
        },
    ),
    "trainer": (
        {"ops": "the table of kernels, and what they share"},
        {"ops/cpu": "readable kernels, the oracle"},
        {"ops/dnn": "oneDNN and BLAS", "ops/cuda": "CUDA, cuBLASLt, cuDNN"},
        {"coll": "all-gather, reduce-scatter, all-reduce"},
        {
            "model": "families of models, forward and backward",
            "data": "tokens, and the order of samples",
            "launch": "processes, and how they find each other",
        },
        {"config": "the configuration", "shard": "ZeRO: who holds and updates what"},
        {"state": "what a checkpoint of the trainer holds"},
        {"run": "train, resume, save, evaluate, generate"},
        {"": "argv to a run"},
    ),
}
CODE = (".c", ".h", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def room_of(path):
    """The layer and the room of a source; None where there are no rooms."""
    for layer in FLOORS:
        if path.startswith(layer + "/"):
            return layer, os.path.dirname(path)[len(layer) + 1 :]
    return None


def spelled(path):
    """How includes of the layer's rooms begin: "formats/", "core/"."""
    return room_of(path)[0].removeprefix("libdcp/") + "/"


def floor_of(layer, room):
    for number, floor in enumerate(FLOORS[layer]):
        if room in floor:
            return number
    return None


def resolve(tree, path, name):
    """The file that `#include "name"` in a source means; None: there is none."""
    for file in (f"{os.path.dirname(path)}/{name}", f"libdcp/{name}", name):
        if file in tree.files:
            return file
    return None


def edges(tree, folders=("",)):
    """path, included file, line number, of every include of an own header."""
    for path, text in tree.select(CODE, folders):
        for match in INCLUDE.finditer(text):
            target = resolve(tree, path, match.group(1))
            if target:
                yield path, target, text.count("\n", 0, match.start(1)) + 1


def floors(tree):
    """A room includes itself and rooms below it."""
    for path, _ in tree.select(CODE, tuple(FLOORS)):
        layer, room = room_of(path)
        if floor_of(layer, room) is None:
            yield f"{path}:1: {layer}/{room} is on no floor of tests/arch/rooms.py"
    for path, target, number in edges(tree, tuple(FLOORS)):
        here, there = room_of(path), room_of(target)
        if here == there or not there or here[0] != there[0]:
            continue
        mine, its = floor_of(*here), floor_of(*there)
        if mine is not None and its is not None and its >= mine:
            yield f"{path}:{number}: {target} is not on a floor below"


def needs(tree):
    """What each part (a .c, and the .h of its name) uses: part to parts, with a place.

    A header without a source of its own is no part: who includes it uses what it uses.
    """
    parts = {os.path.splitext(p)[0] for p, _ in tree.select((".c", ".cu"))}
    uses = {}
    for path, target, number in edges(tree):
        uses.setdefault(path, []).append((target, number))

    def reached(path, seen):
        for target, number in uses.get(path, ()):
            if target in seen:
                continue
            seen.add(target)
            part = os.path.splitext(target)[0]
            if part in parts:
                yield part, number
            else:
                for inner, _ in reached(target, seen):
                    yield inner, number

    graph = {}
    for path in uses:
        part = os.path.splitext(path)[0]
        for other, number in reached(path, {path}):
            if part in parts and other != part:
                graph.setdefault(part, {}).setdefault(other, f"{path}:{number}")
    return graph


def cycles(tree):
    """No two files need each other, directly or through others."""
    graph = needs(tree)

    def way(start, goal):
        """A chain of uses from start to goal."""
        before, todo = {start: None}, [start]
        for part in todo:
            for other in graph.get(part, ()):
                if other not in before:
                    before[other] = part
                    todo.append(other)
        chain, part = [], goal
        while part in before and part is not None:
            chain.append(part)
            part = before[part]
        return chain[::-1]

    told = set()
    for part, others in sorted(graph.items()):
        for other, place in sorted(others.items()):
            chain = way(other, part)
            if chain and not told & set(chain):
                told |= set(chain)
                yield f"{place}: a cycle: {' -> '.join([part] + chain)}"
