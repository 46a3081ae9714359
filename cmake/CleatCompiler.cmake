# SPDX-License-Identifier: Apache-2.0
# Included before project(): which compiler a build takes unless it is told another one. The product is built with GCC. Sanitizers
# come with clang, which compiles them three times as fast as GCC 12 and has libFuzzer.
set(CLEAT_SANITIZE "none" CACHE STRING "none, asan (address, undefined behaviour, libFuzzer's coverage) or tsan")
set_property(CACHE CLEAT_SANITIZE PROPERTY STRINGS none asan tsan)
if(NOT CLEAT_SANITIZE MATCHES "^(none|asan|tsan)$")
  message(FATAL_ERROR "CLEAT_SANITIZE is '${CLEAT_SANITIZE}': use none, asan or tsan")
endif()

if(NOT CLEAT_SANITIZE STREQUAL "none" AND NOT CMAKE_CXX_COMPILER)
  find_program(CLEAT_CLANG NAMES clang-16 clang-19)
  find_program(CLEAT_CLANGXX NAMES clang++-16 clang++-19)
  if(NOT CLEAT_CLANG OR NOT CLEAT_CLANGXX)
    message(FATAL_ERROR "Builds with sanitizers need clang 16 (Debian 12) or 19 (Debian 13) and its runtime, libclang-rt-*-dev: "
                        "'make setup' installs them")
  endif()
  set(CMAKE_C_COMPILER "${CLEAT_CLANG}")
  set(CMAKE_CXX_COMPILER "${CLEAT_CLANGXX}")
endif()
