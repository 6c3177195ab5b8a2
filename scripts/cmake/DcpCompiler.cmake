# How every file of the project is compiled.

option(DCP_WERROR "Warnings are errors" $ENV{CI})
option(DCP_FUZZ "Build tests/fuzz with libFuzzer (needs clang)" OFF)
set(DCP_FUZZ_S 3 CACHE STRING "Seconds that a test of tests/fuzz searches")
set(DCP_SANITIZE "" CACHE STRING "Sanitizers: address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Kind of build" FORCE)
endif()

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")

if(BUILD_SHARED_LIBS)
    set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
endif()

add_compile_definitions(_GNU_SOURCE)
# C++ is only the fake of CUDA in tests; nvcc hands options on to the host's compiler.
set(not_cuda "$<NOT:$<COMPILE_LANGUAGE:CUDA>>")
add_compile_options("$<${not_cuda}:-Wall;-Wextra>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    add_compile_options(
        "$<$<COMPILE_LANGUAGE:C>:-Wpedantic;-Wshadow;-Wconversion;-Wvla>")
endif()
if(DCP_WERROR)
    add_compile_options("$<${not_cuda}:-Werror>"
        "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>")
endif()
add_link_options(-Wl,--as-needed)

if(DCP_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "DCP_FUZZ needs clang: use the preset fuzz")
    endif()
    add_compile_options("$<${not_cuda}:-fsanitize=fuzzer-no-link>")
endif()
if(DCP_SANITIZE)
    add_compile_options("$<${not_cuda}:-fsanitize=${DCP_SANITIZE}>"
        "$<${not_cuda}:-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
    add_link_options(-fsanitize=${DCP_SANITIZE})
elseif(NOT DCP_FUZZ)
    # A shared library that lacks a symbol fails here, not in a user's program.
    add_link_options(-Wl,-z,defs)
endif()
