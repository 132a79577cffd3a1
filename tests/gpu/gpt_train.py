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


def main(name="gpt_train", steps=32, warmup=8, batch=8, layers=12, width=1024, lengths=(64, 1024)):
    parser = job.arguments(__doc__)
    job.training_arguments(parser, steps, warmup)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--layers", type=int, default=layers)
    parser.add_argument("--width", type=int, default=width)
    parser.add_argument("--lengths", type=int, nargs=2, default=lengths, metavar=("LEAST", "MOST"))
    args = parser.parse_args()
    torch, nofrag = job.import_torch(args)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    vocabulary = 32000
    model = build_model(torch, vocabulary, args.width, args.layers, args.width // 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    # Lengths and data come from the CPU generator, so that every allocator sees the same job.
    generator = torch.Generator().manual_seed(args.seed)

    def one_step(_index):
        length = int(torch.randint(args.lengths[0], args.lengths[1] + 1, (1,), generator=generator))
        ids = torch.randint(0, vocabulary, (args.batch, length + 1), generator=generator).cuda()
        # The plain attention kernel: its backward pass is deterministic, its memory varies most.
        with torch.autocast("cuda", dtype=torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
            logits = model(ids[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    job.train(args, torch, nofrag, name, one_step)


if __name__ == "__main__":
    main()
