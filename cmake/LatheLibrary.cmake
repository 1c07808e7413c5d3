# liblathe: the room capi and all lower rooms as one library, shared and static, and what is installed with it: headers,
# lathe-config.cmake, lathe.pc. The shared library exports the functions of lathe.h and nothing else.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

function(lathe_library)
  set(rooms base layout attn plan step kernels_ref kernels_cpu kernels ops io model engine capi)
  # A user of the static library has to link these; the shared one links them itself.
  set(link_flags -lfmt -lhwy -lxxhash -lpcre2-8 -lutf8proc -lz -lpthread)
  if(LATHE_HAS_CUDA)
    list(APPEND rooms kernels_cuda)
    list(APPEND link_flags $<TARGET_FILE:CUDA::cudart_static> -ldl -lrt)
  endif()
  foreach(room ${rooms})
    list(APPEND objects $<TARGET_OBJECTS:lathe_${room}>)
  endforeach()

  add_library(lathe_shared SHARED $<TARGET_OBJECTS:lathe_capi>)
  set(map ${PROJECT_SOURCE_DIR}/src/capi/lathe.map)
  target_link_libraries(lathe_shared PRIVATE lathe_engine)
  target_link_options(lathe_shared PRIVATE -Wl,--version-script=${map} -Wl,--no-undefined)
  set_target_properties(lathe_shared PROPERTIES LINK_DEPENDS ${map} EXPORT_NAME lathe LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  add_library(lathe_static STATIC ${objects})
  target_link_libraries(lathe_static INTERFACE ${link_flags})
  set_target_properties(lathe_static PROPERTIES LINKER_LANGUAGE CXX)
  foreach(target lathe_shared lathe_static)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME lathe ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
    target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  endforeach()
  add_library(lathe::lathe ALIAS lathe_shared)
  add_library(lathe::lathe_static ALIAS lathe_static)

  # A component of its own, which a wheel leaves out.
  set(package ${CMAKE_INSTALL_LIBDIR}/cmake/lathe)
  install(TARGETS lathe_shared lathe_static EXPORT lathe-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT devel
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT devel)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/lathe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT devel)
  install(EXPORT lathe-targets NAMESPACE lathe:: DESTINATION ${package} COMPONENT devel)
  set(config ${PROJECT_BINARY_DIR}/lathe-config.cmake)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/lathe-config.cmake.in ${config} @ONLY)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/lathe-config-version.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${config} ${PROJECT_BINARY_DIR}/lathe-config-version.cmake DESTINATION ${package} COMPONENT devel)

  string(REPLACE ";" " " private_libs "${link_flags}")
  string(REPLACE "$<TARGET_FILE:CUDA::cudart_static>" "-lcudart_static" private_libs "${private_libs}")
  include(LathePkgConfig)
  lathe_pkg_config(${PROJECT_BINARY_DIR}/lathe.pc)
  install(FILES ${PROJECT_BINARY_DIR}/lathe.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT devel)
endfunction()
