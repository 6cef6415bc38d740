"""Records runs of the reference's tiny/z-image that it does not have: make_zimage.py REFERENCE/tiny

Prompts of different lengths in one batch, several pictures a prompt, and guidance that ends within the run. Writes golden.safetensors and golden.json
beside this script, computed in float32. Needs torch, diffusers 0.42.1 and transformers 5.24.0; two runs on one machine write equal files.
"""

import json
import sys
from pathlib import Path

import torch
from diffusers import ZImagePipeline
from safetensors.torch import save_file

torch.set_num_threads(1)
PROMPTS = ["a cat", "a photo of an astronaut riding a horse on mars, highly detailed, with the earth behind it in the sky"]
RUNS = {
    # Guidance for the first steps only: the scheduler's shift puts them at 0, 0.1, 0.25, 0.5 of the way.
    "truncated": dict(guidance_scale=3.0, cfg_truncation=0.2, negative_prompt=["blurry", "low quality, extra fingers, a text that is much longer than the other one"]),
    "normed": dict(guidance_scale=4.0, cfg_normalization=True),
}

here = Path(__file__).parent
pipe = ZImagePipeline.from_pretrained(Path(sys.argv[1]) / "z-image" / "model", torch_dtype=torch.float32)
pipe.set_progress_bar_config(disable=True)
tensors, runs = {}, {}
for name, extra in RUNS.items():
    seen = {"step_model_output": [], "step_latents": [], "step_timesteps": []}
    step = pipe.scheduler.step

    def record(model_output, timestep, sample, **kw):
        out = step(model_output, timestep, sample, **kw)
        seen["step_model_output"].append(model_output.clone())
        seen["step_latents"].append(out[0].clone())
        seen["step_timesteps"].append(torch.as_tensor(timestep, dtype=torch.float32))
        return out

    pipe.scheduler.step = record
    call = dict(height=32, width=48, num_inference_steps=4, max_sequence_length=70, num_images_per_prompt=2, **extra)
    seeds = [torch.Generator("cpu").manual_seed(5 + k) for k in range(2 * len(PROMPTS))]
    pipe(prompt=list(PROMPTS), generator=seeds, output_type="latent", **{k: list(v) if isinstance(v, list) else v for k, v in call.items()})
    pipe.scheduler.step = step
    for key, list_ in seen.items():
        tensors[f"{name}/{key}"] = torch.stack(list_)
    runs[name] = {"call": dict(call, prompt=PROMPTS), "seed": 5}
save_file(tensors, here / "golden.safetensors")
(here / "golden.json").write_text(json.dumps({"runs": runs}, indent=1) + "\n")
