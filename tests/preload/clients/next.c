/* A library of the program's own that asks for what comes after itself. */
#define _GNU_SOURCE
#include <dlfcn.h>

void* next_symbol(const char* name);
void* next_symbol(const char* name) { return dlsym(RTLD_NEXT, name); }
