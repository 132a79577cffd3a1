#!/usr/bin/env python3
"""A Llama-like generation job: prompts of many lengths, a key-value cache that grows by a token at a
time (each step allocates a larger one and frees the old). Prints every token."""

import hashlib

import job
import llama


def main():
    parser = job.arguments(__doc__)
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    torch, nofrag = job.import_torch(args)
    vocabulary = 32000
    model = llama.Model(torch, vocabulary, width=2048, layers=16, heads=16, kv_heads=8)
    generator = torch.Generator().manual_seed(args.seed)
    exact, clock, count = [], job.Clock(torch, warmup=args.tokens), 0
    with torch.inference_mode():
        for _ in range(args.requests):
            batch = int(torch.randint(2, 17, (1,), generator=generator))
            prompt = int(torch.randint(32, 1025, (1,), generator=generator))
            ids = torch.randint(0, vocabulary, (batch, prompt), generator=generator).cuda()
            caches, tokens = [None] * len(model.layers), []
            for _ in range(args.tokens):
                clock.before_step(count, nofrag)
                count += 1
                ids = model.step(ids, caches).float().argmax(-1, keepdim=True)
                tokens.append(ids)
            rows = torch.cat(tokens, dim=1).tolist()
            exact.append(hashlib.sha256(str(rows).encode()).hexdigest())
            print(f"request batch {batch} prompt {prompt} first row {rows[0][:16]} sha256 {exact[-1]}")
            del caches, tokens, ids
    timing = clock.result(nofrag)
    job.write_trace(args, torch)
    job.finish({"job": "generate", "allocator": args.allocator, "exact": exact, **timing,
                **job.memory_numbers(torch, nofrag)})


if __name__ == "__main__":
    main()
