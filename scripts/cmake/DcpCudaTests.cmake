# tests/gpu/X.c is two tests: cuda.X, everywhere, with the fake of CUDA that stands in
# tests/lib/cuda_fake; gpu.X, with the toolkit, which is skipped without a GPU.

enable_language(CXX)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)

# The trainer and the port of libdcp once more, as they are with CUDA and NCCL, but for
# the fake: its headers stand before all others, the C++ compiler takes the kernels.
set(fake_dir "${tests_dir}/lib/cuda_fake")
file(GLOB fake_sources CONFIGURE_DEPENDS "${fake_dir}/*.cpp" "${fake_dir}/*.c")
dcp_room_sources(fake_trainer "${PROJECT_SOURCE_DIR}/trainer")
list(FILTER fake_trainer EXCLUDE REGEX "/(main|compute_module)\\.c$")
if(NOT DCP_HAS_MPI)
    list(FILTER fake_trainer EXCLUDE REGEX "[_/]mpi\\.c$")
endif()
file(GLOB_RECURSE fake_kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/trainer/*.cu")
set_source_files_properties(${fake_kernels} PROPERTIES
    LANGUAGE CXX
    COMPILE_OPTIONS "-xc++;-D__CUDACC__;-include;cuda_runtime.h;-ffp-contract=off")
add_library(cuda_fake STATIC ${fake_sources} ${fake_trainer} ${fake_kernels}
    "${PROJECT_SOURCE_DIR}/libdcp/port/device/cuda.c")
target_include_directories(cuda_fake BEFORE PUBLIC "${fake_dir}")
target_include_directories(cuda_fake PRIVATE
    "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/libdcp")
target_compile_definitions(cuda_fake PRIVATE
    DCP_HAS_MPI=${DCP_HAS_MPI} DCP_HAS_ONEDNN=0 DCP_HAS_BLAS=0
    DCP_HAS_CUDA=1 DCP_HAS_NCCL=1 DCP_HAS_CUDNN=1)
target_compile_options(cuda_fake PRIVATE "$<$<COMPILE_LANGUAGE:C>:-fno-math-errno>")
target_link_libraries(cuda_fake PRIVATE
    dcp_cli PkgConfig::jansson Threads::Threads m)
if(DCP_HAS_MPI)
    target_link_libraries(cuda_fake PRIVATE dcp_mpi_internal MPI::MPI_C)
endif()
if(DCP_HAS_OPENMP)
    target_link_libraries(cuda_fake PRIVATE OpenMP::OpenMP_C)
endif()

# dcp-train on the fake, for tests of the command line.
add_executable(dcp_train_fake "${PROJECT_SOURCE_DIR}/trainer/main.c")
target_link_libraries(dcp_train_fake PRIVATE
    -Wl,--whole-archive cuda_fake -Wl,--no-whole-archive dcp_cli)
set_target_properties(dcp_train_fake PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${test_work_dir}/fake" OUTPUT_NAME dcp-train)

# tests/cudnn/X.c is cuda.X, with the real cuDNN and no driver of CUDA.
function(dcp_cudnn_tests)
    dcp_sources(sources "${tests_dir}/cudnn")
    if(NOT cmocka_FOUND OR NOT DCP_HAS_CUDNN)
        return()
    endif()
    add_library(no_driver SHARED "${tests_dir}/lib/no_driver.c")
    set_target_properties(no_driver PROPERTIES OUTPUT_NAME cuda SOVERSION 1
        LIBRARY_OUTPUT_DIRECTORY "${test_work_dir}/no_driver")
    foreach(source IN LISTS sources)
        get_filename_component(stem "${source}" NAME_WE)
        string(REGEX REPLACE "^test_" "" stem "${stem}")
        dcp_test_program(test_cudnn_${stem} "${source}")
        target_link_libraries(test_cudnn_${stem} PRIVATE
            trainer_cuda -Wl,--no-as-needed no_driver)
        add_test(NAME cuda.${stem} COMMAND test_cudnn_${stem})
        dcp_register(cuda.${stem} cuda "${source}")
    endforeach()
endfunction()

function(dcp_cuda_tests)
    dcp_sources(sources "${tests_dir}/gpu")
    if(NOT cmocka_FOUND)
        return()
    endif()
    foreach(source IN LISTS sources)
        get_filename_component(stem "${source}" NAME_WE)
        string(REGEX REPLACE "^test_" "" stem "${stem}")
        add_executable(test_cuda_${stem} "${source}")
        target_link_libraries(test_cuda_${stem} PRIVATE
            -Wl,--whole-archive cuda_fake -Wl,--no-whole-archive test_lib)
        target_compile_definitions(test_cuda_${stem} PRIVATE TEST_HAS_CUDNN=1)
        set_target_properties(test_cuda_${stem} PROPERTIES
            RUNTIME_OUTPUT_DIRECTORY "${test_work_dir}")
        add_test(NAME cuda.${stem} COMMAND test_cuda_${stem})
        dcp_register(cuda.${stem} cuda "${source}")
        if(DCP_HAS_CUDA)
            dcp_test_program(test_gpu_${stem} "${source}")
            target_compile_definitions(test_gpu_${stem} PRIVATE
                TEST_HAS_CUDNN=${DCP_HAS_CUDNN})
            target_link_libraries(test_gpu_${stem} PRIVATE trainer_cuda)
            add_test(NAME gpu.${stem} COMMAND test_gpu_${stem})
            dcp_register(gpu.${stem} gpu "${source}")
        endif()
    endforeach()
endfunction()
