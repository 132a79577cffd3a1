#!/usr/bin/env python3
"""A UNet trained on images of random sizes. Prints each loss exactly (hexadecimal)."""

from shared import draw, grown, job, normal


def build_model(torch, width):
    nn, functional = torch.nn, torch.nn.functional

    class Pair(nn.Module):
        def __init__(self, inside, outside, stride=1):
            super().__init__()
            self.one = nn.Conv2d(inside, outside, 3, stride, 1)
            self.two = nn.Conv2d(outside, outside, 3, 1, 1)
            self.norms = nn.ModuleList([nn.GroupNorm(8, outside), nn.GroupNorm(8, outside)])

        def forward(self, x):
            return functional.silu(self.norms[1](self.two(functional.silu(self.norms[0](self.one(x))))))

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            widths = [width, 2 * width, 4 * width, 8 * width]
            self.first = Pair(3, widths[0])
            self.down = nn.ModuleList(Pair(a, b, stride=2) for a, b in zip(widths, widths[1:]))
            self.up = nn.ModuleList(Pair(a + b, b) for a, b in zip(widths[:0:-1], widths[-2::-1]))
            self.last = nn.Conv2d(widths[0], 3, 1)

        def forward(self, x):
            kept = [self.first(x)]
            for part in self.down:
                kept.append(part(kept[-1]))
            x = kept.pop()
            for part in self.up:
                x = part(torch.cat([grown(x), kept.pop()], dim=1))
            return self.last(x)

    return UNet().cuda()


def main():
    parser = job.arguments(__doc__)
    job.training_arguments(parser, steps=40)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--sides", type=int, nargs=2, default=(128, 512), metavar=("LEAST", "MOST"))
    args = parser.parse_args()
    torch, nofrag = job.import_torch(args)
    torch.backends.cudnn.benchmark = False
    model = build_model(torch, args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(args.seed)

    def one_step(_index):
        height, width = (draw(torch, generator, *args.sides, step=8) for _ in range(2))
        x = normal(torch, generator, draw(torch, generator, 2, 6), 3, height, width)
        noise = normal(torch, generator, *x.shape)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = (model(x + noise).float() - noise).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    job.train(args, torch, nofrag, "unet_train", one_step)


if __name__ == "__main__":
    main()
