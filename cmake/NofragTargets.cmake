# Compile and link rules that every nofrag target shares, and the ways a target is made:
#   nofrag_layer(NAME [EXCEPTIONS] [ALONE] [FUZZED] [COLD] SOURCES ... DEPENDS ...)   a layer of allocator/ (static
#     library nofrag_NAME). COLD: with sanitizers it is not optimized, which is most of the time it takes to compile;
#     nothing of it runs often. ALONE for the hot path: together with other files g++ 12 inlines otherwise, which costs an
#     allocation 20 instructions of 213 (bench/golden). FUZZED: a fuzzer looks for ways through its code
#   nofrag_test(NAME LABEL fast|slow|gpu|torch [THREADED] [OPTIMIZED|HEADERS] SOURCES ... DEPENDS ...)   a GoogleTest
#     program; THREADED ones run under ThreadSanitizer too; OPTIMIZED is what spends its time in code of its own
#     (slow ones always are); HEADERS, without sanitizers, what tests code in headers, which it brings along as it is
#     compiled itself
#   nofrag_fuzz(NAME_fuzz SOURCES ... DEPENDS ...)   a libFuzzer program (preset clang); seeds in
#     tests/fuzz/corpus/NAME_fuzz
# Layers below the edges are built without exceptions: errors travel as Result (base/result.h).

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/static)

add_library(nofrag_flags INTERFACE)
# g++ 12 sees overlapping copies inside std::string's operator+ where there are none (its bug 105651).
target_compile_options(nofrag_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror
  "$<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor;-Wdeprecated-copy-dtor>"
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)
target_include_directories(nofrag_flags INTERFACE ${CMAKE_SOURCE_DIR}/allocator ${CMAKE_SOURCE_DIR}/include)

if(NOT NOFRAG_CHECK_LEVEL STREQUAL "")
  target_compile_definitions(nofrag_flags INTERFACE NOFRAG_CHECK_LEVEL=${NOFRAG_CHECK_LEVEL})
else()
  target_compile_definitions(nofrag_flags INTERFACE NOFRAG_CHECK_LEVEL=$<IF:$<CONFIG:Debug>,1,0>)
endif()

# A fuzzer needs a sanitizer to notice what went wrong, and the code under test instrumented for coverage (FUZZED
# layers; everywhere it would double the time of the tests).
if(NOFRAG_FUZZ AND NOT NOFRAG_SANITIZE)
  set(NOFRAG_SANITIZE "address,undefined")
endif()
if(NOFRAG_SANITIZE)
  add_compile_options(-fsanitize=${NOFRAG_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${NOFRAG_SANITIZE})
endif()

function(nofrag_layer name)
  cmake_parse_arguments(ARG "EXCEPTIONS;ALONE;FUZZED;COLD" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(nofrag_${name} STATIC ${ARG_SOURCES})
  if(ARG_ALONE AND NOT NOFRAG_SANITIZE)
    set_target_properties(nofrag_${name} PROPERTIES UNITY_BUILD OFF)
  endif()
  if(ARG_COLD AND NOFRAG_SANITIZE)
    target_compile_options(nofrag_${name} PRIVATE -O0 -U_FORTIFY_SOURCE)
  endif()
  target_link_libraries(nofrag_${name} PUBLIC nofrag_flags ${ARG_DEPENDS})
  if(NOT ARG_EXCEPTIONS)
    target_compile_options(nofrag_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions>)
  endif()
  if(ARG_FUZZED AND NOFRAG_FUZZ)
    target_compile_options(nofrag_${name} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

function(nofrag_test name)
  cmake_parse_arguments(ARG "THREADED;OPTIMIZED;HEADERS" "LABEL;TIMEOUT" "SOURCES;DEPENDS" ${ARGN})
  if(NOT ARG_LABEL)
    message(FATAL_ERROR "nofrag_test(${name}): LABEL is missing")
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  set(labels ${ARG_LABEL})
  if(ARG_THREADED)
    list(APPEND labels threaded)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE nofrag_flags ${ARG_DEPENDS} nofrag_test_main)
  # Headers that every test includes are read once, and the tests' own code is optimized only where its time counts.
  # (Where it is, no precompiled headers: with them g++ 12 sees writes beyond the end of std::string that are none.)
  set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 8)
  if(ARG_LABEL MATCHES "^(fast|gpu)$" AND NOT ARG_OPTIMIZED AND (NOT ARG_HEADERS OR NOFRAG_SANITIZE))
    target_compile_options(${name} PRIVATE -O0 -U_FORTIFY_SOURCE)
    target_precompile_headers(${name} REUSE_FROM nofrag_test_headers)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  # ThreadSanitizer has every process wait a second at its end, and some tests start dozens.
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77
    ENVIRONMENT "TSAN_OPTIONS=atexit_sleep_ms=100:$ENV{TSAN_OPTIONS}")
endfunction()

function(nofrag_fuzz name)
  if(NOT NOFRAG_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE nofrag_flags ${ARG_DEPENDS})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()
