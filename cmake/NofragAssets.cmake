# Files that the program carries: each becomes a constant of allocator/cli/report/assets.h.
#   cmake -DOUTPUT=FILE.cc -DASSETS="kName=path;kName=path" -P NofragAssets.cmake
file(WRITE ${OUTPUT}.new "#include \"cli/report/assets.h\"\n\nnamespace nofrag {\nnamespace {\n\n")
set(constants "")
foreach(asset IN LISTS ASSETS)
  string(REGEX MATCH "^([^=]+)=(.+)$" _ "${asset}")
  set(name ${CMAKE_MATCH_1})
  file(READ ${CMAKE_MATCH_2} hex HEX)
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${hex}")
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  file(APPEND ${OUTPUT}.new "constexpr char ${name}Bytes[] = {${bytes}};\n")
  string(APPEND constants
    "constinit const std::string_view ${name}(${name}Bytes, ${size});\n")
endforeach()
file(APPEND ${OUTPUT}.new "\n}  // namespace\n\n${constants}\n}  // namespace nofrag\n")
file(RENAME ${OUTPUT}.new ${OUTPUT})
