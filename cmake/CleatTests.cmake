# SPDX-License-Identifier: Apache-2.0
# How tests are declared. A folder is one program, of which ctest runs each part by itself:
#   cleat_test_program(program [DEPS lib ...] [OWN_MAIN] [OPTIMISED])
#   cleat_test(name IN program LABELS unit ... SOURCES a_test.cc helper.cc ... [DEPS lib ...] [NEEDS target ...]
#              [ENVIRONMENT A=b ...] [TIMEOUT seconds] [BUSY cores] [LONG] [SERIAL] [IN_TEST_ALL])
# The part is the tests of its sources that are called *_test.cc (`program --of a_test.cc`); the others are what these need.
#   cleat_script_test(name LABELS ... COMMAND ... [ENVIRONMENT A=b ...] [NEEDS fixture ...] [MAKES fixture]
#                     [TIMEOUT seconds] [BUSY cores] [LONG] [SERIAL] [IN_TEST_ALL])  run in the build tree
#   cleat_test_tool(name SOURCES ... DEPS ...)     a program that tests start
#   cleat_test_preload(name SOURCES ...)           a library that tests put in a program's way (negative controls)
#   cleat_benchmark(name SOURCES ... DEPS ...)     a program that measures
#   cleat_test_needs(target ...)                   what is built for scripts to use
#
# CLEAT_TESTS says what is there: ON, what `make test` runs; ALL, what only `make test-all` runs as well (IN_TEST_ALL and
# the rules of cleat_test_is_wanted). The target `tests` builds all of it.
#
# BUSY: how many cores it keeps busy (0, 1 or 2; 1 if it isn't said). ctest runs four times as many as there are cores at a
# time, in quarters of a core: what waits fills the gaps of what computes. LONG: it takes more than 15 s and is begun first, so
# that none is left alone at the end. SERIAL: alone, since it compares times.

add_custom_target(tests)
add_custom_target(benchmarks)
set(CLEAT_TEST_DIR "${CMAKE_BINARY_DIR}/tests")
# Where tests find the tree's files (tests/support/paths.h): not in their objects, which two clones share.
file(WRITE "${CLEAT_TEST_DIR}/source_dir.txt" "${CMAKE_SOURCE_DIR}")

# Which flavour has which tests. `out`, of a test with these labels: ON: ctest runs it; PROGRAM: it is compiled into its folder's
# program, but ctest does not run it; OFF: neither.
#   release         everything; of the unit tests, `make test` keeps those on lock-free and ordering code (`ordering`), which -O2
#                   may break, those with parts that sanitizers have no room or time for (`plain`), and those on slips and files that aren't
#                   theirs (`edge`), which are to be seen at one glance; it leaves the others to the sanitizers, which compile and
#                   run the same
#   asan            unit (but not in single `steps`), sim and fuzz, and real processes under hostile guests and kills;
#                   `make test-all`: all but guests and benchmarks
#   tsan            what has threads (`threads`)
function(cleat_test_is_wanted out labels in_test_all)
  set(wanted ON)
  if(in_test_all AND NOT CLEAT_TESTS STREQUAL "ALL")
    set(wanted OFF)
  elseif(CLEAT_SANITIZE STREQUAL "tsan")
    if(NOT "threads" IN_LIST labels)
      set(wanted OFF)
    endif()
  elseif(CLEAT_SANITIZE STREQUAL "asan")
    if(labels MATCHES "guest|bench|script")
      set(wanted OFF)
    elseif(NOT CLEAT_TESTS STREQUAL "ALL" AND (labels MATCHES "(^|;)(ceph|steps)(;|$)"
                                               OR NOT labels MATCHES "unit|sim|fuzz|hostile|crash"))
      set(wanted OFF)
    endif()
  elseif(NOT CLEAT_TESTS STREQUAL "ALL" AND "unit" IN_LIST labels AND NOT labels MATCHES "ordering|plain|edge")
    set(wanted PROGRAM)
  endif()
  set(${out} ${wanted} PARENT_SCOPE)
endfunction()

# Of what cleat_test and cleat_script_test were given. ctest's own processors are quarters of a core here.
function(cleat_test_properties name labels timeout busy long serial)
  if(NOT timeout)
    set(timeout 120)
  endif()
  if(busy STREQUAL "")
    set(busy 1)
  endif()
  if(busy EQUAL 0)
    set(processors 1)
  else()
    math(EXPR processors "${busy} * 4")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout} PROCESSORS ${processors} RUN_SERIAL ${serial})
  if(long)
    set_tests_properties(${name} PROPERTIES COST 1000)
  endif()
endfunction()

# Optimising what runs once would be half of its compilation; what is tested is optimised as its library is. OPTIMISED is a program
# that tests code in headers which the optimiser may break, or that computes longer than it compiles.
function(cleat_test_flags name)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CLEAT_TEST_DIR}" LIBRARY_OUTPUT_DIRECTORY "${CLEAT_TEST_DIR}")
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:$<IF:$<AND:$<BOOL:$<TARGET_PROPERTY:CLEAT_OPTIMISED>>,$<STREQUAL:${CLEAT_SANITIZE},none>>,,-O0>>)
endfunction()

function(cleat_test_program program)
  cmake_parse_arguments(ARG "OWN_MAIN;OPTIMISED" "" "DEPS" ${ARGN})
  set_property(GLOBAL PROPERTY CLEAT_${program}_DEPS ${ARG_DEPS})
  set_property(GLOBAL PROPERTY CLEAT_${program}_OWN_MAIN ${ARG_OWN_MAIN})
  set_property(GLOBAL PROPERTY CLEAT_${program}_OPTIMISED ${ARG_OPTIMISED})
  # Once all of its parts are known. Without any, there is no program.
  cmake_language(EVAL CODE "cmake_language(DEFER CALL cleat_make_test_program ${program})")
endfunction()

function(cleat_make_test_program program)
  foreach(what SOURCES DEPS NEEDS ENVIRONMENT OWN_MAIN OPTIMISED RUN)
    get_property(${what} GLOBAL PROPERTY CLEAT_${program}_${what})
  endforeach()
  if(NOT SOURCES)
    return()
  endif()
  if(NOT OWN_MAIN)
    list(APPEND SOURCES "${CMAKE_SOURCE_DIR}/tests/support/main.cc")
  endif()
  list(REMOVE_DUPLICATES SOURCES)
  cleat_compile_together(units ${program} ${SOURCES})
  add_executable(${program} EXCLUDE_FROM_ALL ${units})
  cleat_unity_flags(${program})
  cleat_test_flags(${program})
  set_target_properties(${program} PROPERTIES CLEAT_OPTIMISED "${OPTIMISED}")
  target_link_libraries(${program} PRIVATE cleat_flags ${DEPS} cleat_test_support)
  if(RUN)
    add_dependencies(tests ${program})
  endif()
  if(NEEDS)
    add_dependencies(${program} ${NEEDS})
  endif()
  # What `make unit` builds and runs: a folder's programs.
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  if(TARGET unit_${folder})
    add_dependencies(unit_${folder} ${program})
    list(JOIN ENVIRONMENT " " environment)
    file(APPEND "${CLEAT_TEST_DIR}/unit_${folder}.txt" "${environment} ${CLEAT_TEST_DIR}/${program}\n")
  endif()
endfunction()

function(cleat_check_test name labels unparsed)
  if(unparsed OR NOT labels)
    message(FATAL_ERROR "test ${name}: its LABELS are '${labels}', and of its arguments nobody knows '${unparsed}'")
  endif()
endfunction()

# ThreadSanitizer looks at what starts a thread, or the test says that it can't be under sanitizers.
function(cleat_check_threads name labels)
  if(NOT "unit" IN_LIST labels OR labels MATCHES "(^|;)(threads|plain)(;|$)")
    return()
  endif()
  foreach(source ${ARGN})
    file(STRINGS "${source}" threads REGEX "std::(j?thread|async)[ ({>]" LIMIT_COUNT 1)
    if(threads)
      message(FATAL_ERROR "test ${name}: ${source} starts a thread, so the test needs the label threads")
    endif()
  endforeach()
endfunction()

function(cleat_test name)
  cmake_parse_arguments(ARG "LONG;SERIAL;IN_TEST_ALL" "IN;TIMEOUT;BUSY" "SOURCES;DEPS;NEEDS;LABELS;ENVIRONMENT" ${ARGN})
  cleat_check_test(${name} "${ARG_LABELS}" "${ARG_UNPARSED_ARGUMENTS}")
  cleat_check_threads(${name} "${ARG_LABELS}" ${ARG_SOURCES})
  cleat_test_is_wanted(wanted "${ARG_LABELS}" ${ARG_IN_TEST_ALL})
  if(NOT wanted)
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY CLEAT_${ARG_IN}_SOURCES ${ARG_SOURCES})
  set_property(GLOBAL APPEND PROPERTY CLEAT_${ARG_IN}_DEPS ${ARG_DEPS})
  set_property(GLOBAL APPEND PROPERTY CLEAT_${ARG_IN}_NEEDS ${ARG_NEEDS})
  set_property(GLOBAL APPEND PROPERTY CLEAT_${ARG_IN}_ENVIRONMENT ${ARG_ENVIRONMENT})
  if(wanted STREQUAL "PROGRAM")
    return()
  endif()
  set_property(GLOBAL PROPERTY CLEAT_${ARG_IN}_RUN ON)
  set(files ${ARG_SOURCES})
  list(FILTER files INCLUDE REGEX "_test\\.cc$")
  list(TRANSFORM files REPLACE ".*/" "")
  list(JOIN files "," files)
  add_test(NAME ${name} COMMAND "${CLEAT_TEST_DIR}/${ARG_IN}" --of ${files})
  set_property(TEST ${name} PROPERTY ENVIRONMENT ${ARG_ENVIRONMENT})
  cleat_test_properties(${name} "${ARG_LABELS}" "${ARG_TIMEOUT}" "${ARG_BUSY}" ${ARG_LONG} ${ARG_SERIAL})
endfunction()

function(cleat_script_test name)
  cmake_parse_arguments(ARG "LONG;SERIAL;IN_TEST_ALL" "TIMEOUT;BUSY;MAKES" "LABELS;COMMAND;ENVIRONMENT;NEEDS" ${ARGN})
  cleat_check_test(${name} "${ARG_LABELS}" "${ARG_UNPARSED_ARGUMENTS}")
  cleat_test_is_wanted(wanted "${ARG_LABELS};script" ${ARG_IN_TEST_ALL})
  if(NOT wanted)
    return()
  endif()
  add_test(NAME ${name} COMMAND ${ARG_COMMAND} WORKING_DIRECTORY "${CMAKE_BINARY_DIR}")
  cleat_test_properties(${name} "${ARG_LABELS}" "${ARG_TIMEOUT}" "${ARG_BUSY}" ${ARG_LONG} ${ARG_SERIAL})
  set_property(TEST ${name} PROPERTY ENVIRONMENT ${ARG_ENVIRONMENT})
  set_property(TEST ${name} PROPERTY FIXTURES_REQUIRED ${ARG_NEEDS})
  set_property(TEST ${name} PROPERTY FIXTURES_SETUP ${ARG_MAKES})
endfunction()

function(cleat_test_tool name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  cleat_test_flags(${name})
  target_link_libraries(${name} PRIVATE cleat_flags ${ARG_DEPS})
endfunction()

function(cleat_test_preload name)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  add_library(${name} SHARED EXCLUDE_FROM_ALL ${ARG_SOURCES})
  cleat_test_flags(${name})
  target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS})
endfunction()

# Optimised, as what it measures is.
function(cleat_benchmark name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE cleat_flags ${ARG_DEPS} CLI11::CLI11)
  if(NOT name MATCHES "^cleat-") # no tool for users
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CLEAT_TEST_DIR}")
  endif()
  add_dependencies(benchmarks ${name})
endfunction()

function(cleat_test_needs)
  add_dependencies(tests ${ARGV})
endfunction()
