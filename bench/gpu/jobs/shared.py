"""Where the GPU jobs of the benchmarks find what the GPU tests share (tests/gpu/job.py)."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "gpu"))
import job  # noqa: E402, F401


def draw(torch, generator, least, most, step=1):
    """A number from least to most in steps, from the CPU's generator: the same for every allocator."""
    return least + step * int(torch.randint(0, (most - least) // step + 1, (1,), generator=generator))


def normal(torch, generator, *shape):
    return torch.randn(*shape, generator=generator).cuda()


def grown(x):
    """Each pixel four times: twice as high, twice as wide. Its backward pass is a sum, in one order."""
    batch, channels, height, width = x.shape
    return x[:, :, :, None, :, None].expand(batch, channels, height, 2, width, 2).reshape(batch, channels, 2 * height, 2 * width)
