#!/usr/bin/env python3
"""Whole training steps in CUDA graphs: one graph a batch size, all in one pool, replayed by turns with other
work between them, and captured anew now and then. Prints each loss exactly (hexadecimal)."""

from shared import job, normal

SIZES = [64, 256, 512]


def main():
    parser = job.arguments(__doc__)
    job.training_arguments(parser, steps=150, warmup=12)
    parser.add_argument("--width", type=int, default=2048)
    args = parser.parse_args()
    torch, nofrag = job.import_torch(args)
    nn = torch.nn
    layers = [part for _ in range(4) for part in (nn.Linear(args.width, args.width), nn.GELU())]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(args.seed)
    inputs = {size: torch.zeros(size, args.width, device="cuda") for size in SIZES}
    pool, graphs = torch.cuda.graph_pool_handle(), {}

    def step(x):
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def capture(size):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(inputs[size])
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            loss = step(inputs[size])
        graphs[size] = graph, loss

    def one_step(index):
        size = SIZES[index % len(SIZES)]
        inputs[size].copy_(normal(torch, generator, size, args.width))
        if size not in graphs or index % 50 == 49:
            graphs.pop(size, None)
            capture(size)
        graph, loss = graphs[size]
        graph.replay()
        # What a program does between replays: memory of other sizes comes and goes.
        extra = [normal(torch, generator, (index * 7919 + one * 104_729) % 2_000_000 + 1).sum() for one in range(2)]
        return loss.clone() + 0 * sum(extra)

    job.train(args, torch, nofrag, "graph_train", one_step)


if __name__ == "__main__":
    main()
