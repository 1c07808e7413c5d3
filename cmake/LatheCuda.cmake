# CUDA is found, not required: without a toolkit the CPU build configures and passes. LATHE_CUDA is ON (use it if found), OFF
# or REQUIRED.
set(LATHE_HAS_CUDA OFF)
if(LATHE_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES 90a)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    # Debian 12's CMake does not know how nvcc 13 spells C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(LATHE_HAS_CUDA ON)
  elseif(LATHE_CUDA STREQUAL "REQUIRED")
    message(FATAL_ERROR "LATHE_CUDA=REQUIRED but no CUDA compiler was found; put nvcc on PATH or set CUDACXX")
  endif()
endif()
message(STATUS "Lathe: CUDA sources ${LATHE_HAS_CUDA}")

# Every *_gpu_test.cu of src/ is a program of its own in gpu/, to be run on a machine with a GPU (make gpu-test). It links the CUDA
# runtime statically, so that the binary can be carried there.
function(lathe_gpu_tests)
  add_custom_target(lathe_gpu_tests)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*_gpu_test.cu)
  foreach(source ${tests})
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} EXCLUDE_FROM_ALL ${source})
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -lineinfo>)
    set_target_properties(${name} PROPERTIES CUDA_RUNTIME_LIBRARY Static
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/gpu)
    add_dependencies(lathe_gpu_tests ${name})
  endforeach()
endfunction()
