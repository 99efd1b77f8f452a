"""JAX: a jitted gradient step over a small network."""
from checkpoint import checkpoint

import jax
import jax.numpy as jnp


def loss(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return (x**2).mean()


def main():
    checkpoint("ready")
    key = jax.random.PRNGKey(0)
    params = [jax.random.normal(k, (4096, 4096)) for k in jax.random.split(key, 8)]
    x = jax.random.normal(key, (4096, 4096))
    step = jax.jit(jax.grad(loss))
    for _ in range(3):
        params = [p - 1e-3 * g for p, g in zip(params, step(params, x))]
    jax.block_until_ready(params)
    stats = jax.devices()[0].memory_stats() or {}
    checkpoint("trained", stats={k: int(v) for k, v in stats.items() if v is not None})


main()
