#include "cli/usage.h"

#include <string_view>

#include <fmt/format.h>

namespace nofrag {
namespace {

bool holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Is `name` a word of the text? "--to" is none of "--torch".
bool names(std::string_view text, std::string_view name) {
  for (std::size_t at = text.find(name); at != std::string_view::npos;
       at = text.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    const bool begins = at == 0 || text[at - 1] == ' ';
    if (begins && (end == text.size() || text[end] == ' ' || text[end] == ':')) {
      return true;
    }
  }
  return false;
}

const CLI::Option* option_in(const CLI::App& command, std::string_view text) {
  for (const CLI::Option* option : command.get_options()) {
    bool named = !option->get_name().empty() && names(text, option->get_name());
    for (const std::string& name : option->get_lnames()) {
      named = named || names(text, name);  // some messages leave out the dashes
    }
    if (named) {
      return option;
    }
  }
  return nullptr;
}

struct CommandHelp {
  std::string_view name;
  std::string_view examples;
  std::string_view codes;
};
constexpr std::string_view kBadTrace =
    "2 bad usage or configuration; 3 an unreadable or corrupt trace";
constexpr CommandHelp kCommands[] = {
    {"replay",
     "  nofrag replay bench/traces/gpt_varlen.nofrag\n"
     "  nofrag replay trace.csv.gz --capacity 1.05x --min-capacity --json result.json\n",
     "0 done; 4 a replay ended out of memory; "},
    {"report", "  nofrag report snapshot.pickle -o report.html\n", "0 done; "},
    {"convert", "  nofrag convert trace.csv.gz --to nofrag trace.nofrag\n", "0 done; "},
    {"doctor",
     "  nofrag doctor\n  nofrag doctor --device sim:h100-80g --conf policy:lean\n",
     "0 done; "},
    {"explain",
     "  nofrag explain < oom.log\n"
     "  nofrag explain trace.nofrag --capacity 24GiB --json -\n",
     "0 done, also where it knows no cause; "},
    {"run", "  nofrag run --limit 20GiB --summary ./server\n", ""},
    {"top", "  nofrag top --once --json\n", "0 done; "},
};
constexpr std::string_view kRunCodes =
    "the command's own; 127 there is no such command, 126 it may not be run";

std::string codes_of(const CommandHelp& command) {
  if (command.name == "run") {
    return fmt::format("{}; 2 bad usage or configuration.", kRunCodes);
  }
  const bool traces = command.name != "top" && command.name != "doctor";
  return fmt::format("{}{};{}1 anything else that failed.",
                     command.codes,
                     traces ? kBadTrace : "2 bad usage or configuration",
                     traces ? '\n' : ' ');
}

}  // namespace

std::string help_footer(std::string_view command) {
  std::string examples;
  for (const CommandHelp& one : kCommands) {
    if (one.name == command) {
      const bool several = one.examples.find('\n') + 1 < one.examples.size();
      return fmt::format(
          "{}:\n{}\nExit codes: {}", several ? "Examples" : "Example", one.examples, codes_of(one));
    }
    examples += one.examples;
  }
  return "Examples:\n" + examples +
         fmt::format(
             "\nExit codes: 0 done (explain: also where it knows no cause); 4 a replay ended out "
             "of "
             "memory;\n{};\n1 anything else that failed.\nrun: {}.",
             kBadTrace,
             kRunCodes);
}

std::string file_hint(std::string_view word) {
  return fmt::format("; a file called '{0}' is written './{0}'", word);
}

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const auto subcommands = app.get_subcommands();
  const CLI::App& command = subcommands.empty() ? app : *subcommands.front();
  const std::string program = &command == &app ? "nofrag" : "nofrag " + command.get_name();
  const std::string help = fmt::format("; see '{} --help'", program);
  const std::string_view said = error.what();
  const CLI::Option* option = option_in(command, said);
  if (option == nullptr) {
    return std::string(said) + help;
  }
  const std::string name = option->get_name();
  const std::string meaning = fmt::format(" ({})", option->get_description());
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    return fmt::format("{}: {} is missing{}{}{}",
                       command.get_name(),
                       name,
                       meaning,
                       command.get_name() == "convert" ? kConvertExample : "",
                       help);
  }
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    const std::size_t value = said.find(" = ");
    const std::string_view given = value == std::string_view::npos ? "" : said.substr(value + 3);
    return fmt::format("{}: expected a number, found '{}'{}{}", name, given, meaning, help);
  }
  if (holds(said, "flag override")) {
    return fmt::format("{} takes no value: leave out what follows it after '='{}", name, help);
  }
  if (holds(said, "missing")) {
    return fmt::format("{}: its value is missing{}{}", name, meaning, help);
  }
  if (holds(said, "At Most")) {
    return fmt::format("{}: given more than once; give it once{}", name, help);
  }
  return std::string(said) + help;
}

}  // namespace nofrag
