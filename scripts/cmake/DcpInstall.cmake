# What `cmake --install` puts where: headers, libraries, dcp.pc, and the CMake package.
include(CMakePackageConfigHelpers)

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

# dcp.pc, dcp_mpi.pc, dcp_cuda.pc
list(JOIN dcp_requires " " dcp_requires_text)
foreach(target IN LISTS targets)
    set(pc_name ${target})
    if(target STREQUAL "dcp")
        set(pc_description "Distributed checkpoints: save, load, verify, reshard")
        set(pc_requires "")
        set(pc_requires_private "${dcp_requires_text}")
        set(pc_libs_private "-lpthread -lm")
    elseif(target STREQUAL "dcp_mpi")
        set(pc_description "libdcp's control plane over MPI")
        set(pc_requires "dcp")
        set(pc_requires_private "ompi-c")
        set(pc_libs_private "-lpthread")
    else()
        set(pc_description "libdcp's device memory for CUDA")
        set(pc_requires "dcp")
        set(pc_requires_private "")
        set(pc_libs_private "-lcudart")
    endif()
    configure_file("${PROJECT_SOURCE_DIR}/scripts/cmake/dcp.pc.in" ${target}.pc @ONLY)
    install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${target}.pc"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endforeach()
