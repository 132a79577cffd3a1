/* nofrag's version. Same as the project's in CMakeLists.txt (tests/abi holds them together). */
#ifndef NOFRAG_VERSION_H
#define NOFRAG_VERSION_H

#define NOFRAG_VERSION_MAJOR 0
#define NOFRAG_VERSION_MINOR 1
#define NOFRAG_VERSION_PATCH 0
#define NOFRAG_VERSION_STRING "0.1.0"

#endif
