"""What other allocator settings, or another batch size, would have changed, and what they did change."""
import concurrent.futures
import glob
import json
import os
import pickle
import shutil
import statistics
import subprocess

from case import TENSORS, case, python, traced
from harness import PATIENCE, TOOL, Failed, gpu_count

DEFAULT, EXPANDABLE = "expandable_segments:False", "expandable_segments:True"
SETTINGS = DEFAULT, EXPANDABLE, "max_split_size_mb:32", "roundup_power2_divisions:4"
NEAR = 0.02  # by how much a prediction may be wrong


def run(*args):
    return subprocess.run([TOOL, *args], check=True, stdout=subprocess.PIPE, text=True).stdout


def shared(name):
    """The environment in which the programs of a name share one of the GPUs, and many programs the processors."""
    return {"CUDA_VISIBLE_DEVICES": str(len(name) % gpu_count()), "OMP_NUM_THREADS": "2"}


def real(name, batch, steps, **env):
    """What a program says of itself that nothing traces."""
    done = subprocess.run(python("whatif_programs.py", name, str(batch), str(steps)), env={**os.environ, **shared(name), **env},
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    said = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("CHECK ")]
    if done.returncode or said[-1]["name"] != "trained":
        raise Failed(f"{name} ended with {done.returncode}")
    return said[-1]


def recorded(r, suffix, name, batch, steps, ranks=0, **env):
    """The recording of a program, and what it says of itself."""
    argv = [str(x) for x in ("whatif_programs.py", name, batch, steps)]
    with traced(r, argv if ranks else python(*argv), {**(shared(name) if not ranks else {}), **env}, TENSORS, ranks, suffix) as t:
        v = t.program.expect("trained")
        t.finish()
    return t.tracer.recording, v


def predictions(recording):
    return json.loads(run("whatif", recording, "--json", *(x for s in SETTINGS[2:] for x in ("--set", s))))["predictions"]


def repeated(r, what, p):
    """Under its own settings a run comes out as it was."""
    r.check(f"{what}: tensors at their address", p["tensors"] > 0 and p["same_address"] == p["tensors"],
            f"{p['same_address']} of {p['tensors']}, {p['streams']} streams, {p.get('private_pools', 0)} private pools. {p.get('elsewhere', '')}{p.get('reason', '')}")


def spread(row):
    """The predicted peak, and between which sizes it may be."""
    return row["peak_reserved_bytes"], row.get("peak_low_bytes", 0) or row["peak_reserved_bytes"], row.get("peak_high_bytes", 0) or row["peak_reserved_bytes"]


def outside(low, high, real):
    """By which part a real peak lies outside of what it may be, 0 if it does not."""
    return low / real - 1 if real < low else high / real - 1 if real > high else 0


def requests(v):
    return v["tensors"], v["requested"]


def table(r, title, rows):
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    r.note(title, "\n" + "\n".join("         " + "  ".join(str(x).rjust(w) for x, w in zip(row, widths)) for row in rows))


def settings(r, name, batch=32, steps=6, record=SETTINGS[:2], **env):
    """Runs a program under each setting, and predicts each run from the recordings of two others. The peak must be near
    what it may be if the program made the same requests then. If not, it may be wrong by cuDNN's workspaces, too. It
    returns how many runs made other requests."""
    with concurrent.futures.ThreadPoolExecutor(len(SETTINGS)) as pool:
        traces = {s: pool.submit(recorded, r, f"-{i}", name, batch, steps, PYTORCH_CUDA_ALLOC_CONF=s, **env) for i, s in enumerate(record)}
        others = {s: pool.submit(real, name, batch, steps, PYTORCH_CUDA_ALLOC_CONF=s, **env) for s in SETTINGS if s not in record}
        traces = {s: x.result() for s, x in traces.items()}
        said = {s: x[1] for s, x in traces.items()} | {s: x.result() for s, x in others.items()}
    runs = {}
    for own, (recording, v) in list(traces.items())[:2]:
        runs[own], = predictions(recording)
        repeated(r, own, runs[own])
        r.equal(f"{own}: peak of reserved memory of the run itself", runs[own]["rows"][0]["peak_reserved_bytes"], v["peak"])
    workspaces = [p.get("cudnn_workspace_bytes", 0) for p in runs.values()]
    r.note("cuDNN's workspaces at most, bytes", workspaces)
    rows, wrong, far, apart = [("RECORDED UNDER", "SETTING", "PREDICTED", "LOW", "HIGH", "REAL", "ERROR", "OUTSIDE", "REQUESTS")], [], [], []
    for own, p in runs.items():
        predicted = {x["setting"]: spread(x) for x in p["rows"][1:]}
        for s in SETTINGS:
            if s == own or s not in predicted:
                continue
            peak, more = said[s]["peak"], [a - b for a, b in zip(requests(said[s]), requests(traces[own][1]))]
            error, out = predicted[s][0] / peak - 1, outside(*predicted[s][1:], peak)
            rows.append((own, s, *predicted[s], peak, f"{error:+.2%}", f"{out:+.2%}", f"{more[0]:+} tensors, {more[1]:+} bytes" if any(more) else "the same"))
            if any(more):
                apart.append(abs(out) - max(workspaces) / peak)
            else:
                wrong.append(error)
                far.append(out)
    table(r, "peak of reserved memory, bytes", rows)
    r.check(f"within {NEAR:.0%} of what the peak may be where the program made the same requests", all(abs(x) <= NEAR for x in far),
            f"{len(wrong)} of {len(wrong) + len(apart)}, the worst outside by {max(map(abs, far), default=0):.2%}, wrong by {max(map(abs, wrong), default=0):.2%}")
    if apart:
        r.check(f"the others within {NEAR:.0%} and cuDNN's workspaces", all(x <= NEAR for x in apart), f"the worst wrong by {max(apart):.2%} more than these")
    with open(r.path(".json"), "w") as f:
        json.dump(wrong, f)
    return len(apart)


def same_requests(r, name, **more):
    r.equal("predictions of runs that made other requests", settings(r, name, **more), 0)


@case("torch", "transformers")
def whatif_gpt2(r):
    same_requests(r, "gpt2")


@case("torch", "transformers")
def whatif_bert(r):
    same_requests(r, "bert")


@case("torch", "peft")
def whatif_peft(r):
    same_requests(r, "peft")


@case("torch", "torchvision")
def whatif_vit(r):
    same_requests(r, "vit")


@case("torch", "timm")
def whatif_mixer(r):
    same_requests(r, "mixer")


@case("torch", "timm")
def whatif_convnext(r):
    settings(r, "convnext")


@case("torch", "gpytorch")
def whatif_gpytorch(r):
    same_requests(r, "gpytorch")


@case("torch", "torchvision")
def whatif_resnet50(r):
    """cuDNN may choose other workspaces under another setting. Without cuDNN all requests are the same."""
    settings(r, "resnet50", record=SETTINGS)


@case("torch", "torchvision")
def whatif_resnet50_without_cudnn(r):
    same_requests(r, "resnet50", batch=16, steps=3, WHATIF_CUDNN="off")


@case("torch")
def whatif_gan(r):
    settings(r, "gan", batch=256)


@case("torch")
def whatif_gan_without_cudnn(r):
    same_requests(r, "gan", batch=64, steps=3, WHATIF_CUDNN="off")


@case("torch", "transformers")
def whatif_streams(r):
    same_requests(r, "streams")


@case("torch")
def whatif_pools(r):
    """Private pools, of CUDA graphs and of torch.cuda.MemPool."""
    same_requests(r, "pools", batch=16, steps=8)


def ranks(r, name):
    for i, own in enumerate(SETTINGS[:2]):
        recording, v = recorded(r, f"-{i}", name, 16, 4, ranks=2, PYTORCH_CUDA_ALLOC_CONF=own)
        all = {p["pid"]: p for p in predictions(recording)}
        r.equal("ranks that are predicted", len(all), 2)
        for x in v["ranks"]:
            p = all[x["processes"][0]["pid"]]
            repeated(r, own, p)
            r.equal(f"{own}: peak of reserved memory of the run itself", p["rows"][0]["peak_reserved_bytes"], x["peak"])


@case("torch", "transformers", gpus=2)
def whatif_ddp(r):
    ranks(r, "ddp")


@case("torch", "transformers", gpus=2)
def whatif_fsdp(r):
    ranks(r, "fsdp2")


def fitted(r, recordings, *flags):
    return json.loads(run("fit", *(f"{n}={file}" for n, file in recordings.items()), "--json", *flags))


def without_range(r, f):
    """A range stands only where all causes are modelled. Else fit says which is not."""
    r.check("no range, and why", not any(row.get("peak_low_bytes") or row.get("peak_high_bytes") for row in f["rows"] if not row.get("measured_bytes")) and f.get("unmodelled"),
            f.get("unmodelled"))


def sizes(r, name, at=(8, 16), steps=4, limit=True, convolutions=False, **env):
    """Predicts runs at batch sizes 32 and 64 from smaller ones, and which is the largest that a limit lets run. What
    tensors need must be as predicted, and so must the peak. In a program of convolutions both may be wrong by cuDNN's
    workspaces, and the peak by what fit says. The run at 32 is recorded, too: the smaller ones and it predict 64 again."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        traces = {n: pool.submit(recorded, r, f"-{n}", name, n, steps, **env) for n in (*at, 32)}
        truth = {64: pool.submit(real, name, 64, steps, **env)}
        traces, truth = ({n: x.result() for n, x in of.items()} for of in (traces, truth))
        truth[32] = traces[32][1]
        recordings = {n: traces[n][0] for n in at}
        f, more = fitted(r, recordings, "--to", "32,64"), fitted(r, {**recordings, 32: traces[32][0]}, "--to", "64")
        workspaces = more.get("cudnn_workspace_bytes", 0) if convolutions else 0  # of the run at 32
        rows, wrong, needed = [("BATCH", "RECORDINGS", "PREDICTED", "LOW", "HIGH", "REAL", "ERROR", "OUTSIDE", "NEEDED, PREDICTED", "REAL")], [], []
        for recorded_at, p in [(at, f["rows"][-2]), (at, f["rows"][-1]), ((*at, 32), more["rows"][-1])]:
            n = p["at"]
            v, allowed = truth[n], workspaces * n / 32
            error, out = spread(p)[0] / v["peak"] - 1, outside(*spread(p)[1:], v["peak"])
            wrong.append(max(0, abs(out) - allowed / v["peak"]) if convolutions else abs(error))
            needed.append(max(0, abs(p["needed_bytes"] - v["needed"]) - allowed) / v["needed"])
            rows.append((n, ", ".join(map(str, recorded_at)), *spread(p), v["peak"], f"{error:+.2%}", f"{out:+.2%}", p["needed_bytes"], v["needed"]))
        table(r, "peak of reserved memory, bytes", rows)
        if convolutions:
            without_range(r, f)
        r.note("cuDNN's workspaces at 32 at most, bytes", more.get("cudnn_workspace_bytes", 0))
        r.note("tensors in one recording alone, workspaces of sums in some recordings, and in none, bytes", [f.get(k, 0) for k in ("alone_bytes", "sum_workspace_bytes", "unseen_sum_workspace_bytes")])
        r.check("what tensors need, within 0.5 %" + (" and cuDNN's workspaces" if convolutions else ""), all(x <= 0.005 for x in needed), f"the worst {max(needed):.3%}")
        r.check(f"the peak, within {NEAR:.0%}" + (" of what it may be and cuDNN's workspaces" if convolutions else ""), all(x <= NEAR for x in wrong), f"the worst {max(wrong):.2%}")
        r.check("three recordings say how far the prediction is off", abs(more["check_error"] - (f["rows"][-2]["peak_reserved_bytes"] / truth[32]["peak"] - 1)) < 1e-9, more["check_error"])
        if not limit:
            return {**f, "text": run("fit", *(f"{n}={file}" for n, file in recordings.items()), "--to", "32")}
        most = (truth[32]["peak"] * 5 // 4) >> 20 << 20  # between 32 and 64
        f = fitted(r, recordings, "--to", "32", "--reserved", str(most))["reserved"]
        largest = {"without giving back cached memory": f["largest"], "without failing": f["largest_emptying"]}
        tried = sorted({n + d for n in largest.values() for d in (-1, 0, 1, 2)})
        ran = dict(zip(tried, pool.map(lambda n: real(name, n, steps, WHATIF_LIMIT=str(most), **env), tried)))
    table(r, f"runs that may reserve {most} bytes", [("BATCH", "FAILED", "GAVE BACK", "PEAK")] + [(n, x["failed"], x["retries"], x["peak"]) for n, x in ran.items()])
    for what, n in largest.items():
        fits = {m: not ran[m]["failed"] and (what == "without failing" or not ran[m]["retries"]) for m in range(n - 1, n + 3)}
        exact = max((m for m in fits if fits[m]), default=0)  # a smaller one may not fit
        r.check(f"largest batch that runs {what}, within 1", abs(exact - n) <= 1, f"{n}, really {exact or f'less than {n - 1}'}")


@case("torch", "transformers")
def fit_gpt2(r):
    sizes(r, "gpt2")


@case("torch", "transformers")
def fit_bert(r):
    sizes(r, "bert")


@case("torch", "transformers")
def fit_llama(r):
    sizes(r, "llama")


@case("torch", "peft")
def fit_peft(r):
    sizes(r, "peft")


@case("torch", "torchvision")
def fit_vit(r):
    sizes(r, "vit")


@case("torch", "timm")
def fit_mixer(r):
    sizes(r, "mixer")


@case("torch", "transformers")
def fit_bert_unseen(r):
    """No recording has the workspaces of sums that the run at 32 has: fit guesses them, and says so."""
    f = sizes(r, "bert", at=(4, 8), limit=False)
    r.check("fit says that no recording has them", f["unseen_sum_workspace_bytes"] > 0 and "no recording has any for them" in " ".join(f["text"].split()),
            f["unseen_sum_workspace_bytes"])
    r.check("the peak may be without them", f["rows"][-2]["peak_low_bytes"] < 0.95 * f["rows"][-2]["peak_reserved_bytes"], f["rows"][-2])


@case("torch", "gpytorch")
def fit_gpytorch(r):
    """Its matrices grow with the square of the batch, which two recordings do not show."""
    sizes(r, "gpytorch", at=(8, 16, 24), limit=False)


@case("torch", "torchvision")
def fit_resnet50(r):
    """cuDNN may choose other workspaces at another size."""
    sizes(r, "resnet50", limit=False, convolutions=True)


@case("torch", "torchvision")
def fit_resnet50_without_cudnn(r):
    sizes(r, "resnet50", limit=False, steps=2, WHATIF_CUDNN="off")


@case("torch")
def fit_lstm_without_cudnn(r):
    """What an LSTM without cuDNN asks for is not all modelled: fit prints no range, and says why."""
    env = {"WHATIF_CUDNN": "off"}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        traces, at_16 = {n: pool.submit(recorded, r, f"-{n}", "lstm", n, 4, **env) for n in (4, 8)}, pool.submit(real, "lstm", 16, 4, **env)
        recordings, v = {n: x.result()[0] for n, x in traces.items()}, at_16.result()
    f = fitted(r, recordings, "--to", "16")
    without_range(r, f)
    r.note("peak of reserved memory at 16, bytes: predicted, real", [f["rows"][-1]["peak_reserved_bytes"], v["peak"]])
    text = " ".join(run("fit", *(f"{n}={file}" for n, file in recordings.items()), "--to", "16").split())
    r.check("the text says why", "PEAK MAY BE is left out: fit does not know all that recurrent layers" in text and "PEAK MAY BE MEASURED" not in text, text)


@case("torch", alone=True)
def whatif_all(r):
    """Of all predictions that the cases above made."""
    wrong = []
    for file in glob.glob(os.path.join(r.out, "whatif_*.json")):
        with open(file) as f:
            wrong += json.load(f)
    r.check("predictions under other settings: median error within 0.1 %", wrong and statistics.median(map(abs, wrong)) <= 0.001,
            f"{len(wrong)} predictions, median {statistics.median(map(abs, wrong or [0])):.3%}, {sum(x == 0 for x in wrong)} of them equal to the byte")


@case("torch")
def whatif_fragmented(r):
    """A request that failed for fragmentation: the report, and the page about the failure, say which setting would have
    served it. The program run under that setting is served, and reserves what was predicted."""
    predicted = None
    for setting in "", "expandable_segments:True":
        live = r.path("-live")  # the trace writes its own page there
        shutil.rmtree(live, ignore_errors=True)
        with traced(r, python("torch_fragmented.py"), {"PYTORCH_CUDA_ALLOC_CONF": setting}, TENSORS + ("--oom-dir", live), suffix="-" + (setting[:10] or "native")) as t:
            v, _ = t.at("asked")
            t.finish(code=3 if not setting else 0)
        recording = t.tracer.recording
        if setting:
            r.equal("served under the setting", v["failed"], False)
            r.equal("the predicted peak of reserved memory", predicted, v["peak_reserved"])
            continue
        r.equal("the request failed", v["failed"], True)
        p, = json.loads(run("whatif", recording, "--json"))["predictions"]
        r.equal("tensors at their address", p["same_address"], p["tensors"])
        rows = {x["setting"]: x for x in p["rows"]}
        r.equal("predicted: served", rows["expandable_segments:True"].get("served"), "yes")
        predicted = rows["expandable_segments:True"]["peak_reserved_bytes"]
        answer = "With expandable_segments:True the request of 500 MiB that failed would have been served"
        text = " ".join(run("report", recording).split())
        r.check("the report says so", answer in text, text)
        place = r.path("-reports")
        shutil.rmtree(place, ignore_errors=True)
        run("convert", recording, "--oom-dir", place, "--force", "-o", recording + ".pb.gz")
        pages = glob.glob(os.path.join(place, "*.txt"))
        text = " ".join(open(pages[0]).read().split()) if pages else ""
        r.check("the page about the failure says so", answer in text, text)


def held(file):
    """What tensors hold at the end by category, in bytes."""
    rows = json.loads(run("report", file, "--by", "kind,category", "--at", "end", "--json"))
    return {x["category"]: x["inuse_bytes"] for x in rows if x["kind"] == "tensor"}


def snapshots(r, name, batch=16, steps=4, late=(False, True), **env):
    """PyTorch's own recorder beside ours, from the beginning, and from when the program had run once."""
    for when in late:
        what = f"{name}{', late' if when else ''}"
        file = r.path("-late.pickle" if when else ".pickle")
        recording, v = recorded(r, "-late" if when else "", name, batch, steps, WHATIF_SNAPSHOT=file, WHATIF_LATE="1" if when else "", **env)
        ours, theirs = predictions(recording)[0], predictions(file)[0]
        repeated(r, f"{what}, the snapshot", theirs)
        r.equal(f"{what}: bytes in tensors at the end", sum(held(file).values()), sum(held(recording).values()))
        r.note(f"{what}: by category, of the snapshot and of the recording", (held(file), held(recording)))
        if not when:
            r.equal(f"{what}: tensors", theirs["tensors"], ours["tensors"])
            r.equal(f"{what}: the peak that PyTorch reports", theirs["rows"][0]["peak_reserved_bytes"], v["peak"])
            mine = {x["setting"]: x for x in ours["rows"]}
            for row in theirs["rows"][1:]:
                low, high = spread(mine[row["setting"]])[1:]
                r.check(f"{what}: peak under {row['setting']}", low <= row["peak_reserved_bytes"] <= high, f"{row['peak_reserved_bytes']}, of the recording {low} to {high}")


@case("torch", "transformers")
def snapshot_gpt2(r):
    snapshots(r, "gpt2")


@case("torch", "transformers")
def snapshot_gpt2_expandable(r):
    snapshots(r, "gpt2", late=(False,), PYTORCH_CUDA_ALLOC_CONF=EXPANDABLE, PYTORCH_ALLOC_CONF=EXPANDABLE)


@case("torch", "torchvision")
def snapshot_resnet50(r):
    snapshots(r, "resnet50")


@case("torch", "transformers")
def snapshot_streams(r):
    snapshots(r, "streams")


@case("torch")
def snapshot_pools(r):
    snapshots(r, "pools")


@case("torch", "transformers", gpus=2)
def snapshot_fsdp2(r):
    """The snapshot of each rank beside the recording of both."""
    file = r.path(".pickle")
    recording, v = recorded(r, "", "fsdp2", 16, 4, ranks=2, WHATIF_SNAPSHOT=file)
    ours = {p["pid"]: p for p in predictions(recording)}
    for rank, x in enumerate(v["ranks"]):
        theirs, = predictions(file.replace(".pickle", f"{rank}.pickle"))
        repeated(r, f"rank {rank}, the snapshot", theirs)
        r.equal(f"rank {rank}: tensors", theirs["tensors"], ours[x["processes"][0]["pid"]]["tensors"])
        r.equal(f"rank {rank}: the peak that PyTorch reports", theirs["rows"][0]["peak_reserved_bytes"], x["peak"])


def said(file, what):
    """What tensors hold at the end, in bytes, by what a snapshot says of their allocation, as read here."""
    with open(file, "rb") as f:
        snapshot = pickle.load(f)
    sizes = {b["address"]: b["size"] for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"}
    made = {e["addr"]: e for trace in snapshot["device_traces"] for e in trace if e["action"] == "alloc"}
    remarks = sorted(snapshot.get("external_annotations", []), key=lambda x: x["time_us"])
    sums = {}
    for address, size in sizes.items():
        if address not in made:
            continue
        if what == "compiled":
            label = made[address].get("compile_context") or ""
        else:
            inside = [""]
            for x in remarks:
                if x["time_us"] > made[address]["time_us"]:
                    break
                if x["stage"] == "START":
                    inside.append(x["name"].split("#")[0])
                else:
                    inside.pop()
            label = inside[-1]
        sums[label] = sums.get(label, 0) + size
    return sums


def labelled(r, name, what):
    file = r.path(".pickle")
    recorded(r, "", name, 16, 4, WHATIF_SNAPSHOT=file)
    truth, found = said(file, what), {}
    for x in json.loads(run("report", file, "--by", f"kind,{what}", "--at", "end", "--json")):
        label = "" if (x[what] or "[").startswith("[") else x[what]
        if x["kind"] == "tensor" and x["inuse_bytes"]:
            found[label] = found.get(label, 0) + x["inuse_bytes"]
    r.check(f"the file has names of {what}", len(truth) >= 2, truth)
    r.equal(f"bytes in tensors at the end by {what}", found, truth)


@case("torch", "transformers")
def snapshot_annotated(r):
    """Annotations of record_function."""
    labelled(r, "annotated", "annotation")


@case("torch")
def snapshot_compiled(r):
    """The contexts of torch.compile."""
    labelled(r, "compiled", "compiled")
