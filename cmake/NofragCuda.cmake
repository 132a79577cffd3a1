# The CUDA driver header. Only its types are used: nothing links CUDA, nothing needs a GPU to build.
# Looked for in -DNOFRAG_CUDA_INCLUDE=dir, then where scripts/setup.sh unpacks the headers, then in
# an installed toolkit. Makes the target nofrag_cuda_headers.

find_path(NOFRAG_CUDA_INCLUDE cuda.h
  HINTS
    ${CMAKE_SOURCE_DIR}/build/deps/cuda/include
    $ENV{CUDA_HOME}/include
    $ENV{CUDA_PATH}/include
    /usr/local/cuda/include
    /opt/cuda/include
  DOC "Directory that holds cuda.h (CUDA 12 or newer)")
if(NOT NOFRAG_CUDA_INCLUDE)
  message(FATAL_ERROR
    "cuda.h was not found. Install a CUDA toolkit, run scripts/setup.sh, or pass "
    "-DNOFRAG_CUDA_INCLUDE=DIR, where DIR holds cuda.h of CUDA 12 or newer.")
endif()

file(STRINGS ${NOFRAG_CUDA_INCLUDE}/cuda.h cuda_version_line REGEX "^#define CUDA_VERSION [0-9]+")
string(REGEX MATCH "[0-9]+" cuda_version "${cuda_version_line}")
if(NOT cuda_version OR cuda_version LESS 12000)
  message(FATAL_ERROR
    "${NOFRAG_CUDA_INCLUDE}/cuda.h says CUDA_VERSION '${cuda_version}'; nofrag needs 12000 or newer.")
endif()
message(STATUS "CUDA headers: ${NOFRAG_CUDA_INCLUDE} (${cuda_version})")

add_library(nofrag_cuda_headers INTERFACE)
target_include_directories(nofrag_cuda_headers SYSTEM INTERFACE ${NOFRAG_CUDA_INCLUDE})
