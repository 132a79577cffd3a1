#!/usr/bin/env bash
# Runs the test lanes and closes with a table of them. Exit status 1 if any lane failed.
#
#   scripts/test.sh [LANE...]     all lanes, or those named, in the order given
#
#   format   clang-format finds nothing to change
#   lint     layering, sizes, header banners, links of the documentation, and proof that they bite
#   release  g++ build as users run it, and every test (gpu and torch ones skip where there is none); the code of
#            the fast and gpu tests themselves, and what they include, is not optimized but where they are marked so
#   headers  every header compiles alone
#   asan     clang build with AddressSanitizer and UBSan (the preset clang), and every test but the long ones
#   fuzz     each fuzzer of that build for FUZZ_SECONDS (else they share 80 seconds)
#   tsan     ThreadSanitizer: the tests marked THREADED
#   tidy     clang-tidy over allocator/ and torch_plugin/, without the static analyzer (scripts/tidy.py --analyze has it),
#            files of a target together (--alone: each by itself)
#
# Build trees and the record of files that clang-tidy has passed stay in build/, so a second run
# does only what changed.
set -uo pipefail
cd "$(dirname "$0")/.."

JOBS="${JOBS:-$(nproc)}"
# A fuzzer's time; if not given, all of them together have FUZZ_BUDGET seconds, so that the lane's time does not
# grow with their number.
FUZZ_SECONDS="${FUZZ_SECONDS:-}"
FUZZ_BUDGET=80
all_lanes=(format lint release headers asan fuzz tsan tidy)
logs=build/test-logs

configure() { # PRESET
  cmake --preset "$1" > "$logs/configure-$1.log" 2>&1 || {
    cat "$logs/configure-$1.log"
    return 1
  }
}

build() { # PRESET [TARGET...]
  local preset="$1"
  shift
  configure "$preset"
  if [ "$#" -gt 0 ]; then
    cmake --build --preset "$preset" -j "$JOBS" --target "$@"
  else
    cmake --build --preset "$preset" -j "$JOBS"
  fi
}

run_ctest() { # PRESET [CTEST ARGUMENT...]
  local preset="$1"
  shift
  ctest --preset "$preset" --no-tests=error -j "$JOBS" \
    --output-junit "$PWD/$logs/$lane.xml" "$@"
}

lane_format() {
  local files unformatted
  mapfile -t files < <(git ls-files '*.h' '*.cc' '*.cu' '*.c')
  mapfile -t unformatted < <(printf '%s\0' "${files[@]}" | xargs -0 -P "$JOBS" -n 20 sh -c '
    for file; do clang-format-14 --dry-run --Werror "$file" > /dev/null 2>&1 || echo "$file"; done' sh)
  wait "$!" || return 1
  [ "${#unformatted[@]}" -eq 0 ] || printf '%s: not formatted (make format)\n' "${unformatted[@]}"
  echo "${#files[@]} files, ${#unformatted[@]} not as .clang-format says"
  [ "${#files[@]}" -gt 0 ] && [ "${#unformatted[@]}" -eq 0 ]
}

lane_lint() {
  configure release
  run_ctest release -L '^lint$'
}

lane_release() {
  build release
  run_ctest release -LE '^lint$'
}

lane_headers() {
  build release header_check
}

run_fuzzer() { # PROGRAM
  local name log inputs
  name="$(basename "$1")"
  log="$logs/$name.log"
  # New inputs land in build/; the committed seeds are only read.
  mkdir -p "build/fuzz/$name/corpus"
  inputs=("build/fuzz/$name/corpus")
  if [ -d "tests/fuzz/corpus/$name" ]; then
    inputs+=("tests/fuzz/corpus/$name")
  fi
  if ! "$1" -max_total_time="$FUZZ_SECONDS" -print_final_stats=1 -timeout=10 \
    -artifact_prefix="build/fuzz/$name/" "${inputs[@]}" > "$log" 2>&1; then
    tail -n 60 "$log"
    echo "$name: FAILED; the input is in build/fuzz/$name/"
    return 1
  fi
  echo "$name: $(sed -n 's/^stat::number_of_executed_units: //p' "$log") inputs in $FUZZ_SECONDS s, nothing found"
}

lane_asan() {
  build clang
  run_ctest clang -LE '^(lint|long)$'
}

lane_fuzz() {
  build clang
  local fuzzers
  mapfile -t fuzzers < <(find build/clang/bin -name '*_fuzz' -type f | sort)
  if [ "${#fuzzers[@]}" -eq 0 ]; then
    echo "no fuzzers were built"
    return 1
  fi
  if [ -z "$FUZZ_SECONDS" ]; then
    FUZZ_SECONDS=$((FUZZ_BUDGET / ${#fuzzers[@]} > 4 ? FUZZ_BUDGET / ${#fuzzers[@]} : 4))
  fi
  export -f run_fuzzer
  export FUZZ_SECONDS logs
  printf '%s\0' "${fuzzers[@]}" | xargs -0 -P "$JOBS" -n 1 bash -c 'run_fuzzer "$1"' bash
}

lane_tsan() {
  # Only the threaded programs are built: test and target have the same name.
  configure tsan
  local programs
  mapfile -t programs < <(ctest --preset tsan -N -L '^threaded$' |
    sed -n 's/^ *Test *#[0-9]*: //p')
  if [ "${#programs[@]}" -eq 0 ]; then
    echo "no test is marked THREADED"
    return 1
  fi
  build tsan "${programs[@]}"
  run_ctest tsan -L '^threaded$'
}

lane_tidy() {
  python3 scripts/tidy.py --jobs "$JOBS"
}

lanes=("${@:-${all_lanes[@]}}")
for lane in "${lanes[@]}"; do
  if ! declare -F "lane_$lane" > /dev/null; then
    echo "no lane '$lane'; lanes: ${all_lanes[*]}" >&2
    exit 2
  fi
done

mkdir -p "$logs"
table=()
failed_lanes=0
passed=0 failed=0 skipped=0
for lane in "${lanes[@]}"; do
  printf '\n=== %s\n' "$lane"
  start=$SECONDS
  rm -f "$logs/$lane.xml"
  (
    set -e
    "lane_$lane"
  ) 2>&1 | tee "$logs/$lane.log"
  status=${PIPESTATUS[0]}
  read -r lane_passed lane_failed lane_skipped < <(python3 scripts/count_tests.py "$logs/$lane.xml")
  passed=$((passed + lane_passed)) failed=$((failed + lane_failed))
  skipped=$((skipped + lane_skipped))
  result=passed
  if [ "$status" -ne 0 ]; then
    result=FAILED
    failed_lanes=$((failed_lanes + 1))
  fi
  table+=("$(printf '%-8s %-7s %5d s %7d %7d %8d' "$lane" "$result" $((SECONDS - start)) \
    "$lane_passed" "$lane_failed" "$lane_skipped")")
done

printf '\n%-8s %-7s %7s %7s %7s %8s\n' lane result 'time  ' passed failed skipped
printf '%s\n' "${table[@]}"
printf '\nlanes: %d run, %d failed, %d s\n' "${#lanes[@]}" "$failed_lanes" "$SECONDS"
if [ "$skipped" -gt 0 ]; then
  echo "skipped tests are named above; those of labels gpu and torch need a GPU (make gpu)"
fi
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed_lanes" -eq 0 ] && [ "$failed" -eq 0 ]
