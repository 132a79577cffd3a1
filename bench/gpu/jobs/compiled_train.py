#!/usr/bin/env python3
"""A small transformer under torch.compile, trained and then asked; --mode reduce-overhead runs it through
CUDA graph trees. Three shapes come by turns. Prints each loss exactly (hexadecimal)."""

from shared import job, normal


def build_model(torch, width):
    nn, functional = torch.nn, torch.nn.functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
            self.mix, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            x = x + torch.tanh(self.mix(self.norms[0](x)))
            return x + self.down(functional.gelu(self.up(self.norms[1](x))))

    return nn.Sequential(*[Layer() for _ in range(2)]).cuda()


def main():
    parser = job.arguments(__doc__)
    job.training_arguments(parser, steps=90, warmup=18)
    parser.add_argument("--mode", choices=["default", "reduce-overhead"], default="default")
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()
    torch, nofrag = job.import_torch(args)
    model = build_model(torch, args.width)
    fast = torch.compile(model, mode=args.mode, dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(args.seed)
    shapes = [(8, 256), (4, 512), (16, 128)]

    def one_step(index):
        x = normal(torch, generator, *shapes[index % 3], args.width)
        if args.mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        if index % 6 < 4:
            loss = (fast(x) - x.roll(1, dims=1)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        else:
            with torch.no_grad():
                loss = fast(x).square().mean()
        return loss.detach().clone()

    job.train(args, torch, nofrag, f"compiled_{args.mode}", one_step)


if __name__ == "__main__":
    main()
