#!/usr/bin/env python3
"""The training job so small that the CPU sets its pace: two sequences of about 300 tokens a step. What
the allocator costs on the launching thread shows here, and nowhere else does."""

import gpt_train

if __name__ == "__main__":
    gpt_train.main("small_train", steps=240, warmup=60, batch=2, layers=12, width=512, lengths=(200, 400))
