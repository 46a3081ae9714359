# SPDX-License-Identifier: Apache-2.0
# Compiler settings, and the functions by which every folder declares what it builds:
#   cleat_library(name [HEAVY_HEADERS] [DATA_PATH] SOURCES a.cc ... DEPS lib ...)
#                               HEAVY_HEADERS: gRPC's and the like; DATA_PATH: each request passes it (CleatHardening.cmake)
#   cleat_command_line(sources...)                                        sources that read a command line

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# Objects are the same wherever the clone lies: no path of this machine in them, and two clones share one cache. For the latter
# no header is precompiled either. (They saved a tenth of a large source's time, since those are compiled together, and took more
# to make.)
add_compile_options("-ffile-prefix-map=${CMAKE_SOURCE_DIR}=.")
find_program(CLEAT_CCACHE ccache)
if(CLEAT_CCACHE)
  set(launcher "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${CLEAT_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${launcher}")
  set(CMAKE_C_COMPILER_LAUNCHER "${launcher}")
endif()

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(spdlog REQUIRED)
find_package(ZLIB REQUIRED)
pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(PROTOBUF_C REQUIRED IMPORTED_TARGET libprotobuf-c)

add_library(cleat_flags INTERFACE)
target_include_directories(cleat_flags INTERFACE "${CMAKE_SOURCE_DIR}/src" "${CMAKE_SOURCE_DIR}"
                                                 "${CMAKE_BINARY_DIR}/src")
target_compile_options(
  cleat_flags
  INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough -Werror
            -fno-omit-frame-pointer)
# What clang alone checks, that the sanitizers' builds are made with: mutexes (base/mutex.h).
set(CLEAT_CLANG_WARNINGS -Wthread-safety -Wthread-safety-beta)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(cleat_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${CLEAT_CLANG_WARNINGS}>)
endif()
target_link_libraries(cleat_flags INTERFACE Threads::Threads)
if(NOT CLEAT_COUNTERS)
  add_compile_definitions(CLEAT_NO_COUNTERS)
endif()
if(CLEAT_SANITIZE STREQUAL "asan")
  # With the coverage that the fuzz targets are steered by, so that they link these very libraries.
  add_compile_options(-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all)
  add_compile_definitions(CLEAT_ASAN)
  add_link_options(-fsanitize=address,undefined)
elseif(CLEAT_SANITIZE STREQUAL "tsan")
  add_compile_options(-fsanitize=thread)
  add_compile_definitions(CLEAT_TSAN)
  add_link_options(-fsanitize=thread)
endif()
if(CLEAT_COVERAGE)
  add_compile_options(--coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()

include(CleatHardening)

set(CLEAT_TOGETHER 8) # sources in one compilation: larger ones leave a processor alone at the end

# cleat_compile_together(out name source...): files that include these sources, several at a time, which takes a third of what they
# take alone where they read much longer than they compile. Paths are relative to the top, so that every clone has the same files. A source
# with the property SKIP_UNITY_BUILD_INCLUSION stays an object of its own.
function(cleat_compile_together out name)
  if(NOT CLEAT_UNITY)
    set(${out} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  set(units "")
  set(together ${ARGN})
  list(FILTER together INCLUDE REGEX "\\.cc$")
  set(alone ${ARGN})
  list(FILTER alone EXCLUDE REGEX "\\.cc$") # objects and C
  foreach(source ${together})
    get_source_file_property(skipped "${source}" SKIP_UNITY_BUILD_INCLUSION)
    if(skipped)
      list(REMOVE_ITEM together "${source}")
      list(APPEND alone "${source}")
    endif()
  endforeach()
  list(LENGTH together count)
  # Batches of nearly the same size.
  math(EXPR batches "(${count} + ${CLEAT_TOGETHER} - 1) / ${CLEAT_TOGETHER}")
  set(first 0)
  foreach(batch RANGE 1 ${batches})
    if(count EQUAL 0)
      break()
    endif()
    math(EXPR end "${count} * ${batch} / ${batches}")
    math(EXPR length "${end} - ${first}")
    list(SUBLIST together ${first} ${length} sources)
    set(text "// Made by cmake/CleatBuild.cmake.\n")
    foreach(source ${sources})
      cmake_path(ABSOLUTE_PATH source NORMALIZE)
      file(RELATIVE_PATH path "${CMAKE_SOURCE_DIR}" "${source}")
      string(APPEND text "#include \"${path}\"\n")
    endforeach()
    set(unit "${CMAKE_CURRENT_BINARY_DIR}/unity/${name}_${batch}.cc")
    file(CONFIGURE OUTPUT "${unit}" CONTENT "${text}")
    list(APPEND units "${unit}")
    set(first ${end})
  endforeach()
  set(${out} ${units} ${alone} PARENT_SCOPE)
endfunction()

# What a compilation of several sources needs: GCC warns of anonymous types as if these were headers.
function(cleat_unity_flags name)
  target_compile_options(${name} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>)
endfunction()

# Code whose time is not what a test waits for: under a sanitizer its optimisation takes more than half of its compilation.
function(cleat_unoptimised_under_sanitizers name)
  if(NOT CLEAT_SANITIZE STREQUAL "none")
    target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0>)
  endif()
endfunction()

function(cleat_executable name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE cleat_flags)
  cleat_harden(${name})
  cleat_harden_program(${name})
  cleat_unoptimised_under_sanitizers(${name})
endfunction()

function(cleat_library name)
  cmake_parse_arguments(ARG "HEAVY_HEADERS;DATA_PATH" "" "SOURCES;DEPS" ${ARGN})
  if(ARG_HEAVY_HEADERS)
    cleat_compile_together(sources ${name} ${ARG_SOURCES})
  else()
    set(sources ${ARG_SOURCES})
  endif()
  add_library(${name} STATIC ${sources})
  if(ARG_DATA_PATH)
    cleat_harden(${name} DATA_PATH)
  else()
    cleat_harden(${name})
  endif()
  target_link_libraries(${name} PUBLIC cleat_flags ${ARG_DEPS})
  if(ARG_HEAVY_HEADERS)
    cleat_unity_flags(${name})
    cleat_unoptimised_under_sanitizers(${name})
  endif()
endfunction()

# CLI11 is all headers, whose optimisation takes longer than anything else in these sources, and they run once.
function(cleat_command_line)
  set_source_files_properties(${ARGV} PROPERTIES COMPILE_OPTIONS "${CLEAT_UNOPTIMISED}")
endfunction()
