# Debian's libxxhash-dev ships a pkg-config file only.
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxHash REQUIRED IMPORTED_TARGET GLOBAL libxxhash)
if(NOT TARGET xxHash::xxhash)
  add_library(xxHash::xxhash ALIAS PkgConfig::xxHash)
endif()
