"""Flax: training steps of a small network with Adam."""
from checkpoint import checkpoint

import jax
import jax.numpy as jnp
import optax
from flax import linen


class Network(linen.Module):
    @linen.compact
    def __call__(self, x):
        for _ in range(4):
            x = x + linen.Dense(1024)(linen.gelu(linen.Dense(4096)(linen.LayerNorm()(x))))
        return x


def main():
    checkpoint("ready")
    key = jax.random.PRNGKey(0)
    x = jax.random.normal(key, (1024, 1024))
    network, adam = Network(), optax.adam(1e-3)
    params = network.init(key, x)
    state = adam.init(params)

    @jax.jit
    def step(params, state):
        grads = jax.grad(lambda p: jnp.mean(network.apply(p, x) ** 2))(params)
        updates, state = adam.update(grads, state)
        return optax.apply_updates(params, updates), state

    for _ in range(3):
        params, state = step(params, state)
    jax.block_until_ready(params)
    stats = jax.devices()[0].memory_stats() or {}
    checkpoint("trained", stats={k: int(v) for k, v in stats.items() if v is not None})


main()
