#include "cli/commands.h"

int main(int argc, char** argv) {
  return nofrag::run_cli(argc, argv);
}
