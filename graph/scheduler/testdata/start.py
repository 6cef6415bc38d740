"""Writes start.json: how diffusers' schedulers begin in the middle of a schedule, as image-to-image pipelines make them: get_timesteps with a
strength, set_begin_index, add_noise (in flow matching scale_noise) on a picture's latents, then the steps that are left. One case a
config in configs/ and strength. Needs torch and diffusers 0.42.1:  python start.py > start.json
"""

import json
import math
import pathlib
import sys

import diffusers
import numpy as np
import torch

HERE = pathlib.Path(__file__).parent
GOLDEN = json.loads((HERE / "golden.json").read_text())["configs"]
SHAPE = (1, 2, 2)
STEPS = 6


def numbers(x):
    return [float(f"{v:.9g}") for v in np.asarray(x, dtype=np.float64).reshape(-1)]


def run(name, skip):
    entry = GOLDEN[name]
    config = json.loads((HERE / "configs" / name / "scheduler_config.json").read_text())
    scheduler = getattr(diffusers, entry["class"]).from_config(config)
    how, args = entry["set_timesteps"], {"num_inference_steps": STEPS}
    if how.get("flow_sigmas"):
        args = {"sigmas": [float(s) for s in np.linspace(1.0, 1 / STEPS, STEPS)]}
    if how.get("mu") is not None:
        args["mu"] = how["mu"]
    scheduler.set_timesteps(**{k: np.array(v) if k == "sigmas" else v for k, v in args.items()})
    begin = skip * scheduler.order
    timesteps = scheduler.timesteps[begin:]
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(begin)

    rng = np.random.default_rng(11)
    draws = []

    def randn(shape, **_):
        draws.append(rng.standard_normal(tuple(shape)).astype(np.float32))
        return torch.from_numpy(draws[-1])

    module = sys.modules[type(scheduler).__module__]
    if hasattr(module, "randn_tensor"):
        module.randn_tensor = randn
    clean, noise = (torch.from_numpy(rng.standard_normal(SHAPE).astype(np.float32)) for _ in range(2))
    if hasattr(scheduler, "add_noise"):
        sample = scheduler.add_noise(clean, noise, timesteps[:1])
    else:
        sample = scheduler.scale_noise(clean, timesteps[:1], noise)
    bias = rng.standard_normal(SHAPE)
    out = {"config_name": name, "class": entry["class"], "options": {**args, "skip": skip}, "timesteps": numbers(timesteps)}
    out.update(clean=numbers(clean), added=numbers(noise), initial=numbers(sample))
    inputs, outputs, samples = [], [], []
    for t in timesteps:
        x = scheduler.scale_model_input(sample, t) if hasattr(scheduler, "scale_model_input") else sample
        inputs.append(numbers(x))
        output = torch.from_numpy((np.tanh(0.8 * np.asarray(x) + 0.3 * bias) + 0.2 * math.cos(float(t) / 300)).astype(np.float32))
        outputs.append(numbers(output))
        sample = scheduler.step(output, t, sample, return_dict=False)[0]
        samples.append(numbers(sample))
    out.update(scaled_inputs=inputs, model_outputs=outputs, samples=samples, noise=[numbers(d) for d in draws])
    return out


results = []
for name in sorted(GOLDEN):
    for skip in (1, 2, STEPS - 1):
        results.append(run(name, skip))
        if not np.isfinite(results[-1]["samples"]).all():
            raise SystemExit(f"not finite: {name} without its first {skip} steps")
print("[" + ",\n".join(json.dumps(r) for r in results) + "]")
