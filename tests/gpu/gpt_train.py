#!/usr/bin/env python3
"""A GPT-like training job with variable sequence lengths. Prints each loss exactly (hexadecimal)."""

import job


def build_model(torch, vocabulary, width, layers, heads):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, length, _ = x.shape
            parts = self.qkv(self.norm1(x)).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(2048, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, ids):
            x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Gpt().cuda()


def main():
    parser = job.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    args = parser.parse_args()
    torch, nofrag = job.import_torch(args)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    vocabulary = 32000
    model = build_model(torch, vocabulary, args.width, args.layers, args.width // 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    # Lengths and data come from the CPU generator, so that every allocator sees the same job.
    generator = torch.Generator().manual_seed(args.seed)
    losses, clock = [], job.Clock(torch, warmup=8)
    for step in range(args.steps):
        clock.before_step(step, nofrag)
        length = int(torch.randint(64, 1025, (1,), generator=generator))
        ids = torch.randint(0, vocabulary, (args.batch, length + 1), generator=generator).cuda()
        # The plain attention kernel: its backward pass is deterministic, its memory varies most.
        with torch.autocast("cuda", dtype=torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
            logits = model(ids[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        del logits, loss, ids
    timing = clock.result(nofrag)
    exact = [float(loss).hex() for loss in losses]
    for step, loss in enumerate(exact):
        print(f"step {step} loss {loss}")
    job.finish({"job": "gpt_train", "allocator": args.allocator, "exact": exact, **timing,
                **job.memory_numbers(torch, nofrag)})


if __name__ == "__main__":
    main()
