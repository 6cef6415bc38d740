"""Copies a part of the reference pipelines into this folder: trim.py REFERENCE/tiny [OUT]

The whole reference set is larger than a repository should be. Of each pipeline in CASES this takes the checkpoint and one run: what the tests of
whole runs compare, without the modules on the way. Needs Python only.
"""

import json
import pathlib
import shutil
import struct
import sys

# name: (runs, files of the checkpoint that are left out)
CASES = {
    "sd2": (["a"], []),
    "sdxl": (["a"], ["*.fp16.safetensors"]),
    "flux2-dev": (["a"], []),
    "tp-flux2": (["a"], []),
    "tp-wan": (["a"], ["spiece.model"]),
    # Its decoder is that of tp-wan with other weights: the run is compared up to the latents.
    "wan22-t2v": (["a"], ["spiece.model", "vae/*.safetensors"]),
    "tp-sd3": (["a"], ["spiece.model"]),
    "tp-qwen": (["a"], []),
    "z-image": (["a"], []),
}


def read(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + n]), data[8 + n :]


def write(path, tensors):
    header, body = {}, b""
    for name, (dtype, shape, data) in sorted(tensors.items()):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def main():
    reference = pathlib.Path(sys.argv[1])
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).parent / "tiny"
    for name, (runs, without) in CASES.items():
        src, dst = reference / name, out / name
        if dst.exists():
            shutil.rmtree(dst)
        shutil.copytree(src / "model", dst / "model", copy_function=shutil.copyfile)
        for pattern in without:
            for f in (dst / "model").rglob(pattern):
                f.unlink()
        header, body = read(src / "golden.safetensors")
        tensors = {}
        for key, t in header.items():
            run, _, rest = key.partition("/")
            # First calls of networks and modules are for the networks' own tests.
            if run not in runs or rest.split("/")[0] in ("unet", "transformer", "transformer_2", "vae_decoder_chunks") or "/out/" in rest:
                continue
            a, b = t["data_offsets"]
            tensors[key] = (t["dtype"], t["shape"], body[a:b])
        write(dst / "golden.safetensors", tensors)
        golden = json.loads((src / "golden.json").read_text())
        kept = {r: {k: v for k, v in golden["runs"][r].items() if k != "blocks"} for r in runs}
        (dst / "golden.json").write_text(json.dumps({"name": golden["name"], "runs": kept}, indent=1, ensure_ascii=False) + "\n")
        for r in runs:
            for f in list(src.glob(r + ".png")) + list(src.glob(r + "-*.png")):
                shutil.copyfile(f, dst / f.name)
        size = sum(f.stat().st_size for f in dst.rglob("*") if f.is_file())
        print(f"{name}: {size / 1e6:.2f} MB, {len(tensors)} tensors")


main()
