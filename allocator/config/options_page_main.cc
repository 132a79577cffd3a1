// nofrag-options-page OPTIONS_PAGE [PYTORCH_PAGE]: writes docs/options.md from options.def, and into
// docs/pytorch.md the table of torch_conf.def, between the lines that begin and end it.
#include <cstdio>
#include <fstream>
#include <sstream>

#include "config/option_table.h"
#include "config/torch_conf.h"

namespace {

bool write_page(const char* path, const std::string& page) {
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) {
    std::perror(path);
    return false;
  }
  const bool written = std::fwrite(page.data(), 1, page.size(), file) == page.size();
  return std::fclose(file) == 0 && written;
}

bool renew_table(const char* path) {
  std::ostringstream read;
  read << std::ifstream(path).rdbuf();
  std::string page = read.str();
  const std::string begin(nofrag::kTorchTableBegin);
  const std::size_t from = page.find(begin);
  const std::size_t to = page.find(nofrag::kTorchTableEnd);
  if (from == std::string::npos || to == std::string::npos || to < from) {
    std::fprintf(stderr, "%s: there is no table to renew (%s)\n", path, begin.c_str());
    return false;
  }
  page.replace(from + begin.size(), to - from - begin.size(), nofrag::torch_conf_table());
  return write_page(path, page);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: nofrag-options-page OPTIONS_PAGE [PYTORCH_PAGE]\n");
    return 2;
  }
  const bool written = write_page(argv[1], nofrag::options_page());
  return written && (argc == 2 || renew_table(argv[2])) ? 0 : 1;
}
