/* A library that is loaded, calls back and is closed again; built twice, as two libraries of one layout. */
void STACK_PLUGIN_ENTRY(void (*call)(void*), void* argument);
void STACK_PLUGIN_ENTRY(void (*call)(void*), void* argument) {
  call(argument);
  __asm__ volatile(""); /* no tail call: the frame must be there */
}
