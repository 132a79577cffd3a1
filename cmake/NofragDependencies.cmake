# Third-party packages, all from the distribution (scripts/setup.sh installs them), and the CUDA
# headers (types only: nothing links CUDA).
find_package(Threads REQUIRED)
if(NOFRAG_TESTS)
  find_package(GTest REQUIRED)
endif()

# Simulated device files (allocator/driver/simulated/device_file.cc) are JSON.
find_package(nlohmann_json 3.11 REQUIRED)

# CUDA headers, types only (allocator/driver/real/driver_api.h).
include(NofragCuda)
