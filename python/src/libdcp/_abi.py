"""The calls of <dcp/flat.h>, as ctypes has them: structs, functions, words by number.

Nothing here decides anything. The tests hold the structs against the list of the ABI.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from ._abi_acts import RepairOptions, RepairResult, ReshardOptions, ReshardResult
from ._sized import Sized

Progress = CFUNCTYPE(c_int32, c_void_p, c_uint64, c_uint64)


class Error(Sized):
    """struct dcp_flat_error."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("code", c_int32),
        ("exit_status", c_int32),
        ("sys_errno", c_int32),
        ("rank", c_int32),
        ("name", c_char * 16),
        ("file", c_char * 256),
        ("tensor", c_char * 160),
        ("message", c_char * 640),
        ("hint", c_char * 240),
    ]


class Hooks(Sized):
    """struct dcp_flat_hooks."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("progress", Progress),
        ("self", c_void_p),
        ("cancel", POINTER(c_int32)),
    ]


class Texts(Sized):
    """struct dcp_flat_texts."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("blob", c_void_p),
        ("offsets", POINTER(c_uint64)),
        ("n", c_uint64),
    ]


class Dtype(Sized):
    """struct dcp_flat_dtype."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("torch_name", c_char_p),
        ("size_bytes", c_uint64),
        ("is_float", c_int32),
    ]


class Format(Sized):
    """struct dcp_flat_format."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("alias", c_char_p),
        ("help", c_char_p),
        ("suffixes", c_char_p),
        ("reads", c_int32),
        ("writes", c_int32),
        ("is_dir", c_int32),
        ("sharded", c_int32),
        ("optim", c_int32),
        ("objects", c_int32),
    ]


class OpenOptions(Sized):
    """struct dcp_flat_open_options."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("path", c_char_p),
        ("step", c_int64),
        ("base", c_char_p),
        ("threads", c_int32),
        ("no_verify", c_int32),
    ]


class Info(Sized):
    """struct dcp_flat_info."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("path", c_char_p),
        ("format", c_char_p),
        ("version", c_char_p),
        ("layout", c_char_p),
        ("producer", c_char_p),
        ("step", c_int64),
        ("world_size", c_int32),
        ("dp", c_int32),
        ("tp", c_int32),
        ("pp", c_int32),
        ("diverged", c_int32),
        ("passed_over", c_int32),
        ("n_tensors", c_uint64),
        ("n_files", c_uint64),
        ("n_objects", c_uint64),
        ("size_bytes", c_uint64),
        ("corruption", c_char * 640),
    ]


IS_META = 1
HAS_FINGERPRINT = 2


class Tensors(Sized):
    """struct dcp_flat_tensors."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("n", c_uint64),
        ("names", Texts),
        ("params", Texts),
        ("tied", Texts),
        ("quantized", Texts),
        ("roles", POINTER(c_int32)),
        ("dtypes", POINTER(c_int32)),
        ("ndims", POINTER(c_int32)),
        ("flags", POINTER(c_int32)),
        ("shapes", POINTER(c_int64)),
        ("fingerprints", POINTER(c_uint64)),
        ("n_pieces", POINTER(c_uint64)),
    ]


class Piece(Sized):
    """struct dcp_flat_piece."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("kind", c_int32),
        ("begin", c_int64),
        ("end", c_int64),
        ("offset", c_int64 * 8),
        ("size", c_int64 * 8),
        ("file", c_char_p),
        ("file_offset", c_uint64),
        ("stored_bytes", c_uint64),
        ("codec", c_char_p),
    ]


class Object(Sized):
    """struct dcp_flat_object."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("is_json", c_int32),
        ("data", c_void_p),
        ("size_bytes", c_uint64),
    ]


class Boxes(Sized):
    """struct dcp_flat_boxes."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("n", c_uint64),
        ("tensors", POINTER(c_uint64)),
        ("offsets", POINTER(c_int64)),
        ("sizes", POINTER(c_int64)),
        ("data", POINTER(c_void_p)),
    ]


class Mapping(Sized):
    """struct dcp_flat_mapping."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("fd", c_int32),
        ("offset", c_uint64),
        ("strides", c_int64 * 8),
    ]


class Finding(Sized):
    """struct dcp_flat_finding."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("code", c_int32),
        ("file", c_char_p),
        ("tensor", c_char_p),
        ("what", c_char_p),
        ("begin", c_int64),
        ("end", c_int64),
        ("offset", c_uint64),
        ("size_bytes", c_uint64),
    ]


OnFinding = CFUNCTYPE(None, c_void_p, POINTER(Finding))


class VerifyOptions(Sized):
    """struct dcp_flat_verify_options."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("finding", OnFinding),
        ("self", c_void_p),
        ("threads", c_int32),
    ]


class VerifyResult(Sized):
    """struct dcp_flat_verify_result."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("n_findings", c_uint64),
        ("size_bytes", c_uint64),
        ("n_blocks", c_uint64),
        ("n_tensors", c_uint64),
        ("n_unproved", c_uint64),
        ("lacks", c_char * 64),
    ]


OnDifference = CFUNCTYPE(None, c_void_p, c_int32, c_int64, c_int64, c_int64)


class DiffOptions(Sized):
    """struct dcp_flat_diff_options."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("differs", OnDifference),
        ("self", c_void_p),
    ]


class DiffResult(Sized):
    """struct dcp_flat_diff_result."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("n_same", c_uint64),
        ("n_by_fingerprint", c_uint64),
        ("n_differ", c_uint64),
    ]


OnAllgather = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_uint64, c_void_p, c_int32)
OnBcast = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_uint64, c_int32, c_int32)
OnLog = CFUNCTYPE(None, c_void_p, c_int32, c_char_p)


class Comm(Sized):
    """struct dcp_flat_comm."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("timeout_ms", c_int32),
        ("allgather", OnAllgather),
        ("bcast", OnBcast),
        ("self", c_void_p),
        ("group", c_void_p),
    ]


class GroupOptions(Sized):
    """struct dcp_flat_group_options."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("host", c_char_p),
        ("port", c_int32),
        ("timeout_ms", c_int32),
        ("job", c_char_p),
        ("secret", c_char_p),
    ]


class State(Sized):
    """struct dcp_flat_state."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("n", c_uint64),
        ("names", c_char_p),
        ("names_bytes", c_uint64),
        ("params", c_char_p),
        ("params_bytes", c_uint64),
        ("roles", c_char_p),
        ("boxes", POINTER(c_uint32)),
        ("data", POINTER(c_void_p)),
        ("n_boxes", c_uint64),
        ("dtypes", POINTER(c_int32)),
        ("ndims", POINTER(c_int32)),
        ("shapes", POINTER(c_int64)),
        ("offsets", POINTER(c_int64)),
        ("sizes", POINTER(c_int64)),
        ("layout", c_char_p),
        ("dp", c_int32),
        ("tp", c_int32),
        ("pp", c_int32),
        ("n_objects", c_uint64),
        ("object_names", POINTER(c_char_p)),
        ("objects_are_json", POINTER(c_int32)),
        ("object_data", POINTER(c_void_p)),
        ("object_sizes", POINTER(c_uint64)),
    ]


class SaveOptions(Sized):
    """struct dcp_flat_save_options."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("path", c_char_p),
        ("step", c_int64),
        ("codec", c_char_p),
        ("keep", c_int32),
        ("keep_every", c_int32),
        ("keep_optimizer", c_int32),
        ("parity", c_int32),
        ("verify_after_save", c_int32),
        ("diverged", c_int32),
        ("threads", c_int32),
        ("log", OnLog),
        ("self", c_void_p),
        ("delta", c_int32),
        ("in_place", c_int32),
        ("export_name", c_char_p),
        ("export_format", c_char_p),
        ("export_dtype", c_char_p),
    ]


class SaverOptions(Sized):
    """struct dcp_flat_saver_options."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("path", c_char_p),
        ("threads", c_int32),
        ("log", OnLog),
        ("self", c_void_p),
    ]


class SaveResult(Sized):
    """struct dcp_flat_save_result."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("step", c_int64),
        ("fingerprint", c_uint64),
        ("size_bytes", c_uint64),
        ("diverged", c_int32),
        ("stale", c_int32),
        ("write_s", c_double),
        ("stall_s", c_double),
        ("written_bytes", c_uint64),
    ]


class LoadOptions(Sized):
    """struct dcp_flat_load_options."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("path", c_char_p),
        ("step", c_int64),
        ("only_model", c_int32),
        ("allow_cast", c_int32),
        ("no_verify", c_int32),
        ("threads", c_int32),
        ("log", OnLog),
        ("self", c_void_p),
        ("with_optimizer", c_int32),
    ]


class LoadResult(Sized):
    """struct dcp_flat_load_result."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("step", c_int64),
        ("world_size", c_int32),
        ("size_bytes", c_uint64),
        ("n_tensors", c_uint64),
        ("n_unproved", c_uint64),
    ]


_HANDLE = c_void_p
_HOOKS = POINTER(Hooks)
_ERROR = POINTER(Error)

# What each function takes, and gives when it is not a code.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "dtype_get": (c_int32, POINTER(Dtype)),
    "role_get": (c_int32, POINTER(c_char_p)),
    "bytes_digest": (c_void_p, c_uint64, POINTER(c_uint64)),
    "format_get": (c_int32, POINTER(Format)),
    "checkpoint_open": (POINTER(OpenOptions), POINTER(_HANDLE), _ERROR),
    "checkpoint_close": (_HANDLE,),
    "checkpoint_info": (_HANDLE, POINTER(Info)),
    "tensors_list": (_HANDLE, POINTER(Tensors), _ERROR),
    "piece_get": (_HANDLE, c_uint64, c_uint64, POINTER(Piece)),
    "object_get": (_HANDLE, c_uint64, POINTER(Object)),
    "boxes_read": (_HANDLE, POINTER(Boxes), _HOOKS, _ERROR),
    "box_map": (
        _HANDLE,
        c_uint64,
        POINTER(c_int64),
        POINTER(c_int64),
        POINTER(Mapping),
        _ERROR,
    ),
    "tensor_fingerprint": (_HANDLE, c_uint64, _HOOKS, POINTER(c_uint64), _ERROR),
    "checkpoint_verify": (
        _HANDLE,
        POINTER(VerifyOptions),
        _HOOKS,
        POINTER(VerifyResult),
        _ERROR,
    ),
    "checkpoint_diff": (
        _HANDLE,
        _HANDLE,
        POINTER(DiffOptions),
        _HOOKS,
        POINTER(DiffResult),
        _ERROR,
    ),
    "reshard": (POINTER(ReshardOptions), _HOOKS, POINTER(ReshardResult), _ERROR),
    "save": (
        POINTER(SaveOptions),
        POINTER(Comm),
        POINTER(State),
        POINTER(SaveResult),
        _ERROR,
    ),
    "group_open": (POINTER(GroupOptions), POINTER(_HANDLE), _ERROR),
    "group_close": (_HANDLE,),
    "group_allgather": (_HANDLE, c_void_p, c_uint64, c_void_p, _ERROR),
    "saver_new": (POINTER(SaverOptions), POINTER(Comm), POINTER(_HANDLE), _ERROR),
    "save_start": (_HANDLE, POINTER(SaveOptions), POINTER(State), _ERROR),
    "save_wait": (_HANDLE, POINTER(SaveResult), _ERROR),
    "saver_free": (_HANDLE,),
    "load": (
        POINTER(LoadOptions),
        POINTER(Comm),
        POINTER(State),
        POINTER(LoadResult),
        POINTER(_HANDLE),
        _ERROR,
    ),
    "rewind": (POINTER(LoadOptions), POINTER(Comm), _ERROR),
    "loaded_object": (_HANDLE, c_uint64, POINTER(Object)),
    "loaded_free": (_HANDLE,),
    "repair": (POINTER(RepairOptions), _HOOKS, POINTER(RepairResult), _ERROR),
}
_GIVE_NOTHING = (
    "bytes_digest",
    "checkpoint_close",
    "checkpoint_info",
    "group_close",
    "loaded_free",
    "saver_free",
)


def _load() -> ctypes.CDLL:
    """The library that lies in the package, or the one that LIBDCP_LIBRARY names."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libdcp.so")
    loaded = ctypes.CDLL(os.environ.get("LIBDCP_LIBRARY", beside))
    for name, takes in _FUNCTIONS.items():
        function = getattr(loaded, "dcp_flat_" + name)
        function.argtypes = takes
        function.restype = None if name in _GIVE_NOTHING else c_int32
    loaded.dcp_version.restype = c_char_p
    return loaded


lib = _load()


def version() -> str:
    """Of the library that is loaded: "0.1.0"."""
    return text(lib.dcp_version())


def text(raw: bytes | None) -> str:
    """A text of the library; NULL is empty."""
    return (raw or b"").decode("utf-8", "surrogateescape")


def raw(value: str | bytes | os.PathLike[str] | None) -> bytes | None:
    """A text or a path for the library; None is NULL. In C a NUL would end it."""
    code = None if value is None else os.fsencode(value)
    if code and b"\0" in code:
        raise ValueError(f"{value!r} has a NUL in it")
    return code


def texts(of: Texts) -> list[str]:
    """All of a list."""
    blob = ctypes.string_at(of.blob, of.offsets[of.n])
    return blob.decode("utf-8", "surrogateescape").split("\0")[:-1]


def _words(get: Any, word: Any) -> list[Any]:
    found: list[Any] = []
    while get(len(found), ctypes.byref(word)) == 0:
        found.append(word.value if isinstance(word, c_char_p) else word)
        word = type(word)() if isinstance(word, c_char_p) else type(word).new()
    return found


_dtypes = _words(lib.dcp_flat_dtype_get, Dtype.new())
DTYPES: list[str] = [text(dtype.torch_name) for dtype in _dtypes]
ITEM_BYTES: dict[str, int] = {text(d.torch_name): d.size_bytes for d in _dtypes}
ROLES: list[str] = [text(role) for role in _words(lib.dcp_flat_role_get, c_char_p())]


def formats() -> list[Format]:
    """All of them, in the order of `dcp-reshard formats`."""
    return _words(lib.dcp_flat_format_get, Format.new())
