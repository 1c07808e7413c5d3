# A room is one folder of src/ and one static library. lathe_room() collects the room's sources and tests, so adding a file needs no
# edit here; rooms link only to lower ones (tools/check_rooms.py holds the includes).

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(LATHE_CCACHE ccache)
if(LATHE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${LATHE_CCACHE})
endif()

add_library(lathe_flags INTERFACE)
target_include_directories(lathe_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_features(lathe_flags INTERFACE cxx_std_20)
# Contraction would let one path use an fma where another has a product and a sum: bytes would depend on the compiler.
target_compile_options(lathe_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
# Another project that links the rooms chooses its own warnings.
if(PROJECT_IS_TOP_LEVEL)
  target_compile_options(lathe_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wshadow -Werror>)
  # GCC looks for garbage only from here on (in KB): a tenth of its time.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(lathe_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=524288>)
  endif()
endif()
# GCC 12 reports overlaps inside std::string that cannot happen (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(lathe_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()

# Half of a file's compilation is its headers, which a batch reads once. LATHE_UNITY=OFF (preset debug) compiles file by file.
option(LATHE_UNITY "Compile the rooms' files in batches" ${PROJECT_IS_TOP_LEVEL})

# lathe_in_batches(<target> [<batch>]): <batch> (24) files at a time; 0: all. A file asks to be compiled alone in its own text: by Highway's
# foreach_target.h, which includes the file again for each SIMD target, or by a line "// Compiled alone: " and the reason.
function(lathe_in_batches target)
  set(batch 24)
  if(ARGC GREATER 1)
    set(batch ${ARGV1})
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${LATHE_UNITY} UNITY_BUILD_BATCH_SIZE ${batch})
  # GCC bounds how much a file may grow by inlining: a batch is as many files. Tests need no such speed.
  if(NOT target MATCHES "_test$")
    target_compile_options(${target} PRIVATE
      "$<$<AND:$<CXX_COMPILER_ID:GNU>,$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:--param=large-unit-insns=1000000>")
  endif()
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  list(FILTER sources INCLUDE REGEX "\\.cc$")
  list(FILTER sources EXCLUDE REGEX "^${PROJECT_BINARY_DIR}")
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder})
    file(STRINGS ${source} alone REGEX "^#include \"hwy/foreach_target.h\"|^// Compiled alone: " LIMIT_COUNT 1)
    if(alone)
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
endfunction()

# lathe_room(<name> [FOLDER <folder>] [EXCEPT <folder>...] [DEPS <target>...] [TEST_DEPS <target>...] [ALONE])
# The sources of src/<folder> (<name>), its folders included, as one library; tests are in folders named test/. ALONE: file by file.
function(lathe_room name)
  cmake_parse_arguments(ARG "ALONE" "FOLDER" "EXCEPT;DEPS;TEST_DEPS" ${ARGN})
  if(NOT ARG_FOLDER)
    set(ARG_FOLDER ${name})
  endif()
  set(target lathe_${name})
  set(folder ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_FOLDER})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cc)
  foreach(except ${ARG_EXCEPT})
    list(FILTER sources EXCLUDE REGEX "^${folder}/${except}/")
  endforeach()
  list(FILTER sources EXCLUDE REGEX "_(fake_cuda|gpu)_(test|bench)\\.cc$")  # programs of their own (LatheCuda.cmake)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "/test/")
  list(FILTER tests INCLUDE REGEX "/test/[a-z0-9_]+_test\\.cc$")
  add_library(${target} STATIC ${sources})
  target_link_libraries(${target} PUBLIC lathe_flags ${ARG_DEPS})
  if(NOT ARG_ALONE)
    lathe_in_batches(${target})
  endif()
  add_library(lathe::${name} ALIAS ${target})
  if(LATHE_TESTS AND tests)
    lathe_test(${target}_test ${tests} LINK ${target} ${ARG_TEST_DEPS})
  endif()
endfunction()

# lathe_test_data(<target>): the folder of the tests' data as LATHE_TEST_DATA. For folders whose names have certain lengths, GCC 12 also
# reports that string + literal reads or writes out of bounds, which cannot happen (GCC bug 105651).
function(lathe_test_data target)
  target_compile_definitions(${target} PRIVATE LATHE_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds$<SEMICOLON>-Wno-stringop-overflow$<SEMICOLON>-Wno-stringop-overread>)
  endif()
endfunction()

# lathe_test(<target> <file>... LINK <target>... [PUBLIC_HEADERS])
# One executable for a list of test files: one link and one start instead of one per file. The files are compiled at -O1, which takes
# 0.61 to 0.65 of -O3's time; what they link keeps its optimisation. They share the first one's precompiled headers: 2.5 s less a file;
# and they are compiled 14 at a time, as they instantiate the same templates.
# PUBLIC_HEADERS: they see the installed headers alone.
set(LATHE_TEST_HEADERS <gmock/gmock.h> <gtest/gtest.h> <fmt/format.h> <algorithm> <array> <cmath> <cstring> <functional> <limits> <map>
  <memory> <optional> <random> <set> <span> <string> <vector>)
set(LATHE_TEST_OPTIONS $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
# At -O1 GCC 12 reports copies beyond a std::string that cannot happen (GCC bugs 105329 and 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND LATHE_TEST_OPTIONS
    "$<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>")
endif()
function(lathe_share_test_headers target)
  if(NOT target STREQUAL lathe_base_test)
    target_precompile_headers(${target} REUSE_FROM lathe_base_test)
  endif()
  if(LATHE_CCACHE)
    set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros;${LATHE_CCACHE}")
  endif()
endfunction()
function(lathe_test target)
  cmake_parse_arguments(ARG "PUBLIC_HEADERS" "" "LINK" ${ARGN})
  add_executable(${target} ${ARG_UNPARSED_ARGUMENTS})
  target_compile_options(${target} PRIVATE ${LATHE_TEST_OPTIONS})
  target_link_libraries(${target} PRIVATE ${ARG_LINK} GTest::gmock GTest::gtest_main)
  if(target STREQUAL lathe_base_test)
    target_precompile_headers(${target} PRIVATE ${LATHE_TEST_HEADERS})
  endif()
  if(NOT ARG_PUBLIC_HEADERS)
    lathe_share_test_headers(${target})
  endif()
  lathe_in_batches(${target} 14)
  add_test(NAME ${target} COMMAND ${target})
endfunction()
