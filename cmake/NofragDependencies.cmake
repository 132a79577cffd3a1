# Third-party packages, all from the distribution (scripts/setup.sh installs them), and the CUDA
# headers (types only: nothing links CUDA).
find_package(Threads REQUIRED)
if(NOFRAG_TESTS)
  find_package(GTest REQUIRED)
endif()
if(NOFRAG_BENCH)
  find_package(benchmark REQUIRED)
endif()

# Simulated device files (allocator/driver/simulated/device_file.cc), reports and tests are JSON.
find_package(nlohmann_json 3.11 REQUIRED)

# Traces: zlib reads .csv.gz, zstd packs the blocks of our own format. Their static libraries where there are
# any: libnofrag.so is loaded into programs that bring versions of their own.
find_package(ZLIB REQUIRED)
find_library(NOFRAG_ZLIB_LIBRARY NAMES libz.a z)
add_library(nofrag_zlib INTERFACE)
target_link_libraries(nofrag_zlib INTERFACE ${NOFRAG_ZLIB_LIBRARY})
target_include_directories(nofrag_zlib INTERFACE ${ZLIB_INCLUDE_DIRS})
find_library(NOFRAG_ZSTD_LIBRARY NAMES libzstd.a zstd)
find_path(NOFRAG_ZSTD_INCLUDE NAMES zstd.h)
if(NOT NOFRAG_ZSTD_LIBRARY OR NOT NOFRAG_ZSTD_INCLUDE)
  message(FATAL_ERROR "zstd was not found (Debian: libzstd-dev)")
endif()
add_library(nofrag_zstd INTERFACE)
target_link_libraries(nofrag_zstd INTERFACE ${NOFRAG_ZSTD_LIBRARY})
target_include_directories(nofrag_zstd INTERFACE ${NOFRAG_ZSTD_INCLUDE})

# Nsight Systems' exports (allocator/trace/importers/nsys_sqlite.cc).
find_package(SQLite3 REQUIRED)

# Charts of `nofrag report`, carried by the program.
find_file(NOFRAG_CHART_JS chart.min.js PATHS /usr/share/javascript/chart.js NO_DEFAULT_PATH)
if(NOT NOFRAG_CHART_JS)
  message(FATAL_ERROR "chart.min.js was not found (Debian: libjs-chart.js, or -DNOFRAG_CHART_JS=FILE)")
endif()

# The command line program.
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)

# CUDA headers, types only (allocator/driver/real/driver_api.h).
include(NofragCuda)

# NVTX, header only, with its memory extension: ranges and heaps for NVIDIA's tools. Looked for where
# scripts/setup.sh unpacks it, then in a toolkit; without it `nvtx:` says that it cannot.
find_path(NOFRAG_NVTX_INCLUDE nvtx3/nvToolsExtMem.h
  HINTS ${CMAKE_SOURCE_DIR}/build/deps/nvtx/include ${NOFRAG_CUDA_INCLUDE}
  DOC "Directory that holds nvtx3/nvToolsExtMem.h")
add_library(nofrag_nvtx INTERFACE)
if(NOFRAG_NVTX_INCLUDE)
  message(STATUS "NVTX headers: ${NOFRAG_NVTX_INCLUDE}")
  target_include_directories(nofrag_nvtx SYSTEM INTERFACE ${NOFRAG_NVTX_INCLUDE})
  target_link_libraries(nofrag_nvtx INTERFACE ${CMAKE_DL_LIBS})
  target_compile_definitions(nofrag_nvtx INTERFACE NOFRAG_HAVE_NVTX=1)
else()
  message(STATUS "NVTX headers: none with the memory extension; built without NVTX")
  target_compile_definitions(nofrag_nvtx INTERFACE NOFRAG_HAVE_NVTX=0)
endif()
