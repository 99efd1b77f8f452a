"""JAX, Flax, CuPy and Numba."""
from case import NATIVE, case, python, traced, whole


def jax_program(r, preallocate, program="jax_train.py"):
    with traced(r, python(program), {"XLA_PYTHON_CLIENT_PREALLOCATE": preallocate}, NATIVE) as t:
        v, s = t.at("trained")
        r.note("JAX says", v["stats"])
        r.note("by owner", s.by("owner"))
        r.equal("JAX's pool", s.device(owner="jax"), v["stats"].get("pool_bytes"))
        whole(r, s)
        t.finish()


@case("jax")
def jax(r):
    jax_program(r, "false")


@case("jax", alone=True)  # it takes three quarters of the GPU
def jax_preallocated(r):
    jax_program(r, "true")


@case("jax", "flax", "optax")
def flax(r):
    jax_program(r, "false", "flax_train.py")


@case("cupy")
def cupy(r):
    with traced(r, python("cupy_pool.py", "device")) as t:
        v, s = t.at("computed")
        r.note("by owner", s.by("owner"))
        r.equal("CuPy's pool", s.device(owner="cupy"), v["pool"])
        t.go()
        v, s = t.at("freed")
        r.equal("CuPy's pool after freeing", s.device(owner="cupy"), v["pool"])
        r.note("by owner, freed", s.by("owner"))
        t.finish()


@case("cupy")
def cupy_managed(r):
    with traced(r, python("cupy_pool.py", "managed")) as t:
        for name in "computed", "freed":
            v, s = t.at(name)
            r.equal("CuPy's pool of managed memory", s.sum(kind="managed", owner="cupy"), v["pool"])
            if name == "computed":
                t.go()
        t.finish()


@case("numba")
def numba(r):
    """Managed memory counts on no GPU, to NVML and to the physical layer alike, also once the GPU has touched it."""
    with traced(r, python("numba_managed.py"), flags=NATIVE) as t:
        totals = {}
        for name in "host", "touched":
            v, s = t.at(name)
            r.equal("managed", s.sum(kind="managed"), v["managed"])
            totals[name] = (sum(v["processes"][0]["nvml"].values()), s.process(t.pid)["physical_bytes"])
            if name == "host":
                t.go()
        whole(r, s)
        t.finish()
    r.note("NVML's figure and the layer's", totals)
    nvml, layer = (totals["touched"][i] - totals["host"][i] for i in range(2))
    r.check("what touching it on the GPU added", nvml == layer < v["managed"], f"NVML {nvml}, the layer {layer}, managed {v['managed']}")
