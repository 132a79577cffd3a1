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

# Traces: zlib reads .csv.gz, zstd packs the blocks of our own format.
find_package(ZLIB REQUIRED)
find_library(NOFRAG_ZSTD_LIBRARY NAMES zstd)
find_path(NOFRAG_ZSTD_INCLUDE NAMES zstd.h)
if(NOT NOFRAG_ZSTD_LIBRARY OR NOT NOFRAG_ZSTD_INCLUDE)
  message(FATAL_ERROR "zstd was not found (Debian: libzstd-dev)")
endif()
add_library(nofrag_zstd INTERFACE)
target_link_libraries(nofrag_zstd INTERFACE ${NOFRAG_ZSTD_LIBRARY})
target_include_directories(nofrag_zstd INTERFACE ${NOFRAG_ZSTD_INCLUDE})

# Nsight Systems' exports (allocator/trace/importers/nsys_sqlite.cc).
find_package(SQLite3 REQUIRED)

# The command line program.
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)

# CUDA headers, types only (allocator/driver/real/driver_api.h).
include(NofragCuda)
