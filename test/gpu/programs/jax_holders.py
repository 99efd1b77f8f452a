"""JAX: arrays that are held in several ways, and what the program knows of each."""
from checkpoint import checkpoint

checkpoint("ready")
import gc  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

params = {"layer0": {"w": jnp.ones((1024, 1024)), "b": jnp.ones((1024,), jnp.bfloat16)}}
history = [jnp.full((1 << 20, 3), i % 2 == 0) for i in range(4)]
halves = jnp.ones((333, 7), jnp.float16)
scalar = jnp.float32(3)


class Trainer:
    def __init__(self):
        self.batch = jnp.ones((64, 128), jnp.int32)


trainer = Trainer()
donated = jnp.ones((4096, 5))
kept = jax.jit(lambda x: x + 1, donate_argnums=0)(donated)
deleted = jnp.ones((4096, 6))
deleted.delete()
jax.block_until_ready([params, history, halves, scalar, trainer.batch, kept])
named = {'params["layer0"]["w"]': params["layer0"]["w"], 'params["layer0"]["b"]': params["layer0"]["b"], "halves": halves, "scalar": scalar,
         "trainer.batch": trainer.batch, "kept": kept, **{f"history[{i}]": x for i, x in enumerate(history)}}
truth = {path: [x.nbytes, str(x.dtype), list(x.shape)] for path, x in named.items()}
gone = {path: [x.is_deleted(), x.nbytes] for path, x in (("donated", donated), ("deleted", deleted))}
del named
arrays = sum(isinstance(o, jax.Array) for o in gc.get_objects())
stats = jax.devices()[0].memory_stats() or {}
checkpoint("held", truth=truth, gone=gone, arrays=arrays, jax=jax.__version__, mro=[f"{c.__module__}.{c.__qualname__}" for c in type(halves).__mro__],
           aval=[type(halves.aval).__qualname__, list(getattr(type(halves.aval), "__slots__", []))], in_use=stats.get("bytes_in_use"))
