/* globals: which names in pickles are known to build nothing but data, and which to do
 * more. Each row has its reason; what stands in no row is unknown.
 *
 * A name is safe when calling it, or making an object of it and filling that, with any
 * arguments that are safe themselves, runs no code but its own, and that writes no file
 * and imports nothing that an argument names. Sources: torch._weights_only_unpickler of
 * PyTorch 2.13 for torch's own, safe_globals.py of Megatron-LM, the pickles that
 * CPython 3.11, NumPy 2.4, transformers 5, accelerate 1.15 and DeepSpeed 0.19 write; for
 * the dangerous ones the list of picklescan. */
#include "globals.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/globals.h>
#include <stdio.h>
#include <string.h>

struct row {
    const char *module, *names; /* blank-separated; NULL: the whole module */
};

#define TENSOR_CLASSES                                                          \
    "BFloat16Tensor ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor " \
    "IntTensor LongTensor ShortTensor"

static const struct row safe[] = {
    /* types of values; the calls by which pickles spell bytes and sets */
    { "builtins", "bool bytearray bytes complex dict float frozenset int list object "
                  "range set slice str tuple Ellipsis NotImplemented" },
    { "_codecs", "encode" },
    { "copyreg", "_reconstructor __newobj__ __newobj_ex__" }, /* cls.__new__ */
    /* containers and numbers of the standard library */
    { "collections", "ChainMap Counter OrderedDict UserDict UserList UserString "
                     "defaultdict deque" },
    { "datetime", "date datetime time timedelta timezone" },
    { "decimal", "Decimal" },
    { "fractions", "Fraction" },
    { "pathlib", "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath" },
    { "pathlib._local",
      "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath" },
    { "uuid", "SafeUUID UUID" },
    { "zoneinfo", "ZoneInfo:_unpickle ZoneInfo" }, /* reads the zones of the system */
    { "argparse", "Namespace" },
    { "types", "SimpleNamespace" },
    { "random", "Random" },
    { "signal", "Signals" }, /* an Enum, in the arguments of Megatron */
    { "io", "BytesIO StringIO" },
    /* NumPy: arrays, scalars, and generators of random numbers by their names */
    { "numpy", "bool bool_ complex128 complex64 datetime64 dtype float16 float32 float64 "
               "int16 int32 int64 int8 longdouble matrix ndarray str_ timedelta64 uint16 "
               "uint32 uint64 uint8" },
    { "numpy.core.multiarray", "_reconstruct scalar" },
    { "numpy._core.multiarray", "_reconstruct scalar" },
    { "numpy.core.numeric", "_frombuffer" },
    { "numpy._core.numeric", "_frombuffer" },
    { "numpy.ma", "MaskedArray" },
    { "numpy.ma.core", "MaskedArray _mareconstruct" },
    { "numpy.dtypes", "BoolDType Float16DType Float32DType Float64DType Int16DType "
                      "Int32DType Int64DType Int8DType UInt16DType UInt32DType "
                      "UInt64DType UInt8DType" },
    { "numpy.random._pickle",
      "__bit_generator_ctor __generator_ctor __randomstate_ctor" },
    { "numpy.random._mt19937", "MT19937" },
    { "numpy.random._pcg64", "PCG64 PCG64DXSM" },
    { "numpy.random._philox", "Philox" },
    { "numpy.random._sfc64", "SFC64" },
    { "numpy.random.bit_generator", "SeedSequence __pyx_unpickle_SeedSequence" },
    /* torch's own list of what weights_only loads */
    { "torch",
      "BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage "
      "ComplexFloatStorage DoubleStorage FloatStorage HalfStorage IntStorage LongStorage "
      "QInt32Storage QInt8Storage QUInt2x4Storage QUInt4x2Storage QUInt8Storage "
      "ShortStorage UntypedStorage Size Tensor device bfloat16 bits16 bits1x8 bits2x4 "
      "bits4x2 bits8 bool complex128 complex32 complex64 float16 float32 "
      "float4_e2m1fn_x2 float64 float8_e4m3fn float8_e4m3fnuz float8_e5m2 "
      "float8_e5m2fnuz float8_e8m0fnu int1 int16 int2 int3 int32 int4 int5 int6 int64 "
      "int7 int8 per_channel_affine per_channel_affine_float_qparams "
      "per_channel_symmetric per_tensor_affine per_tensor_symmetric qint32 qint8 "
      "quint2x4 quint4x2 quint8 uint1 uint16 uint2 uint3 uint32 uint4 uint5 uint6 uint64 "
      "uint7 uint8 strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc "
      "contiguous_format preserve_format channels_last channels_last_3d" },
    { "torch.cuda", "BFloat16Storage BoolStorage ByteStorage CharStorage "
                    "ComplexDoubleStorage ComplexFloatStorage DoubleStorage FloatStorage "
                    "HalfStorage IntStorage LongStorage ShortStorage" },
    /* classes of tensors, which the oldest files name for each of theirs */
    { "torch", TENSOR_CLASSES " BoolTensor" },
    { "torch.cuda", TENSOR_CLASSES " BoolTensor" },
    { "torch.sparse", TENSOR_CLASSES },
    { "torch.cuda.sparse", TENSOR_CLASSES },
    { "torch.storage", "TypedStorage UntypedStorage" },
    { "torch.serialization", "_get_layout" },
    { "torch._utils",
      "_rebuild_device_tensor_from_cpu_tensor _rebuild_device_tensor_from_numpy "
      "_rebuild_meta_tensor_no_storage _rebuild_nested_tensor _rebuild_parameter "
      "_rebuild_parameter_with_state _rebuild_qtensor _rebuild_sparse_tensor "
      "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_wrapper_subclass" },
    { "torch._tensor", "_rebuild_from_type_v2" },
    { "torch.tensor", "_rebuild_from_type_v2" },
    { "torch._C", "Generator" },
    { "torch.nn.parameter", "Parameter Buffer" },
    { "torch.autograd.variable", "Variable" },
    /* DTensors and ShardedTensors, which torch adds to that list with their modules */
    { "torch.distributed.tensor", "DTensor" },
    { "torch.distributed.tensor._api", "DTensor" },
    { "torch.distributed._tensor.api", "DTensor" },
    { "torch.distributed.tensor._dtensor_spec",
      "DTensorSpec ShardOrderEntry TensorMeta" },
    { "torch.distributed._tensor.placement_types",
      "DTensorSpec Partial Replicate Shard TensorMeta _Partial _StridedShard" },
    { "torch.distributed.tensor.placement_types",
      "Partial Replicate Shard _MaskPartial _StridedShard" },
    { "torch.distributed.device_mesh", "DeviceMesh" },
    { "torch.distributed._mesh_layout", "_FlatLayout _MeshLayout" },
    { "torch.distributed._tensor.device_mesh", "DeviceMesh" },
    { "torch.distributed.remote_device", "_remote_device" },
    { "torch.nested._internal.nested_tensor", "NestedTensor _rebuild_njt" },
    { "torch._dynamo.decorators", "_DimRange" },
    { "torch.distributed._shard.metadata", "ShardMetadata" },
    { "torch.distributed._shard.sharded_tensor.api",
      "ShardedTensor ShardedTensor:ProcessGroupState" },
    { "torch.distributed._shard.sharded_tensor.metadata",
      "MEM_FORMAT_ENCODING ShardedTensorMetadata TensorProperties" },
    { "torch.distributed._shard.sharded_tensor.shard", "Shard" },
    { "torch.distributed._shard.sharding_spec.chunk_sharding_spec", "ChunkShardingSpec" },
    { "torch.distributed._shard.sharding_spec.api", "EnumerableShardingSpec" },
    /* the index of torch.distributed.checkpoint: dataclasses and an Enum */
    { "torch.distributed.checkpoint.metadata",
      "BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex StorageMeta "
      "TensorProperties TensorStorageMetadata _MEM_FORMAT_ENCODING" },
    { "torch.distributed.checkpoint.filesystem", "_StorageInfo _StoragePrefix" },
    { "torch.distributed._shard.checkpoint.metadata",
      "BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex "
      "TensorStorageMetadata" },
    { "torch.distributed._shard.checkpoint.filesystem", "_StorageInfo _StoragePrefix" },
    { "torch.distributed.checkpoint.hf_storage", "_HFStorageInfo" },
    { "torch.distributed.checkpoint._extension", "ZStandard" },
    /* Hugging Face's training_args.bin: a dataclass, filled without __init__, its Enums
     */
    { "transformers.training_args", "OptimizerNames ParallelMode TrainingArguments" },
    { "transformers.training_args_seq2seq", "Seq2SeqTrainingArguments" },
    { "transformers.trainer_utils",
      "EvaluationStrategy FSDPOption HubStrategy IntervalStrategy SaveStrategy "
      "SchedulerType ShardedDDPOption" },
    { "transformers.trainer_pt_utils", "AcceleratorConfig" },
    { "transformers.integrations.deepspeed",
      "HfDeepSpeedConfig HfTrainerDeepSpeedConfig" },
    { "transformers.debug_utils", "DebugOption" },
    { "transformers.generation.configuration_utils", "GenerationConfig" },
    { "trl.trainer.sft_config", "SFTConfig" },
    { "trl.trainer.dpo_config", "DPOConfig" },
    { "trl.trainer.grpo_config", "GRPOConfig" },
    { "accelerate.state", "PartialState" },
    { "accelerate.utils.dataclasses",
      "DeepSpeedPlugin DistributedType DynamoBackend GradientAccumulationPlugin "
      "PrecisionType" },
    /* DeepSpeed's states: scalers of the loss, and what its engine notes */
    { "deepspeed.runtime.fp16.loss_scaler",
      "DynamicLossScaler LossScaler LossScalerBase" },
    { "deepspeed.runtime.zero.config", "ZeroStageEnum" },
    { "deepspeed.runtime.zero.offload_config", "OffloadDeviceEnum" },
    { "deepspeed.utils.tensor_fragment", "fragment_address" },
    { "deepspeed.checkpoint.universal_checkpoint", "SubparamShape" },
    /* Megatron's, by its own list */
    { "megatron.core.enums", "ModelType" },
    { "megatron.enums", "ModelType PositionEmbeddingType" },
    { "megatron.model.enums", "AttnMaskType AttnType LayerType ModelType "
                              "PositionEmbeddingType" },
    { "megatron.core.transformer.enums",
      "AttnBackend AttnMaskType AttnType CudaGraphScope LayerType ModelType" },
    { "megatron.core.optimizer.optimizer_config", "OptimizerConfig" },
    { "megatron.core.rerun_state_machine", "RerunDiagnostic RerunMode RerunState" },
    { "megatron.core.dist_checkpointing.mapping",
      "LocalNonpersistentObject ShardedObject ShardedTensor" },
    /* Lightning's hyper parameters: dicts with attributes */
    { "pytorch_lightning.utilities.parsing", "AttributeDict" },
    { "lightning.pytorch.utilities.parsing", "AttributeDict" },
    { "lightning_fabric.utilities.data", "AttributeDict" },
    { "lightning.fabric.utilities.data", "AttributeDict" },
};

static const struct row dangerous[] = {
    { "builtins", "__build_class__ __import__ apply breakpoint compile delattr dir eval "
                  "exec execfile exit file filter getattr globals help input locals map "
                  "memoryview open quit reload reduce setattr type vars" },
    { "copyreg", "_extension_cache _inverted_registry add_extension pickle" },
    /* run programs and code, or find what does */
    { "os", NULL },
    { "posix", NULL },
    { "nt", NULL },
    { "subprocess", NULL },
    { "_posixsubprocess", NULL },
    { "commands", NULL },
    { "popen2", NULL },
    { "pty", NULL },
    { "sys", NULL },
    { "code", NULL },
    { "codeop", NULL },
    { "runpy", NULL },
    { "importlib", NULL },
    { "imp", NULL },
    { "zipimport", NULL },
    { "pkgutil", NULL },
    { "operator", NULL },
    { "_operator", NULL },
    { "functools", "partialmethod reduce" },
    { "itertools", NULL },
    { "types", NULL },
    { "inspect", NULL },
    { "gc", NULL },
    { "ctypes", NULL },
    { "_ctypes", NULL },
    { "cffi", NULL },
    { "bdb", NULL },
    { "pdb", NULL },
    { "trace", NULL },
    { "timeit", NULL },
    { "profile", NULL },
    { "cProfile", NULL },
    { "doctest", NULL },
    { "pydoc", NULL },
    { "idlelib", NULL },
    { "lib2to3", NULL },
    { "IPython", NULL },
    { "multiprocessing", NULL },
    { "concurrent", NULL },
    { "threading", NULL },
    { "_thread", NULL },
    { "asyncio", NULL },
    { "sched", NULL },
    { "atexit", NULL },
    { "signal", "alarm pthread_kill raise_signal setitimer signal" },
    { "pip", NULL },
    { "ensurepip", NULL },
    { "venv", NULL },
    { "distutils", NULL },
    { "setuptools", NULL },
    { "logging.config", NULL },
    /* pickles in pickles */
    { "pickle", NULL },
    { "_pickle", NULL },
    { "cPickle", NULL },
    { "dill", NULL },
    { "cloudpickle", NULL },
    { "joblib", NULL },
    { "marshal", NULL },
    { "shelve", NULL },
    { "yaml", NULL },
    { "pandas.io.pickle", NULL },
    { "torch", "compile hub load save" },
    { "torch.serialization", "load save" },
    { "torch.storage", "_load_from_bytes" },
    { "torch.hub", NULL },
    { "torch.jit", NULL },
    { "torch.package", NULL },
    { "torch.fx", NULL },
    { "torch._dynamo", NULL },
    { "torch._inductor", NULL },
    { "torch.utils", NULL },
    { "numpy", "fromfile genfromtxt load loadtxt memmap save" },
    { "numpy.lib", NULL },
    { "numpy.f2py", NULL },
    { "numpy.distutils", NULL },
    { "numpy.testing", NULL },
    { "numpy.ctypeslib", NULL },
    /* files and the network */
    { "io", "FileIO OpenWrapper open open_code" },
    { "_io", NULL },
    { "codecs", NULL },
    { "shutil", NULL },
    { "tempfile", NULL },
    { "glob", NULL },
    { "linecache", NULL },
    { "fileinput", NULL },
    { "mmap", NULL },
    { "zipfile", NULL },
    { "tarfile", NULL },
    { "sqlite3", NULL },
    { "socket", NULL },
    { "_socket", NULL },
    { "ssl", NULL },
    { "http", NULL },
    { "httplib", NULL },
    { "urllib", NULL },
    { "urllib2", NULL },
    { "requests", NULL },
    { "aiohttp", NULL },
    { "ftplib", NULL },
    { "smtplib", NULL },
    { "telnetlib", NULL },
    { "xmlrpc", NULL },
    { "webbrowser", NULL },
};

/* Of those that are safe the Enums: some Pythons, such as 3.11.2 of Debian 12, pickle a
 * member as getattr(Class, 'NAME'). */
static const struct row enums[] = {
    { "signal", "Signals" },
    { "torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING" },
    { "torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING" },
    { "transformers.training_args", "OptimizerNames ParallelMode" },
    { "transformers.trainer_utils",
      "EvaluationStrategy FSDPOption HubStrategy IntervalStrategy SaveStrategy "
      "SchedulerType ShardedDDPOption" },
    { "transformers.debug_utils", "DebugOption" },
    { "accelerate.utils.dataclasses", "DistributedType DynamoBackend PrecisionType" },
    { "deepspeed.runtime.zero.config", "ZeroStageEnum" },
    { "deepspeed.runtime.zero.offload_config", "OffloadDeviceEnum" },
    { "megatron.core.enums", "ModelType" },
    { "megatron.enums", "ModelType PositionEmbeddingType" },
    { "megatron.model.enums", "AttnMaskType AttnType LayerType ModelType "
                              "PositionEmbeddingType" },
    { "megatron.core.transformer.enums",
      "AttnBackend AttnMaskType AttnType CudaGraphScope LayerType ModelType" },
    { "megatron.core.rerun_state_machine", "RerunDiagnostic RerunMode RerunState" },
};

const char *dcp_global_kind_name(enum dcp_global_kind kind)
{
    return kind == DCP_GLOBAL_SAFE      ? "known safe"
           : kind == DCP_GLOBAL_UNKNOWN ? "unknown"
                                        : "dangerous";
}

static bool part_ok(const char *text, size_t n)
{
    if (!n || n > DCP_PICKLE_MAX_GLOBAL_BYTES || !dcp_str_utf8_ok(text, n))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] <= ' ' || text[i] == 0x7f || text[i] == ':')
            return false;
    return text[0] != '.' && text[n - 1] != '.';
}

bool dcp_global_split(const char *text, struct dcp_global_parts *out)
{
    const char *colon = strchr(text, ':'), *dot = strrchr(text, '.');
    const char *end = colon ? colon : dot;

    if (!end)
        return false;
    *out = (struct dcp_global_parts){ .module = text,
                                      .n_module = (size_t)(end - text),
                                      .name = end + 1,
                                      .nested = colon != NULL };
    return part_ok(out->module, out->n_module) && part_ok(out->name, strlen(out->name));
}

/* Whether a blank-separated list has the name; one in a class stands there as
 * "Outer:name". */
static bool lists(const char *names, const struct dcp_global_parts *global)
{
    size_t n = strlen(global->name);

    for (const char *p = names; *p; p += strcspn(p, " ")) {
        p += strspn(p, " ");
        size_t k = strcspn(p, " ");
        const char *colon = memchr(p, ':', k);
        if (k != n || (colon != NULL) != global->nested)
            continue;
        size_t at = colon ? (size_t)(colon - p) : n;
        if (!memcmp(p, global->name, at) &&
            (!colon || (global->name[at] == '.' &&
                        !memcmp(p + at + 1, global->name + at + 1, n - at - 1))))
            return true;
    }
    return false;
}

static bool is_module(const char *module, const struct dcp_global_parts *global,
                      bool below)
{
    size_t n = strlen(module);

    return n <= global->n_module && !memcmp(module, global->module, n) &&
           (n == global->n_module || (below && global->module[n] == '.'));
}

bool dcp_global_is_enum(const char *module, const char *name)
{
    const struct dcp_global_parts global = { .module = module,
                                             .n_module = strlen(module),
                                             .name = name };

    for (size_t i = 0; i < DCP_ARRAY_LEN(enums); i++)
        if (is_module(enums[i].module, &global, false) && lists(enums[i].names, &global))
            return true;
    return false;
}

enum dcp_global_kind dcp_global_judge(const char *name)
{
    struct dcp_global_parts global;

    if (!dcp_global_split(name, &global))
        return DCP_GLOBAL_DANGEROUS;
    for (size_t i = 0; i < DCP_ARRAY_LEN(safe); i++)
        if (is_module(safe[i].module, &global, false) && lists(safe[i].names, &global))
            return DCP_GLOBAL_SAFE;
    for (size_t i = 0; i < DCP_ARRAY_LEN(dangerous); i++)
        if (is_module(dangerous[i].module, &global, !dangerous[i].names) &&
            (!dangerous[i].names || lists(dangerous[i].names, &global)))
            return DCP_GLOBAL_DANGEROUS;
    /* A class begins with a capital, behind underscores; what does not is a way through
     * modules. */
    char first = global.name[strspn(global.name, "_")];
    return global.nested && (first < 'A' || first > 'Z') ? DCP_GLOBAL_DANGEROUS
                                                         : DCP_GLOBAL_UNKNOWN;
}
