# SPDX-License-Identifier: Apache-2.0
# What keeps an error in memory from becoming somebody's way in, in all that a host runs: programs at addresses that nobody knows
# (PIE), whose tables are read-only once they run (RELRO, bound at the start), canaries on stacks, the C library's checked calls, and
# marks where calls and returns may lead. Included by CleatBuild.cmake, whose functions call these two:
#   cleat_harden(target [DATA_PATH])      how its sources are compiled
#   cleat_harden_program(target)          how it is linked
# What the package has of it, tests/package/test_elf.py reads; docs/operations.md says what it costs.
#
# Sanitizers and coverage have none: theirs are other checks of the same, and the C library's can't be compiled without optimisation.

include(CheckPIESupported)
check_pie_supported(LANGUAGES C CXX)
set(CLEAT_HARDENED OFF)
if(CLEAT_HARDENING AND CLEAT_SANITIZE STREQUAL "none" AND NOT CLEAT_COVERAGE)
  set(CLEAT_HARDENED ON)
endif()

# A source or a target that is compiled without optimisation takes these options with it.
set(CLEAT_UNOPTIMISED -O0)
if(CLEAT_HARDENED)
  list(APPEND CLEAT_UNOPTIMISED -U_FORTIFY_SOURCE)
endif()

# DATA_PATH: each request of a guest passes it.
function(cleat_harden name)
  cmake_parse_arguments(ARG "DATA_PATH" "" "" ${ARGN})
  if(NOT CLEAT_HARDENED)
    return()
  endif()
  target_compile_options(${name} PRIVATE -fstack-protector-strong
                                         $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE$<SEMICOLON>-D_FORTIFY_SOURCE=3>)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    target_compile_options(${name} PRIVATE -fcf-protection=$<IF:$<BOOL:${ARG_DATA_PATH}>,return,full>)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    target_compile_options(${name} PRIVATE -mbranch-protection=standard)
  endif()
endfunction()

function(cleat_harden_program name)
  if(CLEAT_HARDENED)
    target_link_options(${name} PRIVATE LINKER:-z,relro,-z,now,-z,noexecstack)
  endif()
endfunction()
