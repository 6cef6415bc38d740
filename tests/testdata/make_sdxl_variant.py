"""Records run a of tiny/sdxl with the weights of its fp16 variant, computed in float32: make_sdxl_variant.py REFERENCE/tiny [OUT]

The repository carries the variant alone, which is half as large. The arguments and the noise are those of the reference's run a. Needs torch, diffusers
and transformers as in ../bench/requirements.txt.
"""

import json
import pathlib
import shutil
import sys

import torch
from diffusers import StableDiffusionXLPipeline
from PIL import Image
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
torch.backends.mkldnn.enabled = True
src = pathlib.Path(sys.argv[1]) / "sdxl"
dst = (pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).parent / "tiny") / "sdxl"
if dst.exists():
    shutil.rmtree(dst)
shutil.copytree(src / "model", dst / "model", copy_function=shutil.copyfile)
for f in (dst / "model").rglob("*.safetensors"):
    if not f.name.endswith(".fp16.safetensors"):
        f.unlink()
golden = load_file(src / "golden.safetensors")
run = json.loads((src / "golden.json").read_text())["runs"]["a"]
pipe = StableDiffusionXLPipeline.from_pretrained(dst / "model", variant="fp16", torch_dtype=torch.float32)
pipe.set_progress_bar_config(disable=True)
out = {k: golden[k] for k in golden if k in ("a/noise", "a/timesteps", "a/sigmas", "a/step_timesteps") or "/in/input_ids" in k and k.startswith("a/")}
steps, latents = [], []

encode = pipe.encode_prompt


def encode_prompt(*args, **kwargs):
    result = encode(*args, **kwargs)
    names = ["prompt_embeds", "negative_prompt_embeds", "pooled_prompt_embeds", "negative_pooled_prompt_embeds"]
    out.update({f"a/encode_prompt/0/{n}": t.clone() for n, t in zip(names, result)})
    return result


step = pipe.scheduler.step


def scheduler_step(model_output, *args, **kwargs):
    steps.append(model_output.clone())
    result = step(model_output, *args, **kwargs)
    latents.append(result[0].clone())
    return result


decode = pipe.vae.decode


def vae_decode(z, *args, **kwargs):
    result = decode(z, *args, **kwargs)
    out["a/vae_in"], out["a/vae_out"] = z.clone(), result[0].clone()
    return result


pipe.encode_prompt, pipe.scheduler.step, pipe.vae.decode = encode_prompt, scheduler_step, vae_decode
with torch.no_grad():
    image = pipe(**run["call"], latents=golden["a/noise"].clone(), output_type="np").images
out["a/step_model_output"], out["a/step_latents"] = torch.stack(steps), torch.stack(latents)
out["a/image_u8"] = torch.from_numpy((image * 255).round().astype("uint8"))
save_file({k: v.contiguous() for k, v in out.items()}, dst / "golden.safetensors")
kept = {k: v for k, v in run.items() if k != "blocks"}
(dst / "golden.json").write_text(json.dumps({"name": "sdxl", "variant": "fp16", "trimmed": True, "runs": {"a": kept}}, indent=1, ensure_ascii=False) + "\n")
Image.fromarray(out["a/image_u8"][0].numpy()).save(dst / "a.png")
