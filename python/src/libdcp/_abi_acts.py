"""The structs of <dcp/flat.h> by which other checkpoints are made of one: see _abi."""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char,
    c_char_p,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)

from ._sized import Sized


class ReshardOptions(Sized):
    """struct dcp_flat_reshard_options."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("source", c_char_p),
        ("target", c_char_p),
        ("step", c_int64),
        ("for_export", c_int32),
        ("world_size", c_int32),
        ("layout", c_char_p),
        ("format", c_char_p),
        ("dtype", c_char_p),
        ("only", c_char_p),
        ("weights", c_char_p),
        ("rename", c_char_p),
        ("codec", c_char_p),
        ("config_json", c_char_p),
        ("spelling", c_char_p),
        ("prefix", c_char_p),
        ("select", POINTER(c_char_p)),
        ("trust", POINTER(c_char_p)),
        ("max_shard_bytes", c_uint64),
        ("memory_bytes", c_uint64),
        ("parity", c_int32),
        ("threads", c_int32),
        ("no_verify", c_int32),
        ("force", c_int32),
        ("lossy", c_int32),
        ("untie", c_int32),
        ("keep_unsafe", c_int32),
        ("dry_run", c_int32),
        ("reflink", c_int32),
    ]


class ReshardResult(Sized):
    """struct dcp_flat_reshard_result."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("n_tensors", c_uint64),
        ("source_bytes", c_uint64),
        ("target_bytes", c_uint64),
        ("read_bytes", c_uint64),
        ("n_files", c_uint64),
        ("n_unproved", c_uint64),
        ("n_left", c_uint64),
        ("n_objects_left", c_uint64),
        ("n_overflows", c_uint64),
        ("shared_bytes", c_uint64),
        ("step", c_int64),
        ("passed_over", c_int32),
        ("n_beside", c_uint64),
        ("lacks", c_char * 64),
        ("assumed", c_char * 640),
        ("objects_left", c_char * 640),
    ]


OnRepaired = CFUNCTYPE(None, c_void_p, c_char_p, c_char_p, c_uint64)


class RepairOptions(Sized):
    """struct dcp_flat_repair_options."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("path", c_char_p),
        ("repaired", OnRepaired),
        ("self", c_void_p),
        ("threads", c_int32),
    ]


class RepairResult(Sized):
    """struct dcp_flat_repair_result."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("n_steps", c_uint64),
        ("n_files", c_uint64),
        ("n_units", c_uint64),
        ("size_bytes", c_uint64),
    ]
