/* Plays one scene of a process that is being recorded, through the C interface; trace_test.cc judges.
 *
 * usage: trace_probe SCENE [ARGUMENT]
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/wait.h>

#include <nofrag/trace.h>

static void say(const char* what, nofrag_status status) {
  const char* message = "";
  if (status != NOFRAG_OK) {
    nofrag_last_error(&message);
  }
  printf("%s: %s%s%s\n", what, nofrag_status_name(status), *message ? ": " : "", message);
  fflush(stdout);
}

/* So many pairs. */
static void work(int pairs) {
  for (int i = 0; i < pairs; ++i) {
    void* const block = nofrag_malloc(1000 + 512 * (size_t)(i % 50), 0, NULL);
    if (block == NULL) {
      printf("an allocation failed\n");
    }
    nofrag_free(block);
  }
}

static void say_state(void) {
  nofrag_trace_info info;
  char path[4096];
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  const nofrag_status status = nofrag_trace_state(&info, path, sizeof path, NULL);
  printf("state: %s, active %d, %llu events, %s bytes, %s\n",
         nofrag_status_name(status),
         info.active,
         (unsigned long long)info.events,
         info.bytes > 0 ? "some" : "no",
         path);
}

static int run_api(const char* spec) {
  void* const before = nofrag_malloc(3000, 0, NULL);
  say_state();
  say("stop", nofrag_trace_stop());
  say("mark", nofrag_trace_mark("nobody hears"));
  say("start", nofrag_trace_start(spec));
  say("again", nofrag_trace_start(spec));
  work(100);
  say("mark", nofrag_trace_mark("half way"));
  say("flush", nofrag_trace_flush());
  say_state();
  nofrag_free(before);
  say("stop", nofrag_trace_stop());
  work(100);
  say("flush", nofrag_trace_flush());
  say_state();
  return 0;
}

/* The child goes on as if nothing were; so does the parent after it. */
static int run_fork(void) {
  work(100);
  const pid_t child = fork();
  if (child == 0) {
    say("child flush", nofrag_trace_flush());
    say("child mark", nofrag_trace_mark("child"));
    say("child start", nofrag_trace_start("child.nofrag"));
    exit(0); /* with exit handlers, on purpose */
  }
  int status = 0;
  waitpid(child, &status, 0);
  printf("child exit: %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  work(100);
  return 0;
}

static int run_kill(void) {
  work(500);
  nofrag_trace_flush();
  work(100); /* perhaps not in the file */
  kill(getpid(), SIGKILL);
  return 0;
}

static int run_signal(void) {
  work(100);
  for (int i = 0; i < 500 && access(getenv("PROBE_FILE"), F_OK) != 0; ++i) {
    if (i % 50 == 0) {
      raise(SIGUSR2);
    }
    usleep(10000);
  }
  work(10);
  return 0;
}

static int run_out_of_memory(void) {
  work(100);
  say("too much",
      nofrag_malloc((size_t)1 << 40, 0, NULL) != NULL ? NOFRAG_OK : nofrag_last_error(NULL));
  return 0;
}

/* As programs do that check each call and end themselves. */
static int run_killed(void) {
  work(100);
  /* And those that try again first. */
  if (nofrag_malloc((size_t)1 << 40, 0, NULL) == NULL &&
      nofrag_malloc((size_t)2 << 40, 0, NULL) == NULL) {
    kill(getpid(), SIGKILL);
  }
  return 0;
}

int main(int argc, char** argv) {
  const char* const scene = argc > 1 ? argv[1] : "";
  if (strcmp(scene, "work") == 0) {
    work(1000);
    return 0;
  }
  if (strcmp(scene, "work-long") == 0) {
    for (int i = 0; i < 4; ++i) {
      work(20000);
      nofrag_trace_flush();
    }
    return 0;
  }
  if (strcmp(scene, "api") == 0) {
    return run_api(argv[2]);
  }
  if (strcmp(scene, "fork") == 0) {
    return run_fork();
  }
  if (strcmp(scene, "kill") == 0) {
    return run_kill();
  }
  if (strcmp(scene, "signal") == 0) {
    return run_signal();
  }
  if (strcmp(scene, "out-of-memory") == 0) {
    return run_out_of_memory();
  }
  if (strcmp(scene, "killed") == 0) {
    return run_killed();
  }
  fprintf(stderr, "trace_probe: no scene \"%s\"\n", scene);
  return 2;
}
