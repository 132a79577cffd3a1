#!/usr/bin/env python3
"""Fine-tuning in the way of LoRA: a frozen Llama-like model, small trained matrices beside its
attention weights, activations recomputed layer by layer, batches and lengths that vary. Prints each
loss exactly (hexadecimal)."""

import job
import llama

ADAPTED = ("q", "v", "o")


class Adapted(llama.Model):
    """`w[NAME]` is frozen; `w[NAME.a]` and `w[NAME.b]` are trained."""

    def add_adapters(self, rank):
        torch = self.torch
        generator = torch.Generator().manual_seed(11)
        for w in self.layers:
            for name in ADAPTED:
                outputs, inputs = w[name].shape
                # Both small and neither zero, so that the first step trains both.
                for part, shape in (("a", (rank, inputs)), ("b", (outputs, rank))):
                    made = (torch.randn(*shape, generator=generator) * 0.02).to(torch.bfloat16).cuda()
                    w[f"{name}.{part}"] = torch.nn.Parameter(made)
        return [value for w in self.layers for name, value in w.items() if "." in name]

    def linear(self, x, w, name):
        base = super().linear(x, w, name)
        if f"{name}.a" not in w:
            return base
        functional = self.torch.nn.functional
        return base + functional.linear(functional.linear(x, w[f"{name}.a"]), w[f"{name}.b"])

    def trained_logits(self, ids):
        from torch.utils.checkpoint import checkpoint

        x = self.embedding[ids]
        for w in self.layers:
            x = checkpoint(lambda x, w: self.layer(x, w)[0], x, w, use_reentrant=False, preserve_rng_state=False)
        return self.logits(x)


def main():
    parser = job.arguments(__doc__)
    job.training_arguments(parser, steps=32)
    parser.add_argument("--batch", type=int, default=7, help="most sequences in a step")
    parser.add_argument("--lengths", type=int, nargs=2, default=(200, 3000), metavar=("LEAST", "MOST"))
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    args = parser.parse_args()
    torch, nofrag = job.import_torch(args)
    llama.flash_attention_only(torch)
    vocabulary, heads = 32000, args.width // 128
    model = Adapted(torch, vocabulary, args.width, args.layers, heads, max(1, heads // 2), inner=args.width * 43 // 16,
                    made_on="cuda", fused=True)
    optimizer = torch.optim.AdamW(model.add_adapters(rank=16), lr=1e-3)
    generator = torch.Generator().manual_seed(args.seed)

    def one_step(_index):
        batch = int(torch.randint(1, args.batch + 1, (1,), generator=generator))
        length = int(torch.randint(args.lengths[0], args.lengths[1] + 1, (1,), generator=generator))
        ids = torch.randint(0, vocabulary, (batch, length + 1), generator=generator).cuda()
        logits = model.trained_logits(ids[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        del logits
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    job.train(args, torch, nofrag, "lora_train", one_step)


if __name__ == "__main__":
    main()
