"""Pools: blocks that share memory only with each other."""

import contextlib
import itertools

from .library import Pool, block_size, current, ordinal, stream_handle

# PyTorch numbers its own pools (n, 0) and (0, n), small n; these are out of their way.
_FIRST = 0x6E6F667261670000
_numbers = itertools.count(1)


class PoolHandle:
    """A pool of one device. It holds one use of the pool from its first `with` until release()."""

    def __init__(self, device=0):
        self.device, self.id = ordinal(device), (_FIRST, next(_numbers))
        self._uses = 0

    def begin(self):
        """From here to end(), what any thread allocates on the device goes to this pool. Nests."""
        library = current()
        library.check(library.lib.nofrag_pool_begin(self.device, Pool(*self.id), None, None))
        self._uses += 1

    def end(self):
        library = current()
        library.check(library.lib.nofrag_pool_end(self.device, Pool(*self.id)))

    def malloc(self, size, stream=None):
        """A block of this pool, which must have been begun once."""
        library = current()
        return library.block(library.lib.nofrag_pool_malloc(block_size(size), self.device, stream_handle(stream), Pool(*self.id)))

    def release(self):
        """Undoes every use: idle memory of the pool is free for all; its live blocks stay valid."""
        library = current()
        while self._uses > 0:
            self._uses -= 1
            library.check(library.lib.nofrag_pool_release(self.device, Pool(*self.id)))


@contextlib.contextmanager
def pool(handle=None, device=0):
    """`with nofrag.pool() as p:` allocates into a new pool, `with nofrag.pool(p):` into that one again."""
    handle = PoolHandle(device) if handle is None else handle
    handle.begin()
    try:
        yield handle
    finally:
        handle.end()
