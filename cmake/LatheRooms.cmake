# A room is one folder of src/ and one static library. lathe_room() collects the room's sources and its *_test.cc files, so
# adding a file needs no edit here; rooms link only to rooms that stand above them (tools/check_rooms.py holds the includes).

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

# Half of a file's compilation is its headers, which a batch reads once. Set LATHE_UNITY=OFF while you change one file often.
option(LATHE_UNITY "Compile the rooms' files in batches" ${PROJECT_IS_TOP_LEVEL})
# lathe_in_batches(<target> [<regex>...]): 24 files at a time; files that match are compiled alone.
function(lathe_in_batches target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${LATHE_UNITY} UNITY_BUILD_BATCH_SIZE 24)
  get_target_property(alone ${target} SOURCES)
  list(JOIN ARGN "|" regex)
  if(regex)
    list(FILTER alone INCLUDE REGEX "${regex}")
    set_source_files_properties(${alone} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# lathe_hot(<variable> <target> [<regex>...]): of the sources in <variable>, those that match a regex become one batch, which keeps -O3.
function(lathe_hot variable target)
  set(sources ${${variable}})
  set(batches "")
  set(number 0)
  foreach(regex ${ARGN})
    set(hot ${sources})
    list(FILTER hot INCLUDE REGEX "${regex}")
    list(FILTER sources EXCLUDE REGEX "${regex}")
    if(LATHE_UNITY)
      list(TRANSFORM hot REPLACE "(.+)" "#include \"\\1\"\n")
      list(JOIN hot "" text)
      set(hot ${PROJECT_BINARY_DIR}/hot/${target}_${number}.cc)
      file(CONFIGURE OUTPUT ${hot} CONTENT "${text}")
      set_source_files_properties(${hot} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
    lathe_keep_optimised(${hot})
    list(APPEND batches ${hot})
    math(EXPR number "${number} + 1")
  endforeach()
  set(${variable} ${sources} ${batches} PARENT_SCOPE)
endfunction()

# What plans, loads, parses and prints is compiled at -O1, in 0.6 to 0.7 of -O3's time (bench/notes/build/06), but for loops
# that fill: they become memset.
set(LATHE_GNU_RELEASE $<AND:$<CXX_COMPILER_ID:GNU>,$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>)
function(lathe_cold target)
  target_compile_options(${target} PRIVATE "$<${LATHE_GNU_RELEASE}:-O1;-ftree-loop-distribute-patterns>")
endfunction()
function(lathe_keep_optimised)
  # GCC bounds the growth of large files, such as batches are.
  set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS "$<${LATHE_GNU_RELEASE}:-O3;--param=large-unit-insns=1000000>")
endfunction()

# lathe_room(<name> [DEPS <target>...] [TEST_DEPS <target>...] [FOLDER <folder>...] [ALONE <regex>...] [HOT <regex>...] [BATCHED_TESTS])
# ALONE: such files are compiled one by one, at -O3: they are compiled once for each SIMD target. HOT: the others that run often, a batch
# for each regex.
# BATCHED_TESTS: its tests instantiate the same templates, so that a batch of them takes 0.6 of their time. No two of their files may name a
# helper alike.
function(lathe_room name)
  cmake_parse_arguments(ARG "BATCHED_TESTS" "" "FOLDER;DEPS;TEST_DEPS;ALONE;HOT" ${ARGN})
  if(NOT ARG_FOLDER)
    set(ARG_FOLDER ${name})
  endif()
  string(REPLACE "/" "_" target "lathe_${name}")
  list(TRANSFORM ARG_FOLDER APPEND "/*.cc")
  file(GLOB sources CONFIGURE_DEPENDS ${ARG_FOLDER})
  list(FILTER sources EXCLUDE REGEX "_(fake_cuda|gpu)_test\\.cc$")  # programs of their own (LatheCuda.cmake)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(sources)
    list(JOIN ARG_ALONE "|" alone_regex)
    set(alone "")
    if(alone_regex)
      set(alone ${sources})
      list(FILTER alone INCLUDE REGEX "${alone_regex}")
      list(FILTER sources EXCLUDE REGEX "${alone_regex}")
      set_source_files_properties(${alone} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      lathe_keep_optimised(${alone})
    endif()
    lathe_hot(sources ${target} ${ARG_HOT})
    add_library(${target} STATIC ${sources} ${alone})
    target_link_libraries(${target} PUBLIC lathe_flags ${ARG_DEPS})
    lathe_in_batches(${target})
    lathe_cold(${target})
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE lathe_flags ${ARG_DEPS})
  endif()
  add_library(lathe::${name} ALIAS ${target})
  if(LATHE_TESTS AND tests)
    lathe_test(${target}_test ${tests} LINK ${target} ${ARG_TEST_DEPS})
    if(ARG_BATCHED_TESTS)
      lathe_in_batches(${target}_test)
      set_target_properties(${target}_test PROPERTIES UNITY_BUILD_BATCH_SIZE 14)
    endif()
  endif()
endfunction()

# lathe_test(<target> <file>... LINK <target>... [PUBLIC_HEADERS])
# One executable for a list of test files: one link and one start instead of one per file. The files are compiled at -O1, which takes
# 0.61 to 0.65 of -O3's time; what they link keeps its optimisation. They share the first one's precompiled headers: 2.5 s less a file.
# PUBLIC_HEADERS: they see the installed headers alone.
set(LATHE_TEST_HEADERS <gmock/gmock.h> <gtest/gtest.h> <fmt/format.h> <algorithm> <array> <cmath> <cstring> <functional> <limits> <map>
  <memory> <optional> <random> <set> <span> <string> <vector>)
set(LATHE_TEST_OPTIONS $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
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
  add_test(NAME ${target} COMMAND ${target})
endfunction()
