# SPDX-License-Identifier: Apache-2.0
# Compiler settings, and the two functions by which every folder declares what it builds:
#   cleat_library(name [HEAVY_HEADERS] SOURCES a.cc ... DEPS lib ...)     HEAVY_HEADERS: gRPC's and the like
#   cleat_test(name LABELS unit SOURCES a_test.cc ... DEPS lib ... [TIMEOUT seconds] [HEADERS target] [SEPARATE])
# SEPARATE: its files use each other's names.
# Headers that many tests share are compiled once, by cleat_test_headers(name HEADERS <a.h> ... DEPS lib ...).
# cleat_compile_together(name) is for what reads longer than it compiles, cleat_address_sanitizer_alone(name) for what never
# sees a number of a guest's or a disk's, cleat_command_line(sources...) for what reads one.

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

find_program(CLEAT_CCACHE ccache)
if(CLEAT_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CLEAT_CCACHE}")
  set(CMAKE_C_COMPILER_LAUNCHER "${CLEAT_CCACHE}")
endif()

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(spdlog REQUIRED)
pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(PROTOBUF_C REQUIRED IMPORTED_TARGET libprotobuf-c)

add_library(cleat_flags INTERFACE)
target_include_directories(cleat_flags INTERFACE "${CMAKE_SOURCE_DIR}/src" "${CMAKE_SOURCE_DIR}"
                                                 "${CMAKE_BINARY_DIR}/src")
target_compile_options(
  cleat_flags
  INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough -Werror
            -fno-omit-frame-pointer)
target_link_libraries(cleat_flags INTERFACE Threads::Threads)
if(NOT CLEAT_SIGHT)
  add_compile_definitions(CLEAT_NO_SIGHT)
endif()
if(CLEAT_SANITIZE STREQUAL "asan")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
elseif(CLEAT_SANITIZE STREQUAL "tsan")
  add_compile_options(-fsanitize=thread)
  add_link_options(-fsanitize=thread)
elseif(NOT CLEAT_SANITIZE STREQUAL "none")
  message(FATAL_ERROR "CLEAT_SANITIZE is '${CLEAT_SANITIZE}': use none, asan or tsan")
endif()

# Several files at a time take a third of what each takes alone.
function(cleat_compile_together name)
  if(CLEAT_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
endfunction()

# UndefinedBehaviorSanitizer doubles the time that the headers of protobuf and gRPC take.
function(cleat_address_sanitizer_alone)
  if(CLEAT_SANITIZE STREQUAL "asan")
    foreach(name ${ARGV})
      target_compile_options(${name} PRIVATE -fno-sanitize=undefined)
    endforeach()
  endif()
endfunction()

function(cleat_library name)
  cmake_parse_arguments(ARG "HEAVY_HEADERS" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC cleat_flags ${ARG_DEPS})
  if(ARG_HEAVY_HEADERS)
    cleat_compile_together(${name})
  endif()
endfunction()

# Half of a test's compilation would be the optimisation of what runs once. -g1, as in the presets: full debug information is
# half of what is left; who wants to look at variables takes the preset `debug`. Under a sanitizer, what it puts in is
# optimised too: all of it is half then.
function(cleat_test_optimisation name)
  if(CLEAT_SANITIZE STREQUAL "none")
    target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  else()
    target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0>)
  endif()
endfunction()

# Sources that read a command line, of targets without precompiled headers: they run once, and CLI11 is all headers, whose
# optimisation takes longer than anything else in them.
function(cleat_command_line)
  set_source_files_properties(${ARGV} PROPERTIES COMPILE_OPTIONS -O0)
endfunction()

# An executable, since a precompiled header is good only for what is compiled with the same flags as its owner. Who takes
# cleat_test_headers_api is of the control plane.
function(cleat_test_headers name)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS" ${ARGN})
  set(source "${CMAKE_BINARY_DIR}/tests/${name}.cc")
  file(CONFIGURE OUTPUT "${source}" CONTENT "int main() { return 0; }\n")
  add_executable(${name} "${source}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_link_libraries(${name} PRIVATE cleat_flags ${ARG_DEPS} GTest::gtest)
  cleat_test_optimisation(${name})
  if(name STREQUAL cleat_test_headers_api)
    cleat_address_sanitizer_alone(${name})
  endif()
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()

# What a sanitizer finds most in: each class by itself, and the whole under hostile guests and kills.
add_custom_target(core_tests)

function(cleat_test name)
  cmake_parse_arguments(ARG "SEPARATE" "TIMEOUT;HEADERS" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_link_libraries(${name} PRIVATE cleat_flags ${ARG_DEPS} GTest::gtest GTest::gtest_main)
  if(NOT ARG_HEADERS)
    set(ARG_HEADERS cleat_test_headers_plain)
  endif()
  target_precompile_headers(${name} REUSE_FROM ${ARG_HEADERS})
  cleat_test_optimisation(${name})
  if(ARG_HEADERS STREQUAL cleat_test_headers_api)
    cleat_address_sanitizer_alone(${name})
  endif()
  if(NOT ARG_SEPARATE)
    cleat_compile_together(${name})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if(ARG_LABELS MATCHES "unit|sim|hostile|crash" AND NOT ARG_LABELS MATCHES "ceph")
    add_dependencies(core_tests ${name})
  endif()
endfunction()
