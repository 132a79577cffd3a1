"""Replays for the policy study: traces by group, runs of `nofrag replay`, remembered peers.

The peers' models do not depend on the engine, so their runs are kept in build/study/peers.json, by the
trace's contents and the device file's; delete the file after a change to allocator/cli/peers.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import pathlib
import subprocess

import synthetic

ROOT = pathlib.Path(__file__).resolve().parents[2]
STORE = ROOT / "build/study"
SCALES = (0.97, 1.013, 1.047)
UNLIMITED = ""
DEVICE = "h100-80g"
STEPS = range(31)  # capacity over live from 1.000 to 1.030


@dataclasses.dataclass(frozen=True)
class Trace:
    group: str  # real, scaled, synthetic or given
    name: str
    path: pathlib.Path
    digest: str


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def make_trace(group, name, path):
    return Trace(group, name, path, digest(path))


def pack(nofrag, csv, path):
    """Writes a csv as a packed trace, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = path.with_suffix(".csv")
    plain.write_text(csv, encoding="utf-8")
    packed = path.with_suffix(".part")
    subprocess.run([nofrag, "convert", str(plain), "--to", "nofrag", str(packed)], check=True, stdout=subprocess.DEVNULL)
    packed.rename(path)
    plain.unlink()


def newer(path, *sources):
    return path.exists() and all(path.stat().st_mtime > source.stat().st_mtime for source in sources)


def all_traces(nofrag, quick, given):
    """Makes what is missing. Order: real, scaled, synthetic, given."""
    real = [make_trace("real", path.stem, path) for path in sorted((ROOT / "bench/traces").glob("*.nofrag"))]
    extra = [make_trace("given", path.name.split(".")[0], path) for path in given]
    if quick:
        return real + extra
    generator = pathlib.Path(synthetic.__file__)
    scaled = []
    for trace in real:
        for factor in SCALES:
            path = STORE / f"{trace.name}_x{factor}.nofrag"
            if not newer(path, generator, trace.path):
                convert = [nofrag, "convert", str(trace.path), "--to", "csv", "-"]
                csv = subprocess.run(convert, check=True, capture_output=True, text=True).stdout
                pack(nofrag, synthetic.scaled(csv, factor), path)
            scaled.append(make_trace("scaled", path.stem, path))
    made = []
    for kind, generate in synthetic.KINDS.items():
        path = STORE / f"{kind}.nofrag"
        if not newer(path, generator):
            pack(nofrag, generate().text(), path)
        made.append(make_trace("synthetic", kind, path))
    return real + scaled + made + extra


class Aborted(Exception):
    """The program broke; the message has the command."""


class Runner:
    """Runs replays two at a time. A run is the `runs` entry of nofrag.replay/1 with the trace's fields added."""

    def __init__(self, nofrag):
        self.nofrag = nofrag
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.prices = digest(ROOT / f"sim/{DEVICE}.json")
        self.store = STORE / "peers.json"
        self.peers = json.loads(self.store.read_text(encoding="utf-8")) if self.store.exists() else {}

    def replay(self, trace, allocator, conf, arguments):
        command = [self.nofrag, "replay", str(trace.path), "--allocator", allocator, "--device", f"sim:{DEVICE}"]
        command += ["--json", "-", "--quiet", *arguments]
        if conf:
            command += ["--conf", conf]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 4):
            raise Aborted(f"{' '.join(command)}\nexit code {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)["traces"][0]

    def compute(self, trace, allocator, conf, capacity):
        if capacity == "min":
            found = self.replay(trace, allocator, conf, ["--min-capacity"])
            return {"over_live": found["min_capacity"][0]["over_live"]}
        found = self.replay(trace, allocator, conf, ["--capacity", capacity] if capacity else [])
        run = found["runs"][0]
        wanted = ("completed", "peak_reserved_bytes", "reserved_over_live", "driver_us", "driver_us_quarters")
        result = {key: run[key] for key in wanted}
        result["maps"] = run["driver_calls"]["map"]
        result["duration_us"] = found["duration_us"]
        result["streams"] = found["streams"]
        return result

    def submit(self, trace, allocator, conf, capacity):
        """A future of the run. `capacity`: UNLIMITED, "1.020x" or "min" (the program's own search)."""
        key = f"{trace.digest} {self.prices} {allocator} {capacity or 'unlimited'}"
        if allocator != "nofrag" and key in self.peers:
            ready = concurrent.futures.Future()
            ready.set_result(self.peers[key])
            return ready
        future = self.pool.submit(self.compute, trace, allocator, conf, capacity)
        if allocator != "nofrag":
            future.add_done_callback(lambda done: self.remember(key, done))
        return future

    def remember(self, key, done):
        if done.exception() is None:
            self.peers[key] = done.result()

    def save(self):
        if self.peers:
            STORE.mkdir(parents=True, exist_ok=True)
            part = self.store.with_suffix(".part")
            part.write_text(json.dumps(self.peers), encoding="utf-8")
            part.rename(self.store)
