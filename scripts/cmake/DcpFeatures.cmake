# What the project is built on. Each dependency is looked for once, here; the rest of the
# build asks `if(DCP_HAS_MPI)` and links the imported target named beside it.

include(CheckSourceCompiles)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

# Always needed. The names are those of dcp.pc and of scripts/cmake/dcpConfig.cmake.in.
set(dcp_requires jansson libxxhash libzstd libisal libarchive libcrypto)
set(dcp_libs m)
set(packages jansson xxhash zstd isal archive ssl)
foreach(module package IN ZIP_LISTS dcp_requires packages)
    pkg_check_modules(${module} QUIET IMPORTED_TARGET ${module})
    if(NOT ${module}_FOUND)
        message(FATAL_ERROR "${module} is missing (Debian: lib${package}-dev); "
            "scripts/setup.sh installs what is")
    endif()
    list(APPEND dcp_libs PkgConfig::${module})
    list(APPEND dcp_features "${module}|on|${${module}_VERSION}")
endforeach()

# dcp_feature(NAME found detail): settles DCP_WITH_NAME (AUTO, ON, OFF) into DCP_HAS_NAME,
# 1 or 0. `detail` is the version when it was found, else the reason.
macro(dcp_feature name found detail)
    if(DCP_WITH_${name} STREQUAL "OFF")
        set(DCP_HAS_${name} 0)
        list(APPEND dcp_features "${name}|off|DCP_WITH_${name} is OFF")
    elseif(${found})
        set(DCP_HAS_${name} 1)
        list(APPEND dcp_features "${name}|on|${detail}")
    elseif(DCP_WITH_${name} STREQUAL "AUTO")
        set(DCP_HAS_${name} 0)
        list(APPEND dcp_features "${name}|off|${detail}")
    else()
        message(FATAL_ERROR "DCP_WITH_${name} is ON, but: ${detail}")
    endif()
endmacro()

# dcp_import(TARGET FOLDER LIBRARY): a library with its headers, as a target.
function(dcp_import target include library)
    add_library(${target} INTERFACE IMPORTED)
    target_include_directories(${target} SYSTEM INTERFACE "${include}")
    target_link_libraries(${target} INTERFACE "${library}")
endfunction()

foreach(name MPI OPENMP ONEDNN BLAS CUDA NCCL CUDNN)
    set(DCP_WITH_${name} AUTO CACHE STRING "Use ${name}: AUTO, ON or OFF")
    set_property(CACHE DCP_WITH_${name} PROPERTY STRINGS AUTO ON OFF)
    string(TOUPPER "${DCP_WITH_${name}}" DCP_WITH_${name})
    if(NOT DCP_WITH_${name} MATCHES "^(AUTO|ON|OFF)$")
        message(FATAL_ERROR
            "DCP_WITH_${name} is '${DCP_WITH_${name}}': say AUTO, ON or OFF")
    endif()
endforeach()

# MPI: MPI::MPI_C
if(NOT DCP_WITH_MPI STREQUAL "OFF")
    find_package(MPI QUIET COMPONENTS C)
endif()
if(MPI_C_FOUND)
    dcp_feature(MPI ON "MPI ${MPI_C_VERSION}")
else()
    dcp_feature(MPI OFF "no MPI compiler wrapper (Debian: libopenmpi-dev)")
endif()

# OpenMP, for the trainer's loops: OpenMP::OpenMP_C
if(NOT DCP_WITH_OPENMP STREQUAL "OFF")
    find_package(OpenMP QUIET COMPONENTS C)
endif()
if(OpenMP_C_FOUND)
    dcp_feature(OPENMP ON "OpenMP ${OpenMP_C_VERSION}")
else()
    dcp_feature(OPENMP OFF "the compiler has none (clang on Debian: libomp-dev)")
endif()

# oneDNN: dcp_onednn. Its own CMake package is not asked: Debian's wants OpenCL's headers.
if(NOT DCP_WITH_ONEDNN STREQUAL "OFF")
    find_path(DCP_ONEDNN_INCLUDE oneapi/dnnl/dnnl.h)
    find_library(DCP_ONEDNN_LIBRARY dnnl)
endif()
if(DCP_ONEDNN_INCLUDE AND DCP_ONEDNN_LIBRARY)
    dcp_feature(ONEDNN ON "${DCP_ONEDNN_LIBRARY}")
    dcp_import(dcp_onednn ${DCP_ONEDNN_INCLUDE} ${DCP_ONEDNN_LIBRARY})
else()
    dcp_feature(ONEDNN OFF "no oneapi/dnnl/dnnl.h or libdnnl (Debian: libdnnl-dev)")
endif()

# A CBLAS: PkgConfig::blas
if(NOT DCP_WITH_BLAS STREQUAL "OFF")
    pkg_search_module(blas QUIET IMPORTED_TARGET openblas cblas)
endif()
if(blas_FOUND)
    dcp_feature(BLAS ON "${blas_MODULE_NAME} ${blas_VERSION}")
else()
    dcp_feature(BLAS OFF "no openblas.pc or cblas.pc (Debian: libopenblas-dev)")
endif()

# CUDA: CUDA::cudart, dcp_cublaslt, and the language for kernels. What the toolkit
# lacks may be in NVIDIA's wheels, which scripts/setup.sh unpacks.
set(DCP_CUDA_WHEELS "${PROJECT_SOURCE_DIR}/build/cuda-wheels/nvidia" CACHE PATH
    "Where the wheels are: cu13/include/cublasLt.h")
# dcp_find_cuda(NAME FOLDER HEADER LIBRARY...): sets DCP_NAME_INCLUDE and
# DCP_NAME_LIBRARY, of the toolkit, else of a folder of the wheels.
macro(dcp_find_cuda name folder header)
    find_path(DCP_${name}_INCLUDE ${header}
        HINTS ${CUDAToolkit_INCLUDE_DIRS} "${DCP_CUDA_WHEELS}/${folder}/include")
    find_library(DCP_${name}_LIBRARY NAMES ${ARGN}
        HINTS ${CUDAToolkit_LIBRARY_DIR} "${DCP_CUDA_WHEELS}/${folder}/lib")
endmacro()
if(NOT DCP_WITH_CUDA STREQUAL "OFF")
    find_package(CUDAToolkit QUIET)
    dcp_find_cuda(CUBLASLT cu13 cublasLt.h cublasLt libcublasLt.so.13)
endif()
if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
    dcp_feature(CUDA OFF "no CUDA toolkit with nvcc")
elseif(NOT DCP_CUBLASLT_INCLUDE OR NOT DCP_CUBLASLT_LIBRARY)
    dcp_feature(CUDA OFF "no cublasLt.h or libcublasLt (scripts/setup.sh installs it)")
else()
    dcp_feature(CUDA ON "${CUDAToolkit_VERSION}")
    dcp_import(dcp_cublaslt ${DCP_CUBLASLT_INCLUDE} ${DCP_CUBLASLT_LIBRARY})
endif()

# NCCL: dcp_nccl
if(DCP_HAS_CUDA AND NOT DCP_WITH_NCCL STREQUAL "OFF")
    dcp_find_cuda(NCCL nccl nccl.h nccl libnccl.so.2)
endif()
if(NOT DCP_HAS_CUDA)
    dcp_feature(NCCL OFF "CUDA is off")
elseif(DCP_NCCL_INCLUDE AND DCP_NCCL_LIBRARY)
    dcp_feature(NCCL ON "${DCP_NCCL_LIBRARY}")
    dcp_import(dcp_nccl ${DCP_NCCL_INCLUDE} ${DCP_NCCL_LIBRARY})
else()
    dcp_feature(NCCL OFF "no nccl.h or libnccl (scripts/setup.sh installs it)")
endif()

# cuDNN, for attention: dcp_cudnn
if(DCP_HAS_CUDA AND NOT DCP_WITH_CUDNN STREQUAL "OFF")
    dcp_find_cuda(CUDNN cudnn cudnn.h cudnn libcudnn.so.9)
endif()
if(DCP_CUDNN_INCLUDE)
    set(CMAKE_REQUIRED_QUIET ON)
    set(CMAKE_REQUIRED_INCLUDES ${DCP_CUDNN_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
    check_source_compiles(C "#include <cudnn.h>
        int is_new[CUDNN_VERSION >= 91600 ? 1 : -1];
        int main(void) { return 0; }"
        DCP_CUDNN_IS_NEW)
    unset(CMAKE_REQUIRED_INCLUDES)
    unset(CMAKE_REQUIRED_QUIET)
endif()
if(NOT DCP_HAS_CUDA)
    dcp_feature(CUDNN OFF "CUDA is off")
elseif(DCP_CUDNN_INCLUDE AND NOT DCP_CUDNN_IS_NEW)
    dcp_feature(CUDNN OFF "older than 9.16")
elseif(DCP_CUDNN_INCLUDE AND DCP_CUDNN_LIBRARY)
    dcp_feature(CUDNN ON "${DCP_CUDNN_LIBRARY}")
    dcp_import(dcp_cudnn ${DCP_CUDNN_INCLUDE} ${DCP_CUDNN_LIBRARY})
else()
    dcp_feature(CUDNN OFF "no cudnn.h or libcudnn (scripts/setup.sh installs it)")
endif()

# dcp_tool(TITLE VARIABLE DETAIL PACKAGE): a row of the summary for what the tests run on.
macro(dcp_tool title variable detail package)
    if(${variable})
        list(APPEND dcp_features "${title}|on|${detail}")
    else()
        list(APPEND dcp_features "${title}|off|Debian: ${package}")
    endif()
endmacro()
if(BUILD_TESTING)
    pkg_check_modules(cmocka QUIET IMPORTED_TARGET cmocka)
    find_program(DCP_BATS bats)
    find_program(DCP_PYTHON NAMES python3)
    dcp_tool("C tests" cmocka_FOUND "cmocka ${cmocka_VERSION}" "libcmocka-dev")
    dcp_tool("CLI tests" DCP_BATS "${DCP_BATS}" "bats")
    dcp_tool("Python tests" DCP_PYTHON "${DCP_PYTHON}" "python3")
endif()

function(dcp_print_features)
    message(STATUS "")
    message(STATUS "libdcp ${PROJECT_VERSION}, ${CMAKE_C_COMPILER_ID} "
        "${CMAKE_C_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE} ${DCP_SANITIZE}")
    foreach(row IN LISTS dcp_features)
        string(REPLACE "|" ";" row "${row}")
        list(GET row 0 title)
        list(GET row 1 state)
        list(GET row 2 detail)
        string(SUBSTRING "${title}               " 0 14 title)
        string(SUBSTRING "${state}   " 0 4 state)
        message(STATUS "  ${title}${state}${detail}")
    endforeach()
    message(STATUS "")
endfunction()
