# Debian's libpcre2-dev ships pkg-config files only; patterns and texts are UTF-8, so the 8-bit library is the one.
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET GLOBAL libpcre2-8)
if(NOT TARGET PCRE2::PCRE2)
  add_library(PCRE2::PCRE2 ALIAS PkgConfig::PCRE2)
endif()
