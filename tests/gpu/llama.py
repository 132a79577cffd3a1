"""A Llama-like model with random weights, as plain tensors: no module machinery between a job and the
allocator. Generation, serving and fine-tuning share it; importing it does not import torch."""


def rotate(torch, x, cosine, sine):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1).flatten(-2)


def flash_attention_only(torch):
    """For the whole process: the switch is no thread's own. (Its backward pass is deterministic when
    deterministic algorithms are on.)"""
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)


class Model:
    """`inner` is the width inside a feed-forward part (default: four times `width`). With `fused` a
    sequence without a past goes through PyTorch's attention kernel and never holds a score matrix."""

    def __init__(self, torch, vocabulary, width, layers, heads, kv_heads, inner=None, made_on="cpu", fused=False):
        self.torch, self.width, self.heads, self.kv_heads, self.fused = torch, width, heads, kv_heads, fused
        self.size, inner = width // heads, inner or 4 * width
        # Made on the CPU they are the same numbers whatever the GPU does; on the GPU they are made faster.
        generator = torch.Generator(made_on).manual_seed(7)

        def weight(*shape):
            made = torch.randn(*shape, generator=generator, device=made_on)
            return (made * shape[-1] ** -0.5).to(torch.bfloat16).cuda()

        self.embedding = weight(vocabulary, width)
        self.layers = [
            {
                "q": weight(width, width),
                "k": weight(kv_heads * self.size, width),
                "v": weight(kv_heads * self.size, width),
                "o": weight(width, width),
                "gate": weight(inner, width),
                "up": weight(inner, width),
                "down": weight(width, inner),
            }
            for _ in range(layers)
        ]
        angles = torch.arange(4096).float()[:, None] * (10000.0 ** (-torch.arange(0, self.size, 2) / self.size))
        self.cosine, self.sine = angles.cos().cuda(), angles.sin().cuda()

    def norm(self, x):
        wide = x.float()
        return (wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)

    def linear(self, x, w, name):
        return self.torch.nn.functional.linear(x, w[name])

    def attend(self, q, k, v, past):
        torch, length = self.torch, q.shape[2]
        groups = self.heads // self.kv_heads
        if self.fused and past == 0:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = q @ k.repeat_interleave(groups, 1).transpose(-1, -2) * self.size**-0.5
        if length > 1:
            mask = torch.ones(length, k.shape[2], dtype=torch.bool, device=q.device).tril(past)
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores.float().softmax(-1).to(q.dtype) @ v.repeat_interleave(groups, 1)

    def layer(self, x, w, cache=None):
        """x after one layer, and the layer's keys and values of all tokens so far."""
        torch, functional = self.torch, self.torch.nn.functional
        batch, length = x.shape[:2]
        past = 0 if cache is None else cache[0].shape[2]
        cosine, sine = self.cosine[past : past + length], self.sine[past : past + length]
        h = self.norm(x)
        q = self.linear(h, w, "q").view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.linear(h, w, "k").view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        v = self.linear(h, w, "v").view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        q = rotate(torch, q.float(), cosine, sine).to(x.dtype)
        k = rotate(torch, k.float(), cosine, sine).to(x.dtype)
        if cache is not None:
            k, v = torch.cat((cache[0], k), dim=2), torch.cat((cache[1], v), dim=2)
        attended = self.attend(q, k, v, past)
        x = x + self.linear(attended.transpose(1, 2).reshape(batch, length, self.width), w, "o")
        h = self.norm(x)
        gated = functional.silu(self.linear(h, w, "gate")) * self.linear(h, w, "up")
        return x + self.linear(gated, w, "down"), (k, v)

    def logits(self, x):
        return self.torch.nn.functional.linear(self.norm(x), self.embedding)

    def step(self, ids, caches):
        """The next token's logits; `caches` grow by the tokens of `ids`."""
        x = self.embedding[ids]
        for index, w in enumerate(self.layers):
            x, caches[index] = self.layer(x, w, caches[index])
        return self.logits(x[:, -1])

    def prefill(self, ids):
        """The logits of every token, no cache kept."""
        x = self.embedding[ids]
        for w in self.layers:
            x = self.layer(x, w)[0]
        return self.logits(x)
