#!/usr/bin/env python3
"""Run both sides of the benchmarks in turn and write the tables. Started by run.sh, which builds what this needs.

Every measurement is a process of its own. The variants of a part run in turn, round after round, so that a machine that slows down slows all of
them. What is reported is the median over the rounds and the spread between the lowest and the highest.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.environ.get("PRECAST_BENCH_DIR") or os.path.join(HERE, ".models")
DENOISER, PRECAST = (os.path.join(HERE, ".build", name) for name in ("denoiser", "precast"))
PLUGINS = ["cpu:lammps-jax-pjrt-cpu", "cpu:fastatomstruct-xla-cpu", "cpu:xla-cpu-pjrt"]
PARTS = ["flux", "flux-512", "flux-bf16", "wan", "sdxl", "sd", "vae", "batch", "plugins", "flux1-dev"]
THREADS = 2


def say(text):
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


def run(command, env=None):
    """The line of JSON that a process prints, with its wall and CPU time."""
    start = time.time()
    full = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", **(env or {})}
    done = subprocess.run(command, env=full, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    out = json.loads(done.stdout.strip().splitlines()[-1])
    out["process_s"] = time.time() - start
    if out.get("steps_s"):
        out["startup_s"] = out["first_step_done_s"] - out["step_median_s"]
    return out


def model(name):
    """The folder of a checkpoint, made where it is missing."""
    path = os.path.join(MODELS, name)
    if not os.path.exists(os.path.join(path, "model_index.json")):
        say(f"writing {name}")
        os.makedirs(MODELS, exist_ok=True)
        shutil.rmtree(path, ignore_errors=True)
        if name.endswith("-f32"):
            subprocess.run([DENOISER, "--convert", path, model(name.removesuffix("-f32"))], check=True)
        else:
            subprocess.run([sys.executable, os.path.join(HERE, "make_models.py"), name, path], check=True, stderr=subprocess.DEVNULL)
    return path


def torch(name, size, batch, mode, steps, env=None, save=None, component="", dtype="float32"):
    command = [sys.executable, os.path.join(HERE, "torch_denoiser.py"), model(name), "--size", size, "--batch", str(batch), "--mode", mode, "--dtype", dtype]
    command += ["--steps", str(steps), "--threads", str(THREADS)] + (["--save", save] if save else []) + (["--component", component] if component else [])
    out = run(command, env)
    if out["steps_s"] and mode != "eager":
        # The first call compiles, then runs a step.
        out["compile_s"] = out["first_call_s"] - out["step_median_s"]
    return out


def ours(name, size, batch, cache, steps, inputs=None, plugin="", regions="inline", component="", dtype="float32"):
    command = [DENOISER, "--size", size, "--batch", str(batch), "--cache", cache, "--steps", str(steps), "--threads", str(THREADS), "--regions", regions, "--dtype", dtype]
    command += (["--inputs", inputs] if inputs else []) + (["--plugin", plugin] if plugin else []) + (["--component", component] if component else []) + [model(name)]
    out = run(command)
    if out["phases_s"].get("compile"):
        out["compile_s"] = sum(out["phases_s"].get(p, 0) for p in ("trace", "passes", "lower", "compile", "serialize"))
    return out


class Rounds:
    """Measurements by variant."""

    def __init__(self):
        self.data = {}

    def add(self, variant, result):
        self.data.setdefault(variant, []).append(result)
        say(f"  {variant}: start-up {result.get('startup_s', float('nan')):.2f} s, step {result['step_median_s'] or 0:.3f} s, peak {result['peak_rss_kb'] / 1e6:.2f} GB")

    def get(self, variant, key):
        return [r[key] for r in self.data.get(variant, []) if r.get(key) is not None]

    def median(self, variant, key):
        values = self.get(variant, key)
        return statistics.median(values) if values else None

    def steps(self, variant):
        return [s for r in self.data.get(variant, []) for s in (r.get("steps_s") or [])]


def compare(title, name, size, batch, rounds, steps, modes=(), f32=None, component="", dtypes=("float32",), mode_rounds=1, regional=False):
    """Both sides of one network, in turn. modes are PyTorch's compiled ones."""
    say(title)
    r, scratch = Rounds(), tempfile.mkdtemp(prefix="precast-bench-")
    inputs = os.path.join(scratch, "inputs.safetensors")
    model(name), f32 and model(f32)
    # One process of each side unmeasured: the files are in the page cache for all that follow. The inputs and the output to compare with are float32's.
    torch(name, size, batch, "eager", 0, save=inputs, component=component)
    warm = os.path.join(scratch, "warm")
    for dtype in dtypes:
        for m in filter(None, [name, f32]):
            ours(m, size, batch, warm, 0, inputs, component=component, dtype=dtype)
    for i in range(rounds):
        say(f" round {i + 1} of {rounds}")
        for dtype in dtypes:
            suffix = f", {dtype}" if len(dtypes) > 1 else ""
            of = dict(component=component, dtype=dtype)
            r.add("torch eager" + suffix, torch(name, size, batch, "eager", steps, **of))
            r.add("precast warm" + suffix, ours(name, size, batch, warm, steps, inputs, **of))
            if f32:
                r.add("precast warm, float32 checkpoint", ours(f32, size, batch, warm, steps, inputs, **of))
            for regions in ["inline", "split"] if regional else ["inline"]:
                cold = os.path.join(scratch, f"cold{i}")
                r.add("precast cold" + (", split" if regions == "split" else "") + suffix, ours(name, size, batch, cold, steps, inputs, regions=regions, **of))
                shutil.rmtree(cold)
        for mode in modes:
            if i >= mode_rounds:
                break
            env = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(scratch, f"inductor-{mode}-{i}")}
            r.add(f"torch {mode} cold", torch(name, size, batch, mode, steps, env, component=component))
            r.add(f"torch {mode} warm", torch(name, size, batch, mode, steps, env, component=component))
    shutil.rmtree(scratch)
    return r


def spread(values, digits=2):
    if not values:
        return "-"
    text = f"{statistics.median(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def compare_table(r):
    base = next(iter(r.data))
    lines = ["| variant | compile, s | start-up, s | step, s | step, of eager | peak RSS, GB | of eager |", "| --- | --- | --- | --- | --- | --- | --- |"]
    step0, rss0 = statistics.median(r.steps(base)), r.median(base, "peak_rss_kb")
    for v in r.data:
        rss = [x * 1024 / 1e9 for x in r.get(v, "peak_rss_kb")]
        lines.append(
            f"| {v} | {spread(r.get(v, 'compile_s'))} | {spread(r.get(v, 'startup_s'))} | {spread(r.steps(v), 3)} | {statistics.median(r.steps(v)) / step0:.2f} x "
            f"| {spread(rss)} | {r.median(v, 'peak_rss_kb') / rss0:.2f} x |"
        )
    lines += [""]
    for dtype in ("float32", "bfloat16"):
        differences = [x["relative_difference"] for v in r.data for x in r.data[v] if x["dtype"] == dtype and "relative_difference" in x]
        if differences:
            lines += [f"Output in {dtype} against PyTorch's in float32 on the same inputs: largest difference {max(differences):.1e} of the largest value."]
    return lines


def phases(result):
    names = ["open", "client", "trace", "passes", "lower", "compile", "serialize", "cache", "load", "weights"]
    return ", ".join(f"{n} {result['phases_s'][n]:.3f}" for n in names if result["phases_s"].get(n, 0) >= 0.0005)


def part(q, head, about, rounds, steps, show, *where, **how):
    """A part that compares both sides; where and how are compare's. show lists the variants whose phases are listed."""
    if q:
        how["modes"] = ()
    r = compare(head, *where, 1 if q else rounds, 1 if q else steps, **how)
    text = [f"## {head}", "", about, "", *compare_table(r)]
    for v in show:
        text += ["", f"Phases of {v}, seconds: {phases(r.data[v][-1])}."]
    return text, r.data


FLUX = "FLUX.1's transformer with 6 double and 12 single blocks of 6 heads x 128 (238.6M parameters, 954 MB in float32), 512 text tokens, batch 1, stored as bfloat16"
COMPILED = ("compile", "regional")


def part_flux(q):
    show = ("precast warm", "precast warm, float32 checkpoint", "precast cold", "precast cold, split")
    return part(q, "Transformer: flux-768 at 256x256", f"{FLUX}, computed in float32.", 3, 5, show, "flux-768", "256x256", 1, modes=COMPILED, f32="flux-768-f32", mode_rounds=2, regional=True)


def part_flux_512(q):
    return part(q, "Transformer: flux-768 at 512x512", f"{FLUX}, computed in float32.", 3, 3, (), "flux-768", "512x512", 1, modes=COMPILED)


def part_flux_bf16(q):
    return part(q, "Transformer: flux-768 at 256x256 in bfloat16 and in float32", f"{FLUX}, computed in the dtype that the row names.", 3, 5, (), "flux-768", "256x256", 1, dtypes=("float32", "bfloat16"))


def part_wan(q):
    about = "Wan's transformer with 16 blocks of 4 heads x 128 (82.7M parameters), 5 frames, 512 text tokens, batch 1, stored and computed in float32."
    return part(q, "Transformer: wan-512 at 256x256, 5 frames", about, 3, 7, ("precast warm",), "wan-512", "256x256", 1, modes=COMPILED)


def part_sdxl(q):
    about = "SDXL's UNet with 128, 256 and 512 channels (286.7M parameters), batch 2 (guidance), stored and computed in float32."
    return part(q, "UNet: sdxl-mid at 512x512", about, 3, 4, ("precast warm",), "sdxl-mid", "512x512", 2, modes=COMPILED)


def part_sd(q):
    about = "The UNet at its published size (859.5M parameters, 3.44 GB in float32), batch 2 (guidance), stored and computed in float32."
    return part(q, "UNet: Stable Diffusion 1.5 at 512x512", about, 3, 3, ("precast warm", "precast cold"), "sd15-real", "512x512", 2, modes=COMPILED)


def part_vae(q):
    about = "AutoencoderKL's decoder at its published size (83.7M parameters with the encoder), batch 1, stored and computed in float32."
    return part(q, "VAE decode: Stable Diffusion 1.5 at 512x512", about, 3, 3, ("precast warm",), "sd15-vae", "512x512", 1, modes=("compile",), component="vae.decoder")


def part_batch(q):
    say("UNet: two calls at batch 1 or one at batch 2")
    cache, r = tempfile.mkdtemp(prefix="precast-bench-"), Rounds()
    for b in (1, 2):
        ours("sd15-real", "512x512", b, cache, 0)
    for _ in range(1 if q else 3):
        for b in (1, 2):
            r.add(f"batch {b}", ours("sd15-real", "512x512", b, cache, 1 if q else 3))
    shutil.rmtree(cache)
    one, two = statistics.median(r.steps("batch 1")), statistics.median(r.steps("batch 2"))
    text = ["## Guidance: two calls of the UNet at batch 1, or one at batch 2", "", "| | time of a guided step, s | peak RSS, GB |", "| --- | --- | --- |"]
    for b, times in ((1, 2), (2, 1)):
        text.append(f"| {times} x batch {b} | {spread([times * s for s in r.steps(f'batch {b}')], 3)} | {r.median(f'batch {b}', 'peak_rss_kb') * 1024 / 1e9:.2f} |")
    text += ["", f"Two calls at batch 1 take {2 * one / two:.2f} times what one call at batch 2 takes."]
    return text, r.data


def part_plugins(q):
    say("plugins")
    data, text = {}, ["# The CPU plugins compared", "", *machine(), ""]
    for name, size, batch, steps in (("flux-768", "256x256", 1, 5), ("sd15-real", "512x512", 2, 2)):
        cache, r = tempfile.mkdtemp(prefix="precast-bench-"), Rounds()
        for i in range(1 if q else 3):
            for p in PLUGINS:
                folder = os.path.join(cache, f"{p}{i}")
                r.add(f"{p} cold", ours(name, size, batch, folder, 0 if q else 1, plugin=p))
                r.add(f"{p} warm", ours(name, size, batch, folder, 1 if q else steps, plugin=p))
                shutil.rmtree(folder)
        shutil.rmtree(cache)
        text += [f"## {name}, {size}, batch {batch}, float32", "", "| plugin | step, s | compile, s | client, s | load, s | start-up warm, s | peak RSS, GB |", "| --- | --- | --- | --- | --- | --- | --- |"]
        for p in PLUGINS:
            warm = r.get(f"{p} warm", "phases_s")
            text.append(
                f"| {p} | {spread(r.steps(f'{p} warm'), 3)} | {spread([x['compile'] for x in r.get(f'{p} cold', 'phases_s')])} | {spread([x['client'] for x in warm], 3)} "
                f"| {spread([x['load'] for x in warm], 3)} | {spread(r.get(f'{p} warm', 'startup_s'))} | {r.median(f'{p} warm', 'peak_rss_kb') * 1024 / 1e9:.2f} |"
            )
        best = min(PLUGINS, key=lambda p: statistics.median(r.steps(f"{p} warm")))
        text += ["", f"The shortest step is {best}'s.", ""]
        data[name] = r.data
    return text, data


def part_flux1_dev(q):
    say("FLUX.1-dev from its config")
    command = [PRECAST, "compile", os.path.join(HERE, "flux1-dev-config"), "--config-only", "--compile-to", "stablehlo", "--components", "transformer", "--shape", "1024x1024"]
    wall, peak = [], []
    for _ in range(5):
        start = time.time()
        pid = os.posix_spawn(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)])
        _, status, usage = os.wait4(pid, 0)
        if status:
            sys.exit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
        wall.append(time.time() - start)
        peak.append(usage.ru_maxrss * 1024 / 1e6)
    text = ["## FLUX.1-dev's whole transformer from its config, to StableHLO", "", "19 double and 38 single blocks at 1024x1024, no weights: `precast compile --config-only --compile-to stablehlo`.", ""]
    text += ["| time, s | peak RSS, MB |", "| --- | --- |", f"| {spread(wall)} | {spread(peak, 0)} |"]
    return text, {"wall_s": wall, "peak_mb": peak}


def machine():
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.processor())
    memory = int(open("/proc/meminfo").readline().split()[1]) / 1e6
    versions = subprocess.run([sys.executable, "-c", "import torch, diffusers, transformers as t; print(f'PyTorch {torch.__version__}, diffusers {diffusers.__version__}, transformers {t.__version__}')"], capture_output=True, text=True).stdout.strip()
    return [
        f"Measured {datetime.date.today()} by `tests/bench/run.sh`: {cpu}, {os.cpu_count()} cores, {memory:.0f} GB, Linux {platform.release()}; {THREADS} threads on both sides; {versions}, Python {platform.python_version()}.",
        f"The load of the machine before the run was {os.getloadavg()[0]:.1f}.",
    ]


NOTES = """
Start-up is the time from the start of the process to the end of the first step, less one steady step. A step is one call of the denoiser alone, on
the same inputs on both sides. Figures are medians, with the lowest and the highest in brackets: of the processes for start-up and memory, of all
steps of all processes for steps. Variants run in turn, round after round. Files are in the page cache. "Cold" is an empty cache (of executables; of
inductor for PyTorch), "warm" the second process on it. Peak RSS is VmHWM; it counts mapped files.
"""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="one round and few steps, to see that all runs; writes nothing")
    p.add_argument("--only", default=",".join(PARTS), help="parts to run: " + ", ".join(PARTS))
    a = p.parse_args()
    only = a.only.split(",")
    if unknown := set(only) - set(PARTS):
        p.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    head = machine()
    for part in PARTS:
        if part not in only:
            continue
        text, data = globals()["part_" + part.replace("-", "_")](a.quick)
        if a.quick:
            print("\n".join(text))
            continue
        # A part that was measured keeps its text and its data until it is measured again.
        path = os.path.join(HERE, "PLUGINS" if part == "plugins" else "RESULTS")
        stored = json.load(open(path + ".json")) if os.path.exists(path + ".json") else {}
        stored[part] = {"machine": head, "text": text, "data": data}
        with open(path + ".json", "w") as f:
            json.dump(stored, f, indent=1)
        if part == "plugins":
            body = text
        else:
            body = ["# Benchmarks against PyTorch and diffusers", "", NOTES.strip().replace("\n", " "), ""]
            lines = None
            for name in PARTS:
                if name in stored:
                    if stored[name]["machine"] != lines:
                        lines = stored[name]["machine"]
                        body += [*lines, ""]
                    body += [*stored[name]["text"], ""]
        with open(path + ".md", "w") as f:
            f.write("\n".join(body).rstrip() + "\n")
        say(f"wrote {os.path.relpath(path)}.md")


if __name__ == "__main__":
    main()
