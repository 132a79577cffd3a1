"""Runs that end out of memory, one function a cause; each takes a seed and makes another variant.

A run is (trace as csv text, capacity in bytes): the job as it would have gone on with more memory. Sizes,
orders and lifetimes follow what PyTorch jobs of the kind do. The causes that no trace shows (refused_below,
other_process) are messages: see messages.py.
"""

import random

MIB = 1 << 20
GIB = 1 << 30


class Job:
    """Writes the events of one job; the clock runs with the work."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.rows = ["time_us,op,id,size,stream"]
        self.time = 0
        self.next_id = 1
        self.sizes = {}
        self.live = 0
        self.peak = 0

    def wait(self, microseconds):
        self.time += microseconds

    def alloc(self, size):
        size = max(512, int(size))
        block = self.next_id
        self.next_id += 1
        self.time += self.random.randint(5, 15)
        self.rows.append(f"{self.time},a,{block},{size},0")
        self.sizes[block] = size
        self.live += -(-size // 512) * 512
        self.peak = max(self.peak, self.live)
        return block

    def free(self, block):
        size = self.sizes.pop(block)
        self.time += self.random.randint(1, 5)
        self.rows.append(f"{self.time},f,{block},{size},0")
        self.live -= -(-size // 512) * 512

    def temporary(self, size):
        self.free(self.alloc(size))

    def text(self):
        return "\n".join(self.rows) + "\n"


def layers_of(job, hidden=None, layers=None):
    """The weights of a transformer, layer by layer, in bytes."""
    hidden = hidden or job.random.choice([1024, 1536, 2048, 2560])
    layers = layers or job.random.randint(12, 32)
    width = job.random.choice([2, 4])
    embedding = 32000 * hidden * width
    layer = [3 * hidden * hidden * width, hidden * hidden * width, 4 * hidden * hidden * width,
             4 * hidden * hidden * width, hidden * width, hidden * width]
    return [embedding] + [size for _ in range(layers) for size in layer] + [embedding]


def load(job, weights, cast=False):
    blocks = []
    for size in weights:
        if cast:
            raw = job.alloc(2 * size)
            blocks.append(job.alloc(size))
            job.free(raw)
        else:
            blocks.append(job.alloc(size))
    return blocks


def forward_backward(job, weights_total, layers, activation, keep_gradients=()):
    """One training step: activations pile up, temporaries go at once, the backward takes all apart."""
    saved = []
    for _ in range(layers):
        for part in (1.0, 0.5, 2.0):
            saved.append(job.alloc(activation * part))
        job.temporary(activation * 1.5)
        job.temporary(activation * 0.25)
    job.wait(2000)
    while saved:
        job.temporary(activation)
        job.free(saved.pop())
    job.wait(2000)


def model_too_large(seed):
    job = Job(seed)
    weights = layers_of(job)
    variant = seed % 4
    if variant == 1:
        load(job, weights, cast=True)
    elif variant == 2:  # checkpoint shards: each is read whole, then copied
        for start in range(0, len(weights), 12):
            shard = weights[start:start + 12]
            staging = job.alloc(sum(shard) // 4)
            load(job, shard)
            job.free(staging)
    elif variant == 3:  # two models, one after the other
        load(job, weights)
        job.wait(300)
        load(job, layers_of(job))
    else:
        load(job, weights)
    return job.text(), int(job.peak * job.random.uniform(0.45, 0.93))


def large_step_of_a_small_model(seed):
    """A model of one to five percent of the card, and a first step whose every activation is larger than all of it."""
    job = Job(seed)
    load(job, [64 * MIB] * job.random.randint(10, 30))
    job.wait(500_000)
    base, layers = job.live, job.random.randint(8, 24)
    activation = base * job.random.uniform(1.2, 5)
    job.alloc(activation)
    job.alloc(8 * MIB)  # the matrix library's own
    for _ in range(layers):
        hidden = job.alloc(activation)
        job.alloc(activation)
        job.free(hidden)
    return job.text(), int(base + activation * layers * job.random.uniform(0.6, 0.95))


def batch_too_large(seed):
    variant = seed % 6
    if variant == 5:
        return large_step_of_a_small_model(seed)
    job = Job(seed)
    weights = layers_of(job, hidden=1024, layers=job.random.randint(8, 20))
    load(job, weights, cast=variant == 4)
    job.wait(500_000)
    base = job.live
    layers = job.random.randint(10, 24)
    activation = base * job.random.uniform(0.05, 0.2)
    if variant == 0:  # the first step of training
        forward_backward(job, base, layers, activation)
    elif variant == 1:  # no gradients: one temporary after the other, one much too large
        for _ in range(layers):
            job.temporary(activation)
            job.temporary(activation * 2)
        job.temporary(base * job.random.uniform(2, 5))
    elif variant == 2:  # many equal steps, then one batch that is longer
        for _ in range(job.random.randint(10, 40)):
            forward_backward(job, base, layers, activation)
        before = job.peak
        forward_backward(job, base, layers, activation * job.random.uniform(1.3, 3))
        return job.text(), int(before + (job.peak - before) * job.random.uniform(0.2, 0.9))
    elif variant == 3:  # lengths vary; the longest so far is too long
        for _ in range(job.random.randint(15, 40)):
            forward_backward(job, base, layers, activation * job.random.uniform(0.3, 1.0))
        before = job.peak
        forward_backward(job, base, layers, activation * 1.6)
        return job.text(), int(before + (job.peak - before) * job.random.uniform(0.2, 0.9))
    else:  # weights cast on the way, then the first step
        forward_backward(job, base, layers, activation)
    return job.text(), int(base + (job.peak - base) * job.random.uniform(0.3, 0.9))


def kv_cache_growth(seed):
    job = Job(seed)
    weights = layers_of(job, hidden=1024, layers=12)
    load(job, weights)
    job.wait(200_000)
    base = job.live
    layers = 12
    variant = seed % 5
    token = job.random.choice([16, 32, 64]) * 1024
    if variant in (0, 1):  # one chat: caches are made anew, longer, at every turn (torch.cat)
        length = job.random.randint(32, 128)
        caches = [job.alloc(length * token) for _ in range(2 * layers)]
        for _ in range(job.random.randint(40, 80)):
            grown = length + job.random.randint(16, 96)
            for i, old in enumerate(caches):
                job.temporary(grown * token // (4 if variant else 2))
                caches[i] = job.alloc(grown * token)
                job.free(old)
            length = grown
            job.wait(3000)
    elif variant == 2:  # agents in parallel, each with its own growing context
        agents = [[job.random.randint(16, 64), None] for _ in range(job.random.randint(4, 12))]
        for agent in agents:
            agent[1] = [job.alloc(agent[0] * token) for _ in range(2 * layers)]
        for _ in range(job.random.randint(80, 160)):
            agent = job.random.choice(agents)
            grown = agent[0] + job.random.randint(8, 64)
            for i, old in enumerate(agent[1]):
                job.temporary(grown * token // 2)
                agent[1][i] = job.alloc(grown * token)
                job.free(old)
            agent[0] = grown
            job.wait(2000)
    elif variant == 3:  # paged caches of many sessions: sessions end, and more come than go
        page = 16 * token
        sessions = []
        for step in range(600):
            if job.random.random() < 0.15:
                sessions.append([job.alloc(page) for _ in range(layers)])
            for session in sessions:
                if job.random.random() < 0.2:
                    session.append(job.alloc(page))
            if sessions and job.random.random() < 0.05:
                for block in sessions.pop(0):
                    job.free(block)
            job.temporary(page * (2 + step // 100))
            job.wait(1000)
    else:  # agents fan out: each brings a longer prompt than the last
        caches = []
        for turn in range(job.random.randint(30, 60)):
            length = 32 + 8 * turn
            caches.append([job.alloc(length * token) for _ in range(2 * layers)])
            for _ in range(6):
                job.temporary(length * token * 2)
            if turn % 9 == 8:
                for block in caches.pop(0):
                    job.free(block)
            job.wait(3000)
    return job.text(), int(base + (job.peak - base) * job.random.uniform(0.55, 0.95))


def leak(seed):
    job = Job(seed)
    weights = layers_of(job, hidden=1024, layers=job.random.randint(6, 14))
    load(job, weights)
    job.wait(200_000)
    base = job.live
    layers = job.random.randint(6, 14)
    activation = base * job.random.uniform(0.01, 0.06)
    kept = []
    variant = seed % 4
    steps = job.random.randint(40, 90)
    output = base * job.random.uniform(0.01, 0.05)
    early = 0
    for step in range(steps):
        early = job.peak if step == 12 else early
        forward_backward(job, base, layers, activation)
        if variant == 0:  # a list keeps every output
            kept.append(job.alloc(output))
        elif variant == 1:  # a loss keeps its graph: several blocks a step
            kept += [job.alloc(output / 4) for _ in range(4)]
        elif variant == 2 and step % 4 == 0:  # now and then only
            kept.append(job.alloc(4 * output))
        elif variant == 3:  # inference: no backward, the outputs stay
            for _ in range(3):
                job.temporary(activation)
            kept.append(job.alloc(output))
    return job.text(), int(early + (job.peak - early) * job.random.uniform(0.2, 0.95))


def long_leak(seed):
    """Thousands of equal steps that are small beside the model, each of which leaves something."""
    job = Job(seed)
    model = job.random.randint(10, 70)
    for _ in range(64):
        job.alloc(model * GIB / 64)
    job.wait(1_000_000)
    temporaries = job.random.randint(4, 12)
    size = job.random.choice([100, 300, 1000]) * MIB / temporaries
    kept = max(2 * MIB, temporaries * size * job.random.uniform(0.002, 0.95))
    kept = max(kept, (78 - model) * GIB / 4000)
    while job.live + temporaries * size < 78 * GIB:
        blocks = [job.alloc(size + 4096 * i) for i in range(temporaries)]
        job.alloc(kept)
        for block in blocks:
            job.free(block)
        job.wait(3000)
    return job.text(), 77 * GIB


def keep_more_than_is_freed(job, steps, temporaries, pause):
    """Steps beside a large model that each leave about as much as they free, or more: live memory hardly ever falls."""
    pick = job.random
    model = pick.randint(10, 70)
    for _ in range(64):
        job.alloc(model * GIB / 64)
    job.wait(1_000_000)
    spread, blocks_kept = pick.choice([1, 2]), pick.choice([1, 1, 2, 4])
    kept = 2 * (80 - model) * GIB / steps / (1 + spread)
    size = kept * pick.choice([pick.uniform(0.05, 1), pick.uniform(0.2, 1.5)]) / temporaries
    sizes = pick.choice([1, 3, temporaries])
    while job.live < 80 * GIB:
        blocks = [job.alloc(size + 4096 * (i % sizes)) for i in range(temporaries)]
        for _ in range(blocks_kept):
            job.alloc(kept * pick.uniform(1, spread) / blocks_kept)
        for block in blocks:
            job.free(block)
        job.wait(pause)
    return job.text(), 80 * GIB


def leak_of_large_results(seed):
    """More such steps than a model has layers, or steps that end with a wait."""
    job = Job(seed)
    waits = seed % 2 == 1
    steps = job.random.randint(20 if waits else 120, 400)
    return keep_more_than_is_freed(job, steps, job.random.choice([4, 5, 10, 20, 40]), 3000 if waits else 0)


def leak_like_layers(seed):
    """As few such steps as a model has layers, or with hardly more in each than casts of weights have: one step of a
    batch that is too large looks the same."""
    job = Job(seed)
    few = seed % 2 == 1
    steps = job.random.randint(8, 90) if few else job.random.randint(150, 400)
    return keep_more_than_is_freed(job, steps, job.random.randint(4, 40) if few else job.random.randint(1, 3), 0)


def leak_with_a_late_pause(seed):
    """Equal steps that leave something, after a load with casts, and near the end the longest pause of all."""
    job = Job(seed)
    pick = job.random
    load(job, [5 * GIB // 16] * 4, cast=True)
    load(job, [5 * GIB // 16] * 60)
    job.wait(1_000_000)
    temporaries, kept, late = pick.randint(8, 16), pick.randint(200, 300) * MIB, pick.choice([1, 5, 20])
    steps = 60 * GIB // kept
    for step in range(steps):
        blocks = [job.alloc(12 * MIB + 4096 * i) for i in range(temporaries)]
        job.alloc(kept)
        for block in blocks:
            job.free(block)
        job.wait(60_000_000 if step == steps - late else 3000)
    return job.text(), job.peak - kept // 2


def leak_beside_a_buffer(seed):
    """A large buffer is replaced every step, or every few, by one of the same size; and something is kept."""
    job = Job(seed)
    pick = job.random
    load(job, [GIB // 4] * pick.choice([40, 80]))
    job.wait(1_000_000)
    base, steps, temporaries = job.live, pick.randint(300, 900), pick.randint(10, 20)
    every, parts, new_first = pick.choice([1, 1, 3, 7]), pick.randint(10, 30), seed % 3 > 0
    kept = (78 * GIB - base - parts * GIB) // steps
    held = []
    for step in range(steps):
        if step % every == 0:
            fresh = [job.alloc(GIB) for _ in range(parts)] if new_first else []
            for block in held:
                job.free(block)
            held = fresh or [job.alloc(GIB) for _ in range(parts)]
        blocks = [job.alloc(64 * MIB + 4096 * i) for i in range(temporaries)]
        for block in blocks:
            job.free(block)
        job.alloc(kept)
        job.wait(20_000)
    return job.text(), job.peak - 2 * kept


def step_after_warm_up(seed):
    """Hundreds of small temporaries, and then one step of fewer layers than would tell steps from layers."""
    job = Job(seed)
    pick = job.random
    load(job, [40 * GIB // 64] * 64)
    job.wait(pick.choice([0, 1_000_000]))
    for _ in range(pick.randint(550, 1500)):
        job.temporary(MIB)
    layers, temporaries, blocks_kept = pick.randint(20, 90), pick.randint(4, 8), pick.randint(1, 5)
    for _ in range(layers):
        blocks = [job.alloc(20 * MIB + 4096 * i) for i in range(temporaries)]
        for _ in range(blocks_kept):
            job.alloc(40 * GIB / layers / blocks_kept)
        for block in blocks:
            job.free(block)
    return job.text(), job.peak - 100 * MIB


def step_of_many_parts(seed):
    """One step of a deep model, or of one with many experts: more parts than most have layers."""
    job = Job(seed)
    pick = job.random
    load(job, [40 * GIB // 300] * 300)
    job.wait(1_000_000)
    parts, temporaries, blocks_kept = pick.randint(120, 1000), pick.randint(4, 8), pick.randint(1, 3)
    for _ in range(parts):
        blocks = [job.alloc(20 * MIB + 4096 * i) for i in range(temporaries)]
        for _ in range(blocks_kept):
            job.alloc(38 * GIB / parts / blocks_kept)
        for block in blocks:
            job.free(block)
    return job.text(), job.peak - 100 * MIB


def prefill_of_a_cold_process(job, layers, kept):
    """Layers with temporaries larger than what they keep; the first ones wait for kernels that are loaded on the way."""
    caches = []
    for layer in range(layers):
        blocks = []
        for part in range(job.random.randint(10, 14)):
            blocks.append(job.alloc(kept * job.random.uniform(0.2, 0.9)))
            job.wait(5000 if layer < layers // 3 and part % 3 == 0 else 0)
        caches += [job.alloc(kept), job.alloc(kept)]
        for block in blocks:
            job.free(block)
    return caches


def prefill_after_the_load(seed):
    """The first request of a server: its trace ends there, or goes on with the answer and further requests."""
    job = Job(seed)
    load(job, layers_of(job, hidden=1024, layers=12))
    job.wait(200_000)
    base, layers, kept = job.live, job.random.randint(18, 40), job.random.randint(20, 90) * MIB
    for _ in range(1 if seed % 2 == 0 else 4):
        for block in prefill_of_a_cold_process(job, layers, kept):
            job.free(block) if seed % 2 else None
        job.wait(20_000)
    return job.text(), int(base + (job.peak - base) * job.random.uniform(0.6, 0.95))


def leak_until_the_end_of_the_job(seed):
    """Every output is kept, and at the end the process frees all it has: that gives nothing back to the work."""
    job = Job(seed)
    weights = load(job, layers_of(job, hidden=1024, layers=8))
    job.wait(200_000)
    base, layers, kept = job.live, job.random.randint(6, 14), []
    output = base * job.random.uniform(0.02, 0.06)
    for _ in range(job.random.randint(40, 90)):
        forward_backward(job, base, layers, base * job.random.uniform(0.01, 0.03))
        kept.append(job.alloc(output))
    for block in kept + weights:
        job.free(block)
    return job.text(), int(base + (job.peak - base) * job.random.uniform(0.5, 0.9))


def fragmentation(seed):
    """Enough free memory in pieces, for an allocator that keeps segments whole."""
    job = Job(seed)
    load(job, layers_of(job, hidden=1024, layers=8))
    unit = job.random.randint(24, 90) * MIB
    pins = []
    for step in range(job.random.randint(8, 16)):
        blocks = [job.alloc(unit * job.random.uniform(0.8, 1.2)) for _ in range(8)]
        pins.append(job.alloc(job.random.randint(1, 4) * MIB))
        for block in blocks:
            job.free(block)
            pins.append(job.alloc(job.random.randint(2, 30) * 64 * 1024))
        unit = int(unit * 1.07)
        job.wait(3000)
    large = [job.alloc(unit * 4) for _ in range(2)]
    for block in large:
        job.free(block)
    job.wait(1000)
    job.temporary(unit * 9)
    return job.text(), int(job.peak * job.random.uniform(1.05, 1.08))


CAUSES = {f.__name__: f for f in (model_too_large, batch_too_large, kv_cache_growth, leak, fragmentation)}
# Further runs of a cause.
MORE = [("leak", long_leak), ("leak", leak_of_large_results), ("leak", leak_with_a_late_pause),
        ("leak", leak_beside_a_buffer),
        ("leak", leak_until_the_end_of_the_job),
        ("batch_too_large", step_after_warm_up), ("batch_too_large", prefill_after_the_load)]
# A leak, of which no trace can show that it is not one step of a batch that is too large.
UNTOLD = [leak_like_layers]
# One step, of which no trace can show that it is not a leak.
STEP_UNTOLD = [step_of_many_parts]
