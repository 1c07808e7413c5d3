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

# The device of src/kernels/cuda: a room's library and its tests that need no GPU, recursively, and only where a toolkit is. Local
# memory and spills are errors: no kernel here can afford them.
function(lathe_cuda_room)
  set(folder ${CMAKE_SOURCE_DIR}/src/kernels/cuda)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cc ${folder}/*.cu)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|bench)\\.(cc|cu)$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER tests EXCLUDE REGEX "_gpu_test\\.cc$")
  add_library(lathe_kernels_cuda STATIC ${sources})
  target_link_libraries(lathe_kernels_cuda PUBLIC lathe_flags lathe_attn CUDA::cudart_static)
  target_compile_options(lathe_kernels_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -lineinfo
    -Xptxas=-warn-spills,-warn-lmem-usage>)
  # Codecs promise the CPU's bytes: a product and a sum stay apart, as with -ffp-contract=off.
  set(codecs ${sources})
  list(FILTER codecs INCLUDE REGEX "/codec/[^/]*\\.cu$")
  set_source_files_properties(${codecs} PROPERTIES COMPILE_OPTIONS --fmad=false)
  if(LATHE_TESTS)
    lathe_test(lathe_kernels_cuda_test ${tests} LINK lathe_kernels_cuda)
    target_include_directories(lathe_kernels_cuda_test PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
    add_test(NAME sass COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/check_sass.py ${folder}
      $<TARGET_OBJECTS:lathe_kernels_cuda> COMMAND_EXPAND_LISTS)
    set_tests_properties(sass PROPERTIES SKIP_RETURN_CODE 77 WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  endif()
endfunction()

# A program of its own in gpu/, to be run on a machine with a GPU: the CUDA runtime and the project are linked into
# it, and what else it needs beyond the C library is copied to gpu/lib, so that the folder can be carried there.
function(lathe_gpu_program source folder)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} EXCLUDE_FROM_ALL ${source})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -lineinfo>)
  file(RELATIVE_PATH lib ${folder} ${CMAKE_BINARY_DIR}/gpu/lib)
  set_target_properties(${name} PROPERTIES CUDA_RUNTIME_LIBRARY Static
    RUNTIME_OUTPUT_DIRECTORY ${folder} BUILD_RPATH "$ORIGIN/${lib}")
  if(source MATCHES "\\.cc$")
    target_link_libraries(${name} PRIVATE lathe_kernels_cuda)
    if(LATHE_TESTS)
      target_link_libraries(${name} PRIVATE GTest::gtest)
    endif()
    add_custom_command(TARGET ${name} POST_BUILD
      COMMAND ${CMAKE_SOURCE_DIR}/tools/bundle_libs.sh $<TARGET_FILE:${name}> ${CMAKE_BINARY_DIR}/gpu/lib)
  endif()
endfunction()

# Tests: every *_gpu_test.cu (nothing but CUDA) and *_gpu_test.cc (against the CPU's code, with GoogleTest) of src/, run by make
# gpu-test. Benches: every *_gpu_bench.cc, run by make gpu-bench.
function(lathe_gpu_programs)
  add_custom_target(lathe_gpu_tests)
  add_custom_target(lathe_gpu_benches)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*_gpu_test.cu ${CMAKE_SOURCE_DIR}/src/*_gpu_test.cc)
  file(GLOB_RECURSE benches CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*_gpu_bench.cc)
  foreach(source ${tests})
    lathe_gpu_program(${source} ${CMAKE_BINARY_DIR}/gpu)
    get_filename_component(name ${source} NAME_WE)
    add_dependencies(lathe_gpu_tests ${name})
  endforeach()
  foreach(source ${benches})
    lathe_gpu_program(${source} ${CMAKE_BINARY_DIR}/gpu/bench)
    get_filename_component(name ${source} NAME_WE)
    add_dependencies(lathe_gpu_benches ${name})
  endforeach()
endfunction()
