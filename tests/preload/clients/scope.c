/* Libraries of one program, that look for what the other has. FIRST: the one in front. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#ifdef FIRST
#define NUMBER "1"
#else
#define NUMBER "2"
#endif

const char* scope_number(void);
const char* cuScopeNumber(void);
const char* scope_number(void) {
  return NUMBER;
}
const char* cuScopeNumber(void) {
  return NUMBER;
}

#ifdef FIRST
typedef const char* (*function)(void);

static const char* call(const char* name) {
  function next;
  *(void**)&next = dlsym(RTLD_NEXT, name);
  return next != NULL ? next() : "0";
}

const char* first_through_next(void);
const char* first_cu_through_next(void);
void* first_opens_target(void);
const char* first_through_next(void) {
  return call("scope_number");
}
const char* first_cu_through_next(void) {
  return call("cuScopeNumber");
}
void* first_opens_target(void) {
  void* target = dlopen("libpreload_target.so", RTLD_NOW);
  __asm__ volatile("" ::: "memory"); /* no tail call: the caller must be this library */
  return target;
}
#endif
