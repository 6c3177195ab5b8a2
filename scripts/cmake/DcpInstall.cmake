# What `cmake --install` puts where: headers, libraries, pkg-config files, CMake package.
include(CMakePackageConfigHelpers)
list(JOIN dcp_requires " " dcp_requires_text)

install(DIRECTORY include/dcp DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
    FILES_MATCHING PATTERN "*.h")
install(TARGETS ${targets} EXPORT dcpTargets)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/dcp")
install(EXPORT dcpTargets NAMESPACE dcp:: DESTINATION "${package_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/scripts/cmake/dcpConfig.cmake.in"
    "${CMAKE_CURRENT_BINARY_DIR}/dcpConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/dcpConfigVersion.cmake"
    COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/dcpConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/dcpConfigVersion.cmake"
    DESTINATION "${package_dir}")

# dcp_pkg_config(TARGET DESCRIPTION PUBLIC NEEDS LIBS): TARGET.pc. What an archive needs
# is needed by whoever links it; what a shared library needs it finds itself. The prefix
# is told from where the file lies, so that an installed tree can be moved.
file(RELATIVE_PATH pc_prefix "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig"
    "${CMAKE_INSTALL_PREFIX}")
function(dcp_pkg_config target description public needs libs)
    if(BUILD_SHARED_LIBS)
        set(pc_requires "${public}")
        set(pc_requires_private "${needs}")
        set(pc_libs "")
        set(pc_libs_private "${libs}")
    else()
        set(pc_requires "${public} ${needs}")
        set(pc_requires_private "")
        set(pc_libs "${libs}")
        set(pc_libs_private "")
    endif()
    string(STRIP "${pc_requires}" pc_requires)
    configure_file("${PROJECT_SOURCE_DIR}/scripts/cmake/dcp.pc.in" ${target}.pc @ONLY)
    install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${target}.pc"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endfunction()

dcp_pkg_config(dcp "Distributed checkpoints: save, load, verify, reshard"
    "" "${dcp_requires_text}" "-lpthread -lm")
if(TARGET dcp_mpi)
    dcp_pkg_config(dcp_mpi "libdcp's control plane over MPI" dcp ompi-c -lpthread)
endif()
if(TARGET dcp_cuda)
    dcp_pkg_config(dcp_cuda "libdcp's device memory for CUDA" dcp "" -lcudart)
endif()
