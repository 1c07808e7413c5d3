# Debian's libedit-dev ships pkg-config files only.
find_package(PkgConfig REQUIRED)
pkg_check_modules(LIBEDIT REQUIRED IMPORTED_TARGET GLOBAL libedit)
if(NOT TARGET libedit::libedit)
  add_library(libedit::libedit ALIAS PkgConfig::LIBEDIT)
endif()
