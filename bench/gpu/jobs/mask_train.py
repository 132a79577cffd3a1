#!/usr/bin/env python3
"""Detection and masks in the way of Mask R-CNN: images of random sizes, a pyramid of features, a random
number of boxes cut out of it, a head for classes and one for masks. Plain torch.nn. Prints each loss
exactly (hexadecimal)."""

from shared import draw, grown, job, normal


def build_model(torch, width):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, inside, outside):
            super().__init__()
            self.one, self.two = nn.Conv2d(inside, outside, 3, 2, 1), nn.Conv2d(outside, outside, 3, 1, 1)
            self.norm = nn.GroupNorm(8, outside)

        def forward(self, x):
            x = functional.relu(self.one(x))
            return functional.relu(x + self.norm(self.two(x)))

    class Masks(nn.Module):
        def __init__(self):
            super().__init__()
            widths = [width, 2 * width, 4 * width, 8 * width]
            self.stem = nn.Conv2d(3, width, 7, 2, 3)
            self.blocks = nn.ModuleList(Block(a, b) for a, b in zip([width, *widths], widths))
            self.side = nn.ModuleList(nn.Conv2d(one, 128, 1) for one in widths)
            self.proposals = nn.Conv2d(128, 15, 3, 1, 1)
            self.classes = nn.Sequential(nn.Linear(128 * 49, 1024), nn.ReLU(), nn.Linear(1024, 81 * 5))
            self.masks = nn.Sequential(nn.Conv2d(128, 256, 3, 1, 1), nn.ReLU(), nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU())
            self.last = nn.Conv2d(256, 81, 1)

        def pyramid(self, x):
            x, levels = functional.relu(self.stem(x)), []
            for block in self.blocks:
                x = block(x)
                levels.append(x)
            levels = [side(level) for side, level in zip(self.side, levels)]
            for finer in range(len(levels) - 2, -1, -1):
                height, width_here = levels[finer].shape[2:]
                levels[finer] = levels[finer] + grown(levels[finer + 1])[:, :, :height, :width_here]
            return levels

        def cut(self, feature, boxes, size):
            """What lies under each box, `size` by `size`: two products with interpolation weights."""
            parts = []
            for axis, length in enumerate(feature.shape[2:]):
                low, high = boxes[:, axis], boxes[:, axis + 2]
                places = low[:, None] + (high - low)[:, None] * torch.linspace(0, 1, size, device="cuda")
                distance = (places * (length - 1))[:, :, None] - torch.arange(length, device="cuda")
                parts.append((1 - distance.abs()).clamp(min=0).to(feature.dtype))  # boxes, size, length
            rows = torch.einsum("bsh,chw->bcsw", parts[0], feature[0])
            return torch.einsum("bcsw,btw->bcst", rows, parts[1])

        def forward(self, x, boxes):
            levels = self.pyramid(x)
            proposed = [self.proposals(level) for level in levels]
            finest = levels[0]
            classes = self.classes(self.cut(finest, boxes, 7).flatten(1))
            masks = self.last(grown(self.masks(self.cut(finest, boxes, 14))))
            return proposed, classes, masks

    return Masks().cuda()


def main():
    parser = job.arguments(__doc__)
    job.training_arguments(parser, steps=40)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--sides", type=int, nargs=2, default=(320, 1024), metavar=("LEAST", "MOST"))
    args = parser.parse_args()
    torch, nofrag = job.import_torch(args)
    torch.backends.cudnn.benchmark = False
    model = build_model(torch, args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    generator = torch.Generator().manual_seed(args.seed)

    def one_step(_index):
        height, width = (draw(torch, generator, *args.sides) for _ in range(2))
        count = draw(torch, generator, 8, 256)
        corners = torch.rand(count, 4, generator=generator)
        boxes = torch.cat([torch.minimum(corners[:, :2], corners[:, 2:]), torch.maximum(corners[:, :2], corners[:, 2:])], dim=1)
        labels = torch.randint(0, 81, (count,), generator=generator).cuda()
        wanted = torch.randint(0, 2, (count, 28, 28), generator=generator).float().cuda()
        x = normal(torch, generator, 1, 3, height, width)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            proposed, classes, masks = model(x, boxes.cuda())
        chosen = masks.float()[torch.arange(count, device="cuda"), labels]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(chosen, wanted)
        loss = loss + torch.nn.functional.cross_entropy(classes.float()[:, :81], labels)
        loss = loss + 0.01 * sum(level.float().square().mean() for level in proposed)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    job.train(args, torch, nofrag, "mask_train", one_step)


if __name__ == "__main__":
    main()
