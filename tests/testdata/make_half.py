"""Measures how far diffusers' own runs in bfloat16 and float16 are from the float32 goldens, for run "a" of every reference pipeline.

    python make_half.py REFERENCE        # the folder with make_reference.py and tiny/; writes half.json beside this script

The numbers are root mean squares over all elements; "error" is what diffusers raised.
"""

import contextlib
import inspect
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@contextlib.contextmanager
def recorded(owner, name, keep):
    real = getattr(owner, name)

    def call(*a, **k):
        out = real(*a, **k)
        keep.append(out[0])
        return out

    def step(model_output, *a, **k):
        out = real(model_output, *a, **k)
        keep.append((model_output, out[0]))
        return out

    new = step if name == "step" else call
    new.__signature__ = inspect.signature(real)
    setattr(owner, name, new)
    yield
    setattr(owner, name, real)


@torch.no_grad()
def measure(reference, folder, dtype):
    info = json.loads((folder / "golden.json").read_text())
    golden = load_file(folder / "golden.safetensors")
    pipe = reference.load_pipeline(folder / "model", DTYPES[dtype])
    latents = golden.get("a/latents_init", golden["a/noise"])
    if type(pipe).__name__ not in ("WanPipeline", "ZImagePipeline"):
        latents = latents.to(DTYPES[dtype])
    steps, decoded = [], []
    with recorded(pipe.scheduler, "step", steps), recorded(pipe.vae, "decode", decoded):
        pipe(latents=latents, generator=torch.Generator().manual_seed(0), output_type="pil", **info["runs"]["a"]["call"])
    found = {"step_model_output": torch.stack([s[0] for s in steps]), "step_latents": torch.stack([s[1] for s in steps]), "vae_out": decoded[0]}
    far = {}
    for name, x in found.items():
        d = (x.double() - golden[f"a/{name}"].double()).pow(2).mean().sqrt()
        far[name] = float(f"{float(d):.4g}") if torch.isfinite(d) else str(float(d))
    return far


def main():
    reference_dir = Path(sys.argv[1])
    sys.path.insert(0, str(reference_dir))
    import make_reference

    torch.set_num_threads(1)
    out = {}
    for folder in sorted((reference_dir / "tiny").iterdir()):
        if not (folder / "golden.json").exists() or not (folder / "model").exists():
            continue
        out[folder.name] = {}
        for dtype in DTYPES:
            try:
                out[folder.name][dtype] = measure(make_reference, folder, dtype)
            except Exception as e:  # noqa: BLE001
                out[folder.name][dtype] = {"error": f"{type(e).__name__}: {e}"[:200]}
            print(folder.name, dtype, out[folder.name][dtype], flush=True)
    (Path(__file__).parent / "half.json").write_text(json.dumps(out, indent=1) + "\n")


main()
