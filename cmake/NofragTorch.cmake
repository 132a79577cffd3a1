# The PyTorch that torch_plugin/native is built against. Looked for, in this order:
#   -DNOFRAG_TORCH_VENV=DIR   a virtual environment with PyTorch
#   -DNOFRAG_TORCH_DIR=DIR    the folder torch/ of an installation (include, lib, version.py)
#   the running python3's
#   build/deps/torch-2.11     the headers and libraries that scripts/torch_headers.py fetches
# Sets NOFRAG_TORCH_MINOR, NOFRAG_TORCH_LIBRARIES and NOFRAG_TORCH_CUDA_INCLUDE; makes the target nofrag_torch_c10.
# Where there is none (or one without CUDA), the native allocator is not built, and this says so.

set(NOFRAG_TORCH_VENV "" CACHE PATH "Virtual environment whose PyTorch the native allocator is built for")
set(NOFRAG_TORCH_DIR "" CACHE PATH "Folder torch/ of the PyTorch that the native allocator is built for")

function(nofrag_torch_of python result)
  execute_process(COMMAND ${python} -c
      "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s else '')"
    OUTPUT_VARIABLE folder ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

set(nofrag_torch_dir "${NOFRAG_TORCH_DIR}")
if(NOFRAG_TORCH_VENV)
  nofrag_torch_of(${NOFRAG_TORCH_VENV}/bin/python3 nofrag_torch_dir)
  if(NOT nofrag_torch_dir)
    message(FATAL_ERROR "NOFRAG_TORCH_VENV=${NOFRAG_TORCH_VENV} has no PyTorch")
  endif()
elseif(NOT nofrag_torch_dir)
  find_program(NOFRAG_PYTHON3 python3)
  if(NOFRAG_PYTHON3)
    nofrag_torch_of(${NOFRAG_PYTHON3} nofrag_torch_dir)
  endif()
  if(NOT nofrag_torch_dir AND EXISTS ${CMAKE_SOURCE_DIR}/build/deps/torch-2.11/complete)
    set(nofrag_torch_dir ${CMAKE_SOURCE_DIR}/build/deps/torch-2.11/torch)
  endif()
endif()

set(NOFRAG_TORCH_MINOR "")
if(nofrag_torch_dir AND EXISTS ${nofrag_torch_dir}/lib/libc10_cuda.so)
  file(STRINGS ${nofrag_torch_dir}/version.py line REGEX "^__version__ *=")
  if(line MATCHES "['\"]2\\.([0-9]+)\\.")
    set(NOFRAG_TORCH_MINOR ${CMAKE_MATCH_1})
  endif()
endif()

# cuda_runtime_api.h, whose types PyTorch's headers use: beside PyTorch (its own packages), else any toolkit.
find_path(NOFRAG_TORCH_CUDA_INCLUDE cuda_runtime_api.h
  HINTS ${nofrag_torch_dir}/../nvidia/cu13/include ${nofrag_torch_dir}/../nvidia/cuda_runtime/include
    ${NOFRAG_CUDA_INCLUDE}
  NO_DEFAULT_PATH)

if(NOFRAG_TORCH_MINOR STREQUAL "")
  message(STATUS "PyTorch with CUDA was not found: libnofrag_torch_*.so is not built (see cmake/NofragTorch.cmake)")
elseif(NOFRAG_TORCH_MINOR LESS 6)
  message(STATUS "PyTorch 2.${NOFRAG_TORCH_MINOR} is served by the C hooks alone: libnofrag_torch_*.so is not built")
  set(NOFRAG_TORCH_MINOR "")
elseif(NOT NOFRAG_TORCH_CUDA_INCLUDE)
  message(STATUS "cuda_runtime_api.h was not found: libnofrag_torch_*.so is not built")
  set(NOFRAG_TORCH_MINOR "")
else()
  message(STATUS "PyTorch 2.${NOFRAG_TORCH_MINOR}: ${nofrag_torch_dir}")
  set(NOFRAG_TORCH_LIBRARIES ${nofrag_torch_dir}/lib)
  # Which std::string its libraries were built with.
  file(STRINGS ${nofrag_torch_dir}/lib/libc10.so cxx11 REGEX "ErrorC[12]ENS_14SourceLocationENSt7__cxx11" LIMIT_COUNT 1)
  add_library(nofrag_torch_c10 INTERFACE)
  target_include_directories(nofrag_torch_c10 SYSTEM INTERFACE
    ${nofrag_torch_dir}/include ${NOFRAG_TORCH_CUDA_INCLUDE})
  target_compile_definitions(nofrag_torch_c10 INTERFACE NOFRAG_TORCH_MINOR=${NOFRAG_TORCH_MINOR}
    _GLIBCXX_USE_CXX11_ABI=$<IF:$<BOOL:${cxx11}>,1,0>)
  # The CUDA runtime comes with libc10_cuda.so, whatever its version.
  target_link_libraries(nofrag_torch_c10 INTERFACE
    ${nofrag_torch_dir}/lib/libc10_cuda.so ${nofrag_torch_dir}/lib/libc10.so)
  target_link_options(nofrag_torch_c10 INTERFACE -Wl,--allow-shlib-undefined)
endif()
