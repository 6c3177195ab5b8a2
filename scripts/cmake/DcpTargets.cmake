# Shapes of targets that several folders share.

# dcp_sources(OUT FOLDER...): the C sources of folders, now and later.
function(dcp_sources out)
    list(TRANSFORM ARGN APPEND "/*.c" OUTPUT_VARIABLE patterns)
    file(GLOB sources CONFIGURE_DEPENDS ${patterns})
    set(${out} "${sources}" PARENT_SCOPE)
endfunction()

# dcp_room_sources(OUT FOLDER...): the same of folders and all rooms in them.
function(dcp_room_sources out)
    list(TRANSFORM ARGN APPEND "/*.c" OUTPUT_VARIABLE patterns)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${patterns})
    set(${out} "${sources}" PARENT_SCOPE)
endfunction()

# dcp_names(OUT PATTERN): files of the current folder and its rooms, named from there, as
# folders above it may have any name.
function(dcp_names out pattern)
    file(GLOB_RECURSE names CONFIGURE_DEPENDS
        RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" "${pattern}")
    set(${out} "${names}" PARENT_SCOPE)
endfunction()

# dcp_cuda_sources(OUT): those of the current folder that CUDA compiles or links: what is
# called cuda, nccl or cudnn (X_cuda.c, nccl.c, cuda/X.cu), as far as that is on.
set(dcp_of_cuda "(^|[_/])(cuda|nccl|cudnn)(/.*)?\\.c$")
function(dcp_cuda_sources out)
    dcp_names(sources "*.c")
    list(FILTER sources INCLUDE REGEX "${dcp_of_cuda}")
    foreach(part nccl cudnn)
        string(TOUPPER ${part} feature)
        if(NOT DCP_HAS_${feature})
            list(FILTER sources EXCLUDE REGEX "(^|[_/])${part}\\.c$")
        endif()
    endforeach()
    dcp_names(kernels "*.cu")
    set(${out} ${sources} ${kernels} PARENT_SCOPE)
endfunction()

# dcp_add_program(NAME): the program of the current folder. Everything but main.c and
# what is for CUDA goes into the archive <folder>_objs, which tests link too. What is
# called mpi (X_mpi.c, mpi.c) is compiled only when that is on.
function(dcp_add_program name)
    get_filename_component(folder "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
    dcp_names(sources "*.c")
    list(FILTER sources EXCLUDE REGEX "${dcp_of_cuda}")
    if(NOT DCP_HAS_MPI)
        list(FILTER sources EXCLUDE REGEX "(^|[_/])mpi\\.c$")
    endif()
    list(REMOVE_ITEM sources main.c)
    add_library(${folder}_objs STATIC ${sources})
    target_link_libraries(${folder}_objs PUBLIC dcp_cli)
    add_executable(${name} main.c)
    target_link_libraries(${name} PRIVATE ${folder}_objs)
    install(TARGETS ${name} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
    dcp_add_manual(${name})
endfunction()

# dcp_add_manual(NAME): a program writes its own man page and completion, from the option
# table that also parses its arguments.
function(dcp_add_manual name)
    set(man "${CMAKE_BINARY_DIR}/share/man/man1/${name}.1")
    set(bash "${CMAKE_BINARY_DIR}/share/bash-completion/completions/${name}")
    set(zsh "${CMAKE_BINARY_DIR}/share/zsh/site-functions/_${name}")
    set(fish "${CMAKE_BINARY_DIR}/share/fish/vendor_completions.d/${name}.fish")
    foreach(file "${man}" "${bash}" "${zsh}" "${fish}")
        get_filename_component(folder "${file}" DIRECTORY)
        file(MAKE_DIRECTORY "${folder}")
    endforeach()
    add_custom_command(OUTPUT "${man}" "${bash}" "${zsh}" "${fish}"
        COMMAND ${name} --help-man > "${man}"
        COMMAND ${name} --help-complete bash > "${bash}"
        COMMAND ${name} --help-complete zsh > "${zsh}"
        COMMAND ${name} --help-complete fish > "${fish}"
        DEPENDS ${name} VERBATIM)
    add_custom_target(${name}-manual ALL DEPENDS "${man}" "${bash}" "${zsh}" "${fish}")
    set(share "${CMAKE_INSTALL_DATADIR}")
    install(FILES "${man}" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
    install(FILES "${bash}" DESTINATION "${share}/bash-completion/completions")
    install(FILES "${zsh}" DESTINATION "${share}/zsh/site-functions")
    install(FILES "${fish}" DESTINATION "${share}/fish/vendor_completions.d")
endfunction()
