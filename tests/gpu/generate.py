#!/usr/bin/env python3
"""A Llama-like generation job: prompts of many lengths, a key-value cache that grows by a token at a
time (each step allocates a larger one and frees the old). Prints every token."""

import hashlib

import job


def rotate(torch, x, cosine, sine):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1).flatten(-2)


class Model:
    """Weights as plain tensors: no module machinery between the job and the allocator."""

    def __init__(self, torch, vocabulary, width, layers, heads, kv_heads):
        self.torch, self.width, self.heads, self.kv_heads = torch, width, heads, kv_heads
        self.size = width // heads
        # Made on the CPU: the same numbers whatever the GPU does.
        generator = torch.Generator().manual_seed(7)

        def weight(*shape):
            return (torch.randn(*shape, generator=generator) * shape[-1] ** -0.5).to(torch.bfloat16).cuda()

        self.embedding = weight(vocabulary, width)
        self.layers = [
            {
                "q": weight(width, width),
                "k": weight(kv_heads * self.size, width),
                "v": weight(kv_heads * self.size, width),
                "o": weight(width, width),
                "gate": weight(4 * width, width),
                "up": weight(4 * width, width),
                "down": weight(width, 4 * width),
            }
            for _ in range(layers)
        ]
        angles = torch.arange(4096).float()[:, None] * (10000.0 ** (-torch.arange(0, self.size, 2) / self.size))
        self.cosine, self.sine = angles.cos().cuda(), angles.sin().cuda()

    def norm(self, x):
        wide = x.float()
        return (wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)

    def step(self, ids, caches):
        torch, functional = self.torch, self.torch.nn.functional
        batch, length = ids.shape
        past = 0 if caches[0] is None else caches[0][0].shape[2]
        cosine, sine = self.cosine[past : past + length], self.sine[past : past + length]
        x = self.embedding[ids]
        for index, w in enumerate(self.layers):
            h = self.norm(x)
            q = functional.linear(h, w["q"]).view(batch, length, self.heads, self.size).transpose(1, 2)
            k = functional.linear(h, w["k"]).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
            v = functional.linear(h, w["v"]).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
            q = rotate(torch, q.float(), cosine, sine).to(x.dtype)
            k = rotate(torch, k.float(), cosine, sine).to(x.dtype)
            if caches[index] is not None:
                k = torch.cat((caches[index][0], k), dim=2)
                v = torch.cat((caches[index][1], v), dim=2)
            caches[index] = (k, v)
            groups = self.heads // self.kv_heads
            scores = q @ k.repeat_interleave(groups, 1).transpose(-1, -2) * self.size**-0.5
            if length > 1:
                mask = torch.ones(length, k.shape[2], dtype=torch.bool, device=x.device).tril(past)
                scores = scores.masked_fill(~mask, float("-inf"))
            attended = scores.float().softmax(-1).to(x.dtype) @ v.repeat_interleave(groups, 1)
            x = x + functional.linear(attended.transpose(1, 2).reshape(batch, length, self.width), w["o"])
            h = self.norm(x)
            gated = functional.silu(functional.linear(h, w["gate"])) * functional.linear(h, w["up"])
            x = x + functional.linear(gated, w["down"])
        return functional.linear(self.norm(x[:, -1]), self.embedding)


def main():
    parser = job.arguments(__doc__)
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    torch, nofrag = job.import_torch(args)
    vocabulary = 32000
    model = Model(torch, vocabulary, width=2048, layers=16, heads=16, kv_heads=8)
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
    job.finish({"job": "generate", "allocator": args.allocator, "exact": exact, **timing,
                **job.memory_numbers(torch, nofrag)})


if __name__ == "__main__":
    main()
