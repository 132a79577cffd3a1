#!/usr/bin/env bash
# The loop of torch_loop.py and the generation job under each allocator, twice in turn, so that drift of
# the machine shows; a table at the end. usage: torch_loop.sh [LIBNOFRAG]
set -u
here=$(cd "$(dirname "$0")" && pwd)
library=${1:-$here/../../build/release/lib/libnofrag.so}
out=${OUT:-$here/../../build/gpu}
mkdir -p "$out"
: >"$out/torch_loop.jsonl"
for round in 1 2; do
  for allocator in native nofrag expandable; do
    python3 "$here/torch_loop.py" --allocator $allocator --library "$library" 2>&1 | sed -n 's/^RESULT //p' >>"$out/torch_loop.jsonl"
    python3 "$here/../../tests/gpu/generate.py" --allocator $allocator --library "$library" --requests 3 --tokens 48 2>&1 |
      sed -n 's/^RESULT //p' >>"$out/torch_loop.jsonl"
  done
done
python3 - "$out/torch_loop.jsonl" <<'P'
import json, sys
for line in open(sys.argv[1]):
    r = json.loads(line)
    if "ns" in r:
        print(f"{r['allocator']:12}", "  ".join(f"{k}: {v['median']:.0f} ({v['lowest']:.0f}-{v['highest']:.0f})" for k, v in r["ns"].items()))
    else:
        print(f"{r['allocator']:12} generate {r['steps_per_s']:.2f} tokens/s, reserved/live {r['peak_reserved_bytes']/r['peak_live_bytes']:.3f}", r.get("driver_us_after_warmup"))
P
