#!/usr/bin/env python3
"""Time one network of a diffusers checkpoint in PyTorch on the CPU: the peers' side of the benchmarks.

    python torch_denoiser.py MODEL_DIR --size 256x256 [--component transformer|unet|vae.decoder] [--mode eager|compile|regional] [--batch 1]
        [--frames 5] [--steps 5] [--threads 2] [--save FILE]

Prints one line of JSON: seconds from process start to imports done, model loaded and first step done (with compile, that holds the compile), the
first call, the following steps, the peak resident set. Inputs are random from a fixed seed, of the pipeline's own shapes (512 T5 tokens for FLUX.1
and Wan, 77 CLIP tokens for Stable Diffusion and SDXL). --save writes inputs and output as a safetensors file, which the other side reads to compute
the same. The component is the denoiser where none is named.
"""

import argparse
import json
import os
import statistics
import time


def process_start():
    """When the kernel started this process, to a hundredth of a second."""
    ticks = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19])
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


START = process_start()
p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("model")
p.add_argument("--size", default="256x256")
p.add_argument("--component")
p.add_argument("--mode", default="eager", choices=["eager", "compile", "regional"])
p.add_argument("--dtype", default="float32")
p.add_argument("--batch", type=int, default=1)
p.add_argument("--frames", type=int, default=5)
p.add_argument("--steps", type=int, default=5)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--save")
a = p.parse_args()

import diffusers  # noqa: E402
import torch  # noqa: E402

t_import = time.time() - START
torch.set_num_threads(a.threads)
dtype = getattr(torch, a.dtype)
index = json.load(open(os.path.join(a.model, "model_index.json")))
component = a.component or ("unet" if "unet" in index else "transformer")
name = component.removesuffix(".decoder")
net = getattr(diffusers, index[name][1]).from_pretrained(os.path.join(a.model, name), torch_dtype=dtype).eval()
t_load = time.time() - START

h, w = (int(x) for x in a.size.split("x"))
c, g = net.config, torch.Generator().manual_seed(0)


def rnd(*shape):
    return torch.randn(*shape, generator=g).to(dtype)


kind, call = type(net).__name__, net
if kind == "FluxTransformer2DModel":
    rows, cols = h // 16, w // 16
    ids = torch.zeros(rows, cols, 3)
    ids[..., 1] += torch.arange(rows)[:, None]
    ids[..., 2] += torch.arange(cols)[None]
    kw = dict(
        hidden_states=rnd(a.batch, rows * cols, c.in_channels), encoder_hidden_states=rnd(a.batch, 512, c.joint_attention_dim),
        pooled_projections=rnd(a.batch, c.pooled_projection_dim), timestep=torch.full((a.batch,), 0.7).to(dtype),
        img_ids=ids.reshape(rows * cols, 3), txt_ids=torch.zeros(512, 3), guidance=torch.full((a.batch,), 3.5) if c.guidance_embeds else None,
    )  # fmt: skip
elif kind == "WanTransformer3DModel":
    latents = rnd(a.batch, c.in_channels, (a.frames - 1) // 4 + 1, h // 8, w // 8)
    kw = dict(hidden_states=latents, timestep=torch.full((a.batch,), 700.0), encoder_hidden_states=rnd(a.batch, 512, c.text_dim))
elif kind == "UNet2DConditionModel":
    kw = dict(sample=rnd(a.batch, c.in_channels, h // 8, w // 8), timestep=torch.tensor(700), encoder_hidden_states=rnd(a.batch, 77, c.cross_attention_dim))
    if c.addition_embed_type == "text_time":
        pooled = c.projection_class_embeddings_input_dim - 6 * c.addition_time_embed_dim
        kw["added_cond_kwargs"] = dict(text_embeds=rnd(a.batch, pooled), time_ids=torch.tensor([[h, w, 0, 0, h, w]] * a.batch).to(dtype))
else:
    f = 2 ** (len(c.block_out_channels) - 1)
    kw, call = dict(z=rnd(a.batch, c.latent_channels, h // f, w // f)), net.decode
if a.mode == "compile" and call is net:
    net.compile(fullgraph=True, dynamic=False)
elif a.mode == "compile":
    call = torch.compile(call, fullgraph=True, dynamic=False)
if a.mode == "regional":
    net.compile_repeated_blocks(fullgraph=True, dynamic=False)
times, cpu = [], []
with torch.inference_mode():
    for i in range(a.steps + 1):
        t, c0 = time.time(), time.process_time()
        out = call(**kw, return_dict=False)[0]
        times.append(time.time() - t)
        cpu.append(time.process_time() - c0)
        if i == 0:
            t_first = time.time() - START
assert torch.isfinite(out.float()).all()
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(json.dumps(dict(
    model=kind, component=component, size=a.size, batch=a.batch, dtype=a.dtype, mode=a.mode, threads=a.threads, imported_s=t_import, loaded_s=t_load,
    first_step_done_s=t_first, first_call_s=times[0], steps_s=times[1:], steps_cpu_s=cpu[1:], step_min_s=min(times[1:], default=None),
    step_median_s=statistics.median(times[1:]) if times[1:] else None, peak_rss_kb=int(status["VmHWM"].split()[0]),
)))  # fmt: skip
if a.save:
    from safetensors.torch import save_file

    kw.update(kw.pop("added_cond_kwargs", {}))
    kw = {{"z": "latents"}.get(k, k): v for k, v in kw.items()}
    tensors = {k: v.float().contiguous() for k, v in kw.items() if v is not None and k not in ("img_ids", "txt_ids")}
    save_file({**tensors, "sample_out": out.float().contiguous()}, a.save)
