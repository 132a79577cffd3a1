# Building the wheel (pyproject.toml): pip hides the environment's packages from the build, so the PyTorch that
# the native library is to be built for is looked for where the environment keeps it. Nothing is done outside a
# wheel, or where NOFRAG_TORCH_VENV or NOFRAG_TORCH_DIR say which PyTorch it is.
if(SKBUILD AND NOT NOFRAG_TORCH_VENV AND NOT NOFRAG_TORCH_DIR)
  execute_process(COMMAND ${PYTHON_EXECUTABLE} -c
      "import os, sysconfig; p = os.path.join(sysconfig.get_path('platlib'), 'torch'); print(p if os.path.exists(os.path.join(p, 'version.py')) else '')"
    OUTPUT_VARIABLE torch_of_environment ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(torch_of_environment)
    set(NOFRAG_TORCH_DIR ${torch_of_environment} CACHE PATH "Folder torch/ of the PyTorch that the native allocator is built for")
  endif()
  message(STATUS "PyTorch of the environment: ${torch_of_environment}")
endif()
