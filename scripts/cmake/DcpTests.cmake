# Turns files of tests/ into ctest tests. The label of a test is its folder; the comment
# `/* labels: tsan long */` in a file adds more, `/* np: 4 */` sets the ranks of an MPI
# test. Exit status 77 means skipped.

set(tests_dir "${CMAKE_CURRENT_SOURCE_DIR}")
set(test_work_dir "${CMAKE_BINARY_DIR}/tests")
file(MAKE_DIRECTORY "${test_work_dir}")

# The export test reads the symbols of a shared libdcp also when it is an archive.
if(NOT BUILD_SHARED_LIBS)
    add_library(dcp_shared SHARED $<TARGET_OBJECTS:dcp_objects>)
    set_target_properties(dcp_shared PROPERTIES OUTPUT_NAME dcp)
    target_link_libraries(dcp_shared PRIVATE ${dcp_libs} Threads::Threads)
endif()

# What every C test links. All of it are archives: a test pays only for what it calls.
dcp_sources(lib_sources lib)
list(FILTER lib_sources EXCLUDE REGEX "_main\\.c$")
add_library(test_lib STATIC ${lib_sources})
target_include_directories(test_lib PUBLIC
    "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/libdcp" "${tests_dir}")
target_compile_definitions(test_lib PUBLIC
    DCP_TESTS_DIR="${tests_dir}" DCP_BIN_DIR="${CMAKE_BINARY_DIR}/bin")
target_link_libraries(test_lib PUBLIC
    trainer_objs reshard_objs inspect_objs dcp_cli dcp_internal
    ${dcp_libs} Threads::Threads)
if(DCP_HAS_MPI)
    target_link_libraries(test_lib PUBLIC dcp_mpi_internal)
endif()
if(cmocka_FOUND)
    target_link_libraries(test_lib PUBLIC PkgConfig::cmocka)
endif()

# dcp-train with failpoints, for the tests that let a rank die.
add_executable(dcp_train_killable
    "${PROJECT_SOURCE_DIR}/trainer/main.c"
    "${PROJECT_SOURCE_DIR}/trainer/run/failpoint.c")
target_compile_definitions(dcp_train_killable PRIVATE DCP_FAILPOINTS=1)
target_link_libraries(dcp_train_killable PRIVATE trainer_objs)
set_target_properties(dcp_train_killable PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${test_work_dir}/killable" OUTPUT_NAME dcp-train)

set(test_environment
    LC_ALL=C.UTF-8
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    DCP_TESTS_DIR=${tests_dir} DCP_BUILD_DIR=${CMAKE_BINARY_DIR}
    DCP_BIN_DIR=${CMAKE_BINARY_DIR}/bin)

# dcp_register(NAME LABELS FILE): properties that all tests share.
function(dcp_register name labels file)
    file(STRINGS "${file}" lines REGEX "^(/\\*|#) labels: ")
    if(lines MATCHES "labels: ([a-z ]+[a-z])")
        string(REPLACE " " ";" more "${CMAKE_MATCH_1}")
        list(APPEND labels ${more})
    endif()
    set(timeout 1200) # a hang ends; a machine four times slower, or shared, does not fail
    if("long" IN_LIST labels)
        set(timeout 3000)
    endif()
    set(cost 0)
    if(labels MATCHES "fault|prop|mpi|cuda|interop") # they take long: first, so that no
        set(cost 10)                                 # core is idle at the end
    endif()
    set(environment ${test_environment})
    if(NOT labels MATCHES "gpu|cuda") # the same on a machine with a GPU
        list(APPEND environment "CUDA_VISIBLE_DEVICES=")
    endif()
    set_tests_properties(${name} PROPERTIES
        LABELS "${labels}"
        SKIP_RETURN_CODE 77
        TIMEOUT ${timeout}
        COST ${cost}
        WORKING_DIRECTORY "${test_work_dir}"
        ENVIRONMENT "${environment}"
        ENVIRONMENT_MODIFICATION "PATH=path_list_prepend:${CMAKE_BINARY_DIR}/bin")
endfunction()

# Building one of these builds the tests that run under that sanitizer.
add_custom_target(sanitizer_tests)
add_custom_target(thread_tests)

# dcp_test_program(TARGET SOURCE...): an executable with everything a test may need.
function(dcp_test_program target)
    add_executable(${target} ${ARGN})
    target_link_libraries(${target} PRIVATE test_lib)
    set_target_properties(${target} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY "${test_work_dir}")
endfunction()

# A line `/* wrap: malloc free */` in a source: in a sanitizer's build the linker sends
# libdcp's calls of malloc to the test's __wrap_malloc, and so on, and TEST_IS_WRAPPED is
# defined.
function(dcp_wrap target source)
    file(STRINGS "${source}" lines REGEX "^/\\* wrap: ")
    if(DCP_SANITIZE AND lines MATCHES "wrap: ([a-z_ ]+[a-z])")
        string(REPLACE " " ";" names "${CMAKE_MATCH_1}")
        target_compile_definitions(${target} PRIVATE TEST_IS_WRAPPED)
        foreach(name IN LISTS names)
            target_link_options(${target} PRIVATE "-Wl,--wrap=${name}")
        endforeach()
    endif()
endfunction()

# One cmocka executable for each C file of a folder; under mpirun in tests/mpi.
function(dcp_c_tests folder)
    if(folder STREQUAL "unit") # has the rooms of the tree
        dcp_room_sources(sources "${tests_dir}/${folder}")
    else()
        dcp_sources(sources "${tests_dir}/${folder}")
    endif()
    if(NOT cmocka_FOUND)
        return()
    endif()
    if(folder STREQUAL "mpi" AND NOT DCP_HAS_MPI)
        return()
    endif()
    foreach(source IN LISTS sources)
        get_filename_component(stem "${source}" NAME_WE)
        string(REGEX REPLACE "^(test|${folder})_" "" stem "${stem}")
        set(target test_${folder}_${stem})
        set(name ${folder}.${stem})
        dcp_test_program(${target} "${source}")
        dcp_wrap(${target} "${source}")
        if(folder STREQUAL "mpi")
            target_link_libraries(${target} PRIVATE MPI::MPI_C)
            file(STRINGS "${source}" lines REGEX "^/\\* np: *[0-9]+")
            set(np 4)
            if(lines MATCHES "np: *([0-9]+)")
                set(np ${CMAKE_MATCH_1})
            endif()
            add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe
                --allow-run-as-root -np ${np} $<TARGET_FILE:${target}>)
        else()
            add_test(NAME ${name} COMMAND ${target})
        endif()
        dcp_register(${name} ${folder} "${source}")
        file(STRINGS "${source}" campaign REGEX "\"--long\"")
        if(campaign)
            add_test(NAME ${name}_long COMMAND ${target} --long)
            dcp_register(${name}_long "${folder};long" "${source}")
        endif()
        get_test_property(${name} LABELS labels)
        if(folder STREQUAL "mpi")
            set_tests_properties(${name} PROPERTIES PROCESSORS 2)
        elseif(NOT "long" IN_LIST labels)
            add_dependencies(sanitizer_tests ${target})
        endif()
        if("tsan" IN_LIST labels)
            add_dependencies(thread_tests ${target})
        endif()
    endforeach()
endfunction()

# tests/fuzz/fuzz_X.c: a replay of corpus/X/. With -DDCP_FUZZ=ON libFuzzer searches from
# there for DCP_FUZZ_S seconds; what it keeps is in fuzz/X/ of the build.
function(dcp_fuzz_tests)
    add_custom_target(fuzz_targets)
    file(GLOB sources CONFIGURE_DEPENDS "${tests_dir}/fuzz/fuzz_*.c")
    set(replay "${tests_dir}/lib/replay_main.c")
    foreach(source IN LISTS sources)
        get_filename_component(target "${source}" NAME_WE)
        string(REGEX REPLACE "^fuzz_" "" stem "${target}")
        if(DCP_FUZZ)
            dcp_test_program(${target} "${source}")
            target_link_options(${target} PRIVATE -fsanitize=fuzzer)
            set(found "${CMAKE_BINARY_DIR}/fuzz/${stem}")
            file(MAKE_DIRECTORY "${found}")
            add_test(NAME fuzz.${stem} COMMAND ${target} -max_total_time=${DCP_FUZZ_S}
                -rss_limit_mb=3000 -timeout=30 -verbosity=0 -print_final_stats=1
                "-artifact_prefix=${CMAKE_BINARY_DIR}/fuzz/${stem}-"
                "${found}" "${tests_dir}/fuzz/corpus/${stem}")
        else()
            dcp_test_program(${target} "${source}" "${replay}")
            add_test(NAME fuzz.${stem} COMMAND ${target}
                "${tests_dir}/fuzz/corpus/${stem}")
        endif()
        dcp_register(fuzz.${stem} fuzz "${source}")
        add_dependencies(sanitizer_tests ${target})
        add_dependencies(fuzz_targets ${target})
    endforeach()
endfunction()

# tests/oracle/X.c: the program X, for the Python tests beside it.
function(dcp_oracle_programs)
    dcp_sources(sources "${tests_dir}/oracle")
    foreach(source IN LISTS sources)
        get_filename_component(target "${source}" NAME_WE)
        dcp_test_program(${target} "${source}")
    endforeach()
endfunction()

# tests/bench/X.c: the program bench_X, for scripts/bench.sh; not a test.
function(dcp_bench_programs)
    dcp_sources(sources "${tests_dir}/bench")
    foreach(source IN LISTS sources)
        get_filename_component(stem "${source}" NAME_WE)
        string(REGEX REPLACE "^bench_" "" stem "${stem}")
        dcp_test_program(bench_${stem} "${source}")
        set_target_properties(bench_${stem} PROPERTIES
            RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
    endforeach()
endfunction()

# What makes the power go, and files fail: a library for LD_PRELOAD, and programs. A
# method, a script tests/fault/X or crash_states, is the tests fault.X and, with --long,
# fault.X_long; tests/fault/report runs them all. Sanitizers want to be loaded first, and
# are left alone.
function(dcp_fault_methods)
    if(DCP_SANITIZE)
        return()
    endif()
    dcp_sources(sources "${tests_dir}/fault/shim")
    add_library(fault_shim SHARED ${sources})
    target_link_libraries(fault_shim PRIVATE Threads::Threads)
    set_target_properties(fault_shim PROPERTIES
        LIBRARY_OUTPUT_DIRECTORY "${test_work_dir}")
    dcp_sources(sources "${tests_dir}/fault/crash")
    dcp_test_program(crash_states ${sources})
    target_compile_definitions(crash_states PRIVATE
        DCP_SHIM_PATH="$<TARGET_FILE:fault_shim>")
    add_dependencies(crash_states fault_shim)
    dcp_fault_method(crash_states $<TARGET_FILE:crash_states>
        "${tests_dir}/fault/crash/main.c")
    dcp_test_program(power_saver "${tests_dir}/fault/power/saver.c"
        "${tests_dir}/fault/crash/check.c")
    if(NOT DCP_PYTHON)
        return()
    endif()
    add_test(NAME fault.shim
        COMMAND "${DCP_PYTHON}" "${tests_dir}/fault/check_shim.py")
    dcp_register(fault.shim fault "${tests_dir}/fault/check_shim.py")
    file(GLOB scripts CONFIGURE_DEPENDS "${tests_dir}/fault/*")
    foreach(script IN LISTS scripts)
        get_filename_component(name "${script}" NAME)
        if(NOT IS_DIRECTORY "${script}" AND NOT name MATCHES "\\.|^report$")
            dcp_fault_method(${name} "${script}" "${script}")
        endif()
    endforeach()
endfunction()

# dcp_fault_method(NAME COMMAND FILE)
function(dcp_fault_method name command file)
    add_test(NAME fault.${name} COMMAND ${command} --quick)
    add_test(NAME fault.${name}_long COMMAND ${command} --long)
    dcp_register(fault.${name} fault "${file}")
    dcp_register(fault.${name}_long "fault;long" "${file}")
endfunction()

function(dcp_bats_tests)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${tests_dir}/*.bats")
    if(NOT DCP_BATS)
        return()
    endif()
    foreach(source IN LISTS sources)
        get_filename_component(stem "${source}" NAME_WE)
        get_filename_component(folder "${source}" DIRECTORY)
        get_filename_component(folder "${folder}" NAME)
        add_test(NAME ${folder}.${stem} COMMAND "${DCP_BATS}" "${source}")
        dcp_register(${folder}.${stem} ${folder} "${source}")
    endforeach()
endfunction()

# A test that imports a package of the peers runs with their python, others with ours.
function(dcp_python_tests)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${tests_dir}/test_*.py")
    if(NOT DCP_PYTHON)
        return()
    endif()
    foreach(source IN LISTS sources)
        get_filename_component(stem "${source}" NAME_WE)
        get_filename_component(folder "${source}" DIRECTORY)
        get_filename_component(folder "${folder}" NAME)
        string(REGEX REPLACE "^test_" "" stem "${stem}")
        set(name ${folder}.${stem})
        set(labels ${folder})
        file(STRINGS "${source}" peers REGEX
            "^(import|from) (torch|transformers|safetensors|numpy|deepspeed|zstandard)")
        if(peers)
            list(APPEND labels peers)
            add_test(NAME ${name} COMMAND "${tests_dir}/lib/peer.sh" "${source}")
        else()
            add_test(NAME ${name} COMMAND "${DCP_PYTHON}" "${source}")
        endif()
        dcp_register(${name} "${labels}" "${source}")
    endforeach()
endfunction()
