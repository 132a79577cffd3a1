#!/usr/bin/env python3
"""A mixture of experts: each token goes to the two experts that its router prefers, so that what an expert
gets, and needs, changes with every batch. Prints each loss exactly (hexadecimal)."""

from shared import draw, job


def build_model(torch, vocabulary, width, layers, experts):
    nn, functional = torch.nn, torch.nn.functional

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(width, experts, bias=False)
            self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(experts))
            self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(experts))

        def forward(self, x):
            flat = x.flatten(0, 1)
            weights, chosen = self.router(flat).float().softmax(-1).topk(2, dim=-1)
            out = torch.zeros_like(flat)
            for number in range(experts):
                tokens, place = (chosen == number).nonzero(as_tuple=True)  # its size is known to the host only now
                if tokens.numel() == 0:
                    continue
                made = self.down[number](functional.gelu(self.up[number](flat[tokens])))
                # Each token comes once for an expert, so the order of the sums is that of this loop.
                out = out.index_add(0, tokens, (made * weights[tokens, place, None]).to(out.dtype))
            return out.view_as(x)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
            self.qkv, self.out, self.experts = nn.Linear(width, 3 * width), nn.Linear(width, width), Experts()

        def forward(self, x):
            batch, length, _ = x.shape
            q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
            return x + self.experts(self.norms[1](x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.layers = nn.Embedding(vocabulary, width), nn.ModuleList(Layer() for _ in range(layers))
            self.head = nn.Linear(width, vocabulary, bias=False)

        def forward(self, ids):
            x = self.tokens(ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    return Model().cuda()


def main():
    parser = job.arguments(__doc__)
    job.training_arguments(parser, steps=30)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--experts", type=int, default=8)
    args = parser.parse_args()
    torch, nofrag = job.import_torch(args)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    vocabulary = 16000
    model = build_model(torch, vocabulary, args.width, args.layers, args.experts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(args.seed)

    def one_step(_index):
        ids = torch.randint(0, vocabulary, (draw(torch, generator, 2, 8), draw(torch, generator, 128, 1025)), generator=generator)
        ids = ids.cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
            logits = model(ids[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    job.train(args, torch, nofrag, "moe_train", one_step)


if __name__ == "__main__":
    main()
