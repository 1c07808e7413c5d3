# lathe_commit(OUT): the commit that is built; empty if the source is not a repository. CMake runs again after each commit.
function(lathe_commit out)
  set(commit "")
  find_package(Git QUIET)
  if(GIT_FOUND)
    set(git ${GIT_EXECUTABLE} -C ${PROJECT_SOURCE_DIR})
    execute_process(COMMAND ${git} rev-parse --show-prefix --short=12 HEAD
      OUTPUT_VARIABLE said RESULT_VARIABLE failed ERROR_QUIET)
    # A prefix means that the source is part of another project's repository; that commit says nothing about Lathe.
    if(NOT failed AND said MATCHES "^\n([0-9a-f]+)\n$")
      set(commit ${CMAKE_MATCH_1})
      execute_process(COMMAND ${git} rev-parse --path-format=absolute --git-path logs/HEAD
        OUTPUT_VARIABLE log OUTPUT_STRIP_TRAILING_WHITESPACE)
      if(EXISTS ${log})
        set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${log})
      endif()
    endif()
  endif()
  set(${out} "${commit}" PARENT_SCOPE)
endfunction()
