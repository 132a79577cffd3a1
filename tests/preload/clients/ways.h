/* The ways in which programs find driver entries. ways.c; the plugin's are in plugin.c.
 * Layer: tests. A way that cannot find a symbol answers NULL. Threads: none. Failure: NULL. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

typedef void* (*way_function)(const char* symbol);

/* "link", "dlsym", "default", "next", "proc1", "proc2", "proc-nested", "private", "deepbind"; NULL: no such way. */
way_function way_named(const char* name);
/* Where a program is not told which: $PRELOAD_WAY, or "dlsym". */
const char* usual_way(void);

/* The exported name `symbol` by cuGetProcAddress (nested = 0: what dlsym gives; 1: found by itself). */
void* find_by_proc_address(const char* symbol, int entry_version, int nested);

#ifdef __cplusplus
}
#endif
