"""Several processes or several GPUs: NCCL, torchrun, FSDP2, CUDA IPC, workers."""
from case import NATIVE, TENSORS, case, python, traced, whole
from harness import gpu_count


def workers(r, mode):
    with traced(r, python("torch_processes.py", mode)) as t:
        v, s = t.at("held")
        for w in v["processes"][1:]:
            r.equal("PyTorch's bytes", s.device(owner="pytorch", pid=w["pid"], gpu=str(w["gpu"])), w["reserved"])
            if mode == "nccl":
                r.check("NCCL's bytes", s.device(owner="nccl", pid=w["pid"]) > 0, s.device(owner="nccl", pid=w["pid"]))
        r.note("by owner", s.by("owner"))
        r.note("loss", s.loss())
        t.finish()


@case("torch")
def two_processes(r):
    workers(r, "share")


@case("torch", gpus=2)
def nccl(r):
    workers(r, "nccl")


@case("torch", gpus=2)
def two_gpus(r):
    with traced(r, python("torch_two_gpus.py"), flags=TENSORS) as t:
        v, s = t.at("held")
        for gpu in range(2):
            r.equal(f"PyTorch's bytes on GPU {gpu}", s.device(owner="pytorch", gpu=str(gpu)), v["reserved"][gpu])
        t.finish()


@case("torch", gpus=2)
def data_parallel(r):
    """One process that trains on all GPUs, and copies between them."""
    with traced(r, python("torch_data_parallel.py"), flags=TENSORS) as t:
        v, s = t.at("trained")
        r.equal("GPUs in use", len(v["processes"][0]["nvml"]), gpu_count())
        for gpu, reserved in enumerate(v["reserved"]):
            r.equal(f"PyTorch's bytes on GPU {gpu}", s.device(owner="pytorch", gpu=str(gpu)), reserved)
        t.finish()


def sharded(r, n):
    """FSDP2. Ranks that do the same have the same accounts."""
    with traced(r, ["fsdp.py"], flags=NATIVE + TENSORS, ranks=n) as t:
        for name in "joined", "reduced", "trained":
            v, s = t.at(name)
            accounts = {}
            for x in v["ranks"]:
                pid, gpu = x["processes"][0]["pid"], x["gpu"]
                held = s.device(owner="pytorch", pid=pid, gpu=str(gpu))
                r.equal(f"PyTorch's bytes of rank {x['rank']} at {name}", held, x["reserved"])
                accounts[x["rank"]] = s.lines(pid, gpu)
            for rank in range(1, n):
                r.equal(f"lines of rank {rank} at {name}, and of rank 0", accounts[rank], accounts[0])
            t.go()
        v, s = t.at("copied")  # by then rank 0 has a context on rank 1's GPU too, or on all (PyTorch 2.11, four GPUs)
        gpus = v["ranks"][0]["processes"][0]["nvml"]
        r.check("GPUs of rank 0", {"0", "1"} <= gpus.keys(), list(gpus))
        r.note("by owner", s.by("owner"))
        whole(r, s)
        r.note("loss", t.finish().loss())


@case("torch", gpus=2)
def fsdp(r):
    sharded(r, 2)


@case("torch", gpus=4)
def fsdp_four(r):
    sharded(r, 4)


def trainer(r, n):
    """torchrun, whose workers run already: they are traced with it."""
    with traced(r, ["hf_trainer.py", r.path("-trainer")], flags=NATIVE + TENSORS, ranks=n) as t:
        v, s = t.at("trained")
        pids = []
        for x in v["ranks"]:
            pids.append(x["processes"][0]["pid"])
            r.equal(f"PyTorch's bytes in worker {pids[-1]}", s.device(owner="pytorch", pid=pids[-1]), x["reserved"])
        whole(r, s)
        r.note("target", s.data["meta"]["target"])
        r.check("the target names the children", "child process" in s.data["meta"]["target"])
        s = t.finish()
        r.equal("in the final profile", [s.device(owner="pytorch", pid=pid) > 0 for pid in pids], [True] * n)
        r.note("loss", s.loss())


@case("torch", "transformers")
def launcher(r):
    trainer(r, 1)


@case("torch", "transformers", gpus=2)
def launcher_two(r):
    trainer(r, 2)


@case("torch")
def ipc(r):
    """CUDA IPC by torch.multiprocessing: the exporter's memory counts with it as long as it lives, then with the importer."""
    with traced(r, python("torch_ipc.py")) as t:
        v, s = t.at("shared")
        exporter, importer = (x["pid"] for x in v["processes"][1:])
        r.equal("what the exporter gave away", s.device(owner="pytorch", pid=exporter), v["bytes"])
        imported = s.sum("inuse_objects", kind="imported", pid=importer)
        r.check("is imported in the other", imported > 0, imported)
        r.equal("and counts there as nothing", s.sum(kind="shared", pid=importer), 0)
        t.go()
        v, s = t.at("orphaned")
        left = s.sum(kind="shared", pid=importer)
        r.check("kind shared, once its owner is gone", left >= v["bytes"], f"{left} of {v['bytes']}")
        t.go()
        v, s = t.at("closed")
        r.equal("after the importer closed it", s.sum(kind="shared", pid=importer), 0)
        t.finish()


def by_file(r, *mode):
    """Memory given away in a file descriptor: counts with its maker, then with the importer."""
    with traced(r, python("driver_files.py", *mode)) as t:
        for name in ("shared", "released", "orphaned"):
            v, s = t.at(name)
            r.equal(f"shares that are not known, {name}", s.loss().get("driver_shares_unknown", 0), 0)
            t.go()
        v, s = t.at("freed")
        importer = v["processes"][0]["pid"]
        r.equal("left with the importer", s.sum(kind="shared", pid=importer), 0)
        t.finish()


@case()
def file_shared(r):
    by_file(r)


@case()
def file_early(r):
    """The maker lets go before the other process has it: only the file has it for a while."""
    by_file(r, "early")


@case("torch")
def forked(r):
    """DataLoader's workers are forked from a process with a context, and hold nothing; a fork server's children have their own."""
    with traced(r, python("torch_workers.py")) as t:
        v, s = t.at("held")
        told = {a["pid"]: a["total_bytes"] for a in s.data["accounts"]}
        r.equal("accounts of DataLoader's workers", {x: told[x] for x in v["workers"] if told.get(x)}, {})
        r.equal("in use by them", [s.sum(pid=x) for x in v["workers"]], [0] * len(v["workers"]))
        for w in v["processes"]:
            r.equal("PyTorch's bytes", s.device(owner="pytorch", pid=w["pid"]), w.get("reserved", v["reserved"]))
        t.go()
        t.at("alone")
        t.finish()
