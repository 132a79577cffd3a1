# Third-party packages, all from the distribution (scripts/setup.sh installs them), and the CUDA
# headers (types only: nothing links CUDA).
find_package(Threads REQUIRED)
if(NOFRAG_TESTS)
  find_package(GTest REQUIRED)
endif()

# JSON: device files of the simulated driver, reports, tests.
find_package(nlohmann_json REQUIRED)
