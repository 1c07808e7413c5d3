# Debian's libutf8proc-dev ships a pkg-config file only.
find_package(PkgConfig REQUIRED)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET GLOBAL libutf8proc)
if(NOT TARGET utf8proc::utf8proc)
  add_library(utf8proc::utf8proc ALIAS PkgConfig::utf8proc)
endif()
