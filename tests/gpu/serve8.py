#!/usr/bin/env python3
"""Eight threads, a CUDA stream each, serve prompts of many lengths with a Llama-like model: whole
prompts, batches of 1 to 16, two requests at a time in flight, started in their order.

Both hold the logits of every token until the answer has been dealt with, so the peak is that of the
largest pair in flight: with the default seed the two largest requests are neighbours and need about
14.7 GiB with the weights. A request that finds no memory is lost: it lets go of what it holds, and the next goes
on. Under nofrag each loss is judged (oom.py): was the request truly larger than what could be composed?
"""

import contextlib
import hashlib
import random
import threading
import time

import job
import llama
import oom

VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, INNER = 21504, 2048, 6, 16, 8, 5504

HOLD = 0.04  # seconds


class Turns:
    """Request n starts after request n - 1 has started, and when fewer than `most` are in flight."""

    def __init__(self, most):
        self.most, self.next, self.running, self.changed = most, 0, 0, threading.Condition()

    @contextlib.contextmanager
    def turn(self, index):
        with self.changed:
            self.changed.wait_for(lambda: self.next == index and self.running < self.most)
            self.next, self.running = self.next + 1, self.running + 1
            self.changed.notify_all()
        try:
            yield
        finally:
            with self.changed:
                self.running -= 1
                self.changed.notify_all()


def plan(seed, requests):
    """(batch, length) of each request, the same on every platform."""
    draw = random.Random(seed)
    return [(draw.randint(1, 16), draw.randint(200, 4000)) for _ in range(requests)]


class Server:
    def __init__(self, torch, nofrag, requests, in_flight, seed):
        self.torch, self.seed, self.requests = torch, seed, requests
        self.watch = oom.Watch(nofrag) if nofrag is not None else None
        self.model = llama.Model(torch, VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, INNER, made_on="cuda", fused=True)
        torch.cuda.synchronize()
        self.turns = Turns(in_flight)
        self.answers, self.lost, self.errors = [None] * len(requests), [], []

    def prompt(self, index):
        batch, length = self.requests[index]
        generator = self.torch.Generator().manual_seed(self.seed * 1000 + index)
        return self.torch.randint(0, VOCABULARY, (batch, length), generator=generator)

    def serve(self, prompt):
        logits = self.model.prefill(prompt.cuda())
        wide = logits.float()
        best = wide.argmax(-1).cpu()
        # As a server does that samples and sends: the logits stay meanwhile. Without this the slower
        # allocator would see fewer requests meet, and so need less.
        time.sleep(HOLD)
        return hashlib.sha256(best.numpy().tobytes()).hexdigest()

    def memory_now(self):
        if self.watch is not None:
            return self.watch.last()
        allocated, reserved = self.torch.cuda.memory_allocated(), self.torch.cuda.memory_reserved()
        return {"live": allocated, "reserved": reserved, "verdict": "unknown"}

    def one(self, index):
        prompt = self.prompt(index)
        with self.turns.turn(index):
            try:
                self.answers[index] = self.serve(prompt)
                return
            except self.torch.OutOfMemoryError as error:
                message = str(error).splitlines()[0][:600]
                report = self.memory_now()
        # Here the error and with it every frame and tensor of the request are gone.
        batch, length = self.requests[index]
        self.lost.append({"request": index, "batch": batch, "length": length, "message": message, **(report or {})})

    def thread(self, number, threads, ready):
        torch = self.torch
        try:
            with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
                # Handles and workspaces of this thread and stream, before the clock starts.
                self.serve(torch.zeros((1, 16), dtype=torch.int64))
                ready.wait()
                for index in range(number, len(self.requests), threads):
                    self.one(index)
        except BaseException as error:  # the others would wait for its turns for ever
            self.errors.append(f"thread {number}: {type(error).__name__}: {error}")
            self.turns.most = self.turns.next = len(self.requests)
            ready.abort()
            raise

    def run(self, threads):
        ready = threading.Barrier(threads + 1)
        workers = [threading.Thread(target=self.thread, args=(n, threads, ready), daemon=True) for n in range(threads)]
        for worker in workers:
            worker.start()
        ready.wait()
        started = time.perf_counter()
        while any(worker.is_alive() for worker in workers) and not self.errors:
            for worker in workers:
                worker.join(timeout=0.05)
        self.torch.cuda.synchronize()
        return time.perf_counter() - started


def show(loss):
    mib = {key: round(value / 2**20, 1) for key, value in loss.items() if isinstance(value, int) and value > 2**16}
    if loss.get("limit") == oom.NO_LIMIT:
        mib["limit"] = None
    print(f"lost request {loss['request']} ({loss['batch']} x {loss['length']}): {loss.get('verdict')}, MiB: {mib}")
    print(f"  {loss['message']}")


def main():
    parser = job.arguments(__doc__)
    parser.set_defaults(seed=3916)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=2)
    args = parser.parse_args()
    torch, nofrag = job.import_torch(args)
    llama.flash_attention_only(torch)
    server = Server(torch, nofrag, plan(args.seed, args.requests), args.in_flight, args.seed)
    seconds = server.run(args.threads)
    job.write_trace(args, torch)
    if server.errors:
        raise SystemExit("\n".join(server.errors))
    for loss in server.lost:
        show(loss)
    verdicts = [loss.get("verdict") for loss in server.lost]
    result = {"job": "serve8", "allocator": args.allocator, "limit_bytes": job.limit_bytes(args), "seconds": seconds,
              "completed": sum(answer is not None for answer in server.answers), "lost": len(server.lost),
              "truly_short": verdicts.count("short"), "not_short": verdicts.count("not short"),
              "losses": server.lost, "answers": server.answers, **job.memory_numbers(torch, nofrag)}
    assert result["completed"] + result["lost"] == args.requests
    job.finish(result)


if __name__ == "__main__":
    main()
