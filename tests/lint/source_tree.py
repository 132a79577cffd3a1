"""What the lint scripts share: finding the sources, reading the layer table, blanking out comments."""

import pathlib
import re
import sys

SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".c", ".def"}

# Comments, string and character literals; raw strings first, because quotes inside them mean nothing.
_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^()\s\\]{0,16})\(.*?\)(?P=d)"'
    r"|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)


def blank_comments_and_strings(text):
    """The text with comments and literal contents blanked, line numbers unchanged."""

    def blank(match):
        return re.sub(r"[^\n]", " ", match.group())

    # An #include's "path" is not a literal: keep it.
    def keep_includes(match):
        line_start = text.rfind("\n", 0, match.start()) + 1
        if re.match(r"\s*#\s*include\s*$", text[line_start : match.start()]):
            return match.group()
        return blank(match)

    return _TOKEN.sub(keep_includes, text)


def sources(root, *folders):
    """Every source file below the folders, as (path relative to root, text), sorted."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES and path.is_file():
                yield path.relative_to(root), path.read_text(encoding="utf-8")


class LayerTable:
    """tests/lint/layers.txt."""

    def __init__(self, path):
        self.may_include = {}
        self.settings = {}
        self.allowed_globals = []  # (file, symbol)
        self.exception_files = []
        for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            line = raw.partition("#")[0].strip()
            if not line:
                continue
            if line.startswith("@global "):
                _, file, symbol, *reason = line.split()
                self.allowed_globals.append((file, symbol))
                self._need_reason(path, number, reason)
            elif line.startswith("@exception "):
                _, file, *reason = line.split()
                self.exception_files.append(file)
                self._need_reason(path, number, reason)
            elif line.startswith("@"):
                name, *values = line[1:].split()
                self.settings[name] = values
            elif ":" in line:
                layer, _, allowed = line.partition(":")
                self.may_include[layer.strip()] = allowed.split()
            else:
                sys.exit(f"{path}:{number}: expected 'LAYER: ...' or '@setting ...'")
        for layer, allowed in self.may_include.items():
            for entry in allowed:
                if entry != "public" and entry.partition("/")[0] not in self.may_include:
                    sys.exit(f"{path}: layer '{layer}' names an unknown layer '{entry}'")

    @staticmethod
    def _need_reason(path, number, reason):
        if not reason:
            sys.exit(f"{path}:{number}: an exemption needs a reason")

    def layer_of(self, path):
        """The layer of a file (relative to the root), or None where the table does not apply."""
        parts = path.parts
        if parts[0] == "allocator" and len(parts) > 2:
            return parts[1]
        if parts[0] == "torch_plugin":
            return "torch_plugin"
        return None


def report(name, problems, checked):
    """Prints the problems; exits 1 if there are any, or if nothing was there to check."""
    for problem in problems:
        print(problem)
    if checked == 0:
        print(f"{name}: found nothing to check")
        sys.exit(1)
    print(f"{name}: {checked} files checked, {len(problems)} problems")
    sys.exit(1 if problems else 0)
